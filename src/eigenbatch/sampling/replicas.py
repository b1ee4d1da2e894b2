"""Ids and embeddings of all processes, whose numbers may differ."""

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.errors import ShapeError
from eigenbatch.processes import all_gather


def gathered(
    ids: Tensor, z: Tensor, dim: int, group: dist.ProcessGroup | None = None
) -> tuple[Tensor, Tensor]:
    """The ids and rows of all processes, in order of rank; their numbers may differ.

    Shapes are compared before any row is sent, so that a mistake in one process raises in all of
    them instead of blocking the others. If one process has float64, all send it.
    """
    wide = z.dtype == torch.float64
    counts = torch.tensor([_length(ids), *_shape(z), wide])
    all_counts = torch.stack(all_gather(counts, group))  # (world, 4) ids, rows, columns, wide
    shapes = all_counts[:, :3].tolist()
    dtype = torch.float64 if all_counts[:, 3].any() else torch.float32
    for rank, (id_count, rows, columns) in enumerate(shapes):
        if id_count != rows or columns != dim:
            raise ShapeError(
                f"rank {rank} has {id_count} ids and embeddings of shape ({rows}, {columns}); "
                f"each id needs one row of dimension {dim} "
                "(-1: ids are no vector of integers, or embeddings no matrix of floats)"
            )
    most = max(rows for _, rows, _ in shapes)
    padded_ids = torch.zeros(most, dtype=torch.int64, device=z.device)
    padded_z = torch.zeros(most, dim, dtype=dtype, device=z.device)
    padded_ids[: len(ids)] = ids.to(z.device)
    padded_z[: len(z)] = z.detach()
    kept = [slice(rows) for _, rows, _ in shapes]
    all_ids = all_gather(padded_ids, group)
    all_z = all_gather(padded_z, group)
    return (
        torch.cat([part[own] for part, own in zip(all_ids, kept, strict=True)]),
        torch.cat([part[own] for part, own in zip(all_z, kept, strict=True)]),
    )


def refuse(group: dist.ProcessGroup | None = None) -> None:
    """Tell the processes in `gathered` that this one has nothing to send: they raise, too."""
    all_gather(torch.tensor([-1, -1, -1, 0]), group)


def _length(ids: Tensor) -> int:
    integers = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    return len(ids) if ids.ndim == 1 and integers else -1


def _shape(z: Tensor) -> tuple[int, int]:
    return (z.shape[0], z.shape[1]) if z.ndim == 2 and z.is_floating_point() else (-1, -1)
