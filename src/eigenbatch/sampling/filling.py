"""One inference pass over the data, so that the first batch can be selected."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, described, ids_tensor
from eigenbatch.errors import ArgumentTypeError

Embed = Callable[[Any], Tensor | tuple[Tensor, Tensor]]
Progress = Callable[[int, int], None]


class Fillable(Protocol):
    """What is needed of a cache."""

    size: int

    @property
    def filled(self) -> Tensor:
        """(size,) True where a row is known."""
        ...

    def age(self, ids: Tensor) -> Tensor:
        """(n,) -1 where a row is unknown."""
        ...

    def update(self, ids: Tensor, z: Tensor, second: Tensor | None = None) -> None:
        """Store rows."""
        ...


def fill(
    cache: Fillable, embed: Embed, loader: Iterable[tuple[Any, Any]], progress: Progress | None
) -> int:
    """Embed the batches that hold an unknown row, and store those rows; how many there were."""
    check_callable(embed, "embed", "a function of a batch")
    if progress is not None:
        check_callable(progress, "progress", "a function of two counts")
    if not isinstance(loader, Iterable) or isinstance(loader, str):
        raise ArgumentTypeError(
            f"loader must yield (ids, batch), as DataLoader(IndexedDataset(data)) does, got "
            f"{described(loader)}"
        )
    known = before = int(cache.filled.sum())
    for pair in loader:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentTypeError(f"loader must yield (ids, batch), got {described(pair)}")
        ids, batch = ids_tensor(pair[0]), pair[1]
        unknown = cache.age(ids).cpu() < 0  # (b,)
        if unknown.any():
            with torch.no_grad():
                rows = embed(batch)
            parts = rows if isinstance(rows, tuple) else (rows,)
            cache.update(ids[unknown], *(part[unknown.to(part.device)] for part in parts))
            known += int(unknown.sum())
        if progress is not None:
            progress(known, cache.size)
    return known - before
