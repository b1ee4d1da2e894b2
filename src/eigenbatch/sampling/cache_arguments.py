"""Arguments of a cache: ids, devices and dtypes, checked and converted."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenbatch.checks import check_type, described, ids_tensor
from eigenbatch.core.precision import check_matrix, unit_rows
from eigenbatch.errors import ParameterError, ShapeError


def device_of(device: torch.device | str) -> torch.device:
    """The device; raises ParameterError if torch does not know it or this machine lacks it."""
    check_type(device, (torch.device, str), "device")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as reason:  # no CUDA is an AssertionError
        raise ParameterError(f"device {str(device)!r} cannot be used here: {reason}") from None


def index_of(ids: Tensor | Sequence[int], size: int, device: torch.device) -> Tensor:
    """`ids` as an index into the rows; raises unless it is a vector of known range."""
    index = ids_tensor(ids)
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise ShapeError(
            f"ids must be a vector of integers, got {index.dtype} of shape {tuple(index.shape)}"
        )
    low, high = (int(bound) for bound in index.aminmax()) if len(index) else (0, 0)
    if low < 0 or high >= size:
        raise ParameterError(
            f"ids must be in 0 ... {size - 1}, got {low} ... {high}: was the cache made "
            "with size=len(dataset)?"
        )
    return index.to(device, torch.int64)


def tower_parts(
    z: Tensor, second: Tensor | None, *, count: int, dim: int, towers: int
) -> list[Tensor]:
    """Unit rows (count, dim) of every tower; raises unless they are what the cache stores."""
    if (second is not None) != (towers == 2):
        raise ShapeError(
            f"a cache with towers={towers} stores {towers} embeddings of a sample: call "
            f"update({'ids, z' if towers == 1 else 'ids, z1, z2'}); second is {described(second)}"
        )
    parts = {"z": z} if second is None else {"z": z, "second": second}
    for name, part in parts.items():
        check_matrix(part, name, least=0)
        if part.shape != (count, dim):
            raise ShapeError(
                f"{count} ids and embeddings of shape {tuple(part.shape)}: each id needs one "
                f"row of dimension {dim}"
            )
    return [unit_rows(part.detach(), name) if count else part for name, part in parts.items()]


def last_occurrences(ids: Tensor) -> Tensor:
    """(u,) position of the last occurrence of each distinct id.

    Assigning to repeated indices keeps an undefined one of them.
    """
    ascending, position = ids.sort(stable=True)
    last = torch.ones_like(ascending, dtype=torch.bool)
    last[:-1] = ascending[1:] != ascending[:-1]
    return position[last]


def dtype_name(dtype: torch.dtype) -> str:
    """As in `torch.<name>`."""
    return str(dtype).removeprefix("torch.")
