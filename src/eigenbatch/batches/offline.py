"""Plan batches from embeddings in files, for loaders that cannot take a sampler.

The plan is the order in which to write shards or to read samples. Files in .npy format are mapped,
so that they may be larger than memory: samples are planned in parts of `horizon`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenbatch.batches.neighbours import Neighbours, batch_misses
from eigenbatch.batches.plan import Rows, arranged
from eigenbatch.checks import whole
from eigenbatch.core.contrast import positive_scalar, unit_rows
from eigenbatch.errors import DataError, ShapeError
from eigenbatch.files import load_embeddings

HORIZON = 262_144
LOOKED_AT = 128
"""Batches of a part whose miss, or mean cosine, is kept for a picture."""


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """What was planned, and how planned batches differ from random ones.

    Args:
        batches: (B, n) samples; a mapped file if it was written to one.
        planned: of some planned batches the mean miss, with one file the mean cosine of samples.
        random: the same of as many random batches.
        left_out: samples that do not fill a batch.
        together: samples that stand with a near-duplicate or one of their group.
    """

    batches: np.ndarray[Any, Any]
    planned: list[float]
    random: list[float]
    left_out: int
    together: int


class _Files(Rows):
    """Rows of one or two matrices, read when they are asked for."""

    def __init__(self, *paths: Path) -> None:
        self._paths, self._matrices = paths, [_matrix(path) for path in paths]
        shapes = [tuple(one.shape) for one in self._matrices]
        if len(set(shapes)) > 1:
            raise ShapeError(
                f"{paths[0]} has shape {shapes[0]} but {paths[1]} has {shapes[1]}: row i of one "
                "belongs to row i of the other"
            )
        self.size, self.towers = shapes[0][0], len(paths)

    def age(self, ids: Tensor) -> Tensor:
        """(n,) 0: every row is known."""
        return torch.zeros(len(ids), dtype=torch.long)

    def rows(self, ids: Tensor) -> Tensor:
        """(n, towers, d) float32 unit rows."""
        places = ids.numpy()
        towers = [
            unit_rows(torch.from_numpy(np.asarray(one[places], dtype=np.float32)), str(path))
            for path, one in zip(self._paths, self._matrices, strict=True)
        ]
        return torch.stack(towers, 1)


def plan_files(
    embeddings: Path,
    keys: Path | None = None,
    *,
    batch_size: int,
    tau: float = 0.07,
    groups: Tensor | None = None,
    seed: int = 0,
    horizon: int = HORIZON,
    out: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> OfflinePlan:
    """Plan hard batches of all samples, each once.

    Args:
        embeddings: a matrix (N, d), .npy, .npz, .safetensors or .pt.
        keys: the other side of every pair, of the same shape.
        batch_size: samples per batch.
        tau: temperature that the miss is predicted for.
        groups: (N,) integers; samples of one group are kept apart.
        seed: of everything random.
        horizon: samples planned at once.
        out: write the plan here, as .npy, instead of returning it in memory.
        progress: called with planned samples and all.

    Examples:
        >>> import numpy as np
        >>> from eigenbatch.batches.offline import plan_files
        >>> rows = np.random.default_rng(0).normal(size=(100, 8))
        >>> np.save(tmp_path / "z.npy", rows)
        >>> plan_files(tmp_path / "z.npy", batch_size=16).batches.shape
        (6, 16)
    """
    n = whole(batch_size, "batch_size", least=2)
    positive_scalar(tau, "tau")
    files = _Files(embeddings, *(() if keys is None else (keys,)))
    if n > files.size:
        raise ShapeError(f"batch_size is {n} but {embeddings} has {files.size} rows")
    if groups is not None and groups.shape != (files.size,):
        raise ShapeError(f"groups must hold {files.size} integers, got {tuple(groups.shape)}")
    part = whole(horizon, "horizon", least=n) // n * n
    generator = torch.Generator().manual_seed(whole(seed, "seed", least=0))
    order = torch.randperm(files.size, generator=generator)
    count, total = files.size // n, files.size // n * n
    batches: np.ndarray[Any, Any]
    if out is None:
        batches = np.empty((count, n), dtype=np.int64)
    else:
        batches = np.lib.format.open_memmap(out, mode="w+", dtype=np.int64, shape=(count, n))
    planned: list[float] = []
    random: list[float] = []
    together = 0
    for start in range(0, total, part):
        ids = order[start : min(start + part, total)].sort().values  # a file is read in its order
        made, plan = arranged(
            ids, n, files, Neighbours(), tau=tau, groups=groups, replace=False, generator=generator
        )
        batches[start // n : start // n + len(made)] = made.numpy()
        together += plan.together
        drawn = ids[torch.randperm(len(ids), generator=generator)].view(-1, n)
        planned += _judged(files, made[:LOOKED_AT], tau)
        random += _judged(files, drawn[:LOOKED_AT], tau)
        progress(start + len(ids), total)
    return OfflinePlan(batches, planned, random, files.size - total, together)


def _judged(files: _Files, batches: Tensor, tau: float) -> list[float]:
    """Of each batch the mean miss, or with one tower the mean cosine of different samples."""
    found: list[float] = []
    n = batches.shape[1]
    for some in torch.split(batches, max(1, 2**14 // n)):
        rows = files.rows(some.flatten())
        places = torch.arange(len(rows)).view(-1, n)
        if files.towers == 2:
            found += batch_misses(rows, places, tau).tolist()
        else:
            sums = rows[:, 0].view(len(some), n, -1).sum(1).square().sum(1)  # n + n (n - 1) mean
            found += ((sums - n) / (n * (n - 1))).tolist()
    return found


def _matrix(path: Path) -> Any:
    """The matrix in a file; mapped, if it is in .npy format."""
    if path.suffix.lower() != ".npy" or not path.is_file():
        return load_embeddings(path).numpy()
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as reason:
        raise DataError(f"{path}: damaged, or not an array of numbers ({reason})") from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise DataError(
            f"{path} holds {matrix.dtype} of shape {matrix.shape}, expected numbers (rows, d)"
        )
    return matrix
