"""One inference pass over the data, so that the first batch can be selected."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, described, ids_tensor
from eigenbatch.errors import ArgumentTypeError, ShapeError
from eigenbatch.processes import rank_and_world

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

    def update(
        self, ids: Tensor, z: Tensor, second: Tensor | None = None, *, trained: bool = True
    ) -> None:
        """Store rows."""
        ...


def fill(
    cache: Fillable, embed: Embed, loader: Iterable[tuple[Any, Any]], progress: Progress | bool
) -> int:
    """Embed the batches that hold an unknown row, and store those rows; how many there were."""
    check_callable(embed, "embed", "a function of a batch")
    if not isinstance(progress, bool):
        check_callable(progress, "progress", "a function of two counts")
    if not isinstance(loader, Iterable) or isinstance(loader, str):
        raise ArgumentTypeError(
            f"loader must yield (ids, batch), as DataLoader(IndexedDataset(data)) does, got "
            f"{described(loader)}"
        )
    known = before = int(cache.filled.sum())
    with _shown(progress, before, cache.size) as show:
        for pair in loader:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ArgumentTypeError(f"loader must yield (ids, batch), got {described(pair)}")
            ids, batch = ids_tensor(pair[0]), pair[1]
            unknown = cache.age(ids).cpu() < 0  # (b,)
            if unknown.any():
                with torch.no_grad():
                    parts = _towers(embed(batch), len(ids))
                rows = (part[unknown.to(part.device)] for part in parts)
                cache.update(ids[unknown], *rows, trained=False)
                known += len(set(ids[unknown].tolist()))
            show(known, cache.size)
    return known - before


def _towers(rows: object, count: int) -> tuple[Tensor, ...]:
    """What `embed` returned, one matrix per tower."""
    parts = tuple(rows) if isinstance(rows, tuple | list) else (rows,)
    wanted = f"embed must return embeddings ({count}, dim), or a pair of them with two towers"
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, Tensor) for part in parts):
        raise ArgumentTypeError(f"{wanted}, got {described(rows)}")
    for part in parts:
        if part.ndim != 2 or len(part) != count:
            raise ShapeError(f"{wanted}, got shape {tuple(part.shape)} for {count} ids")
    return parts


@contextmanager
def _shown(progress: Progress | bool, known: int, size: int) -> Iterator[Progress]:
    """What to call after every batch: the caller's function, a bar of tqdm, or nothing."""
    bar = _bar(known, size) if progress is True else None
    if bar is None:
        yield _nothing if isinstance(progress, bool) else progress
        return
    with bar:
        yield lambda done, _: bar.update(done - bar.n)


def _bar(known: int, size: int) -> Any:
    """A progress bar in the first process of a terminal or notebook; None without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    disable = None if rank_and_world()[0] == 0 else True  # None: unless it is no terminal
    return tqdm(total=size, initial=known, desc="Filling the cache", unit="row", disable=disable)


def _nothing(known: int, size: int) -> None:
    """No progress is shown."""
