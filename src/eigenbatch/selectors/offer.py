"""What a sampler offers a selector: unit rows, which of them are in the batch, which are barred.

A selector need only be a callable on a matrix. One that also has `complete` can finish a batch that
was begun, uses both towers, and is spared the copying and normalising of the pool.

Letters: k rows offered, g rows given, n rows of the batch, d dimension of a tower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from eigenbatch.checks import check_flags, check_generator, check_tensor, check_type, whole
from eigenbatch.core.precision import no_autocast, unit_rows
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.selectors.selector import (
    Selector,
    bound,
    check_sizes,
    checked_indices,
    may_stop_early,
    shuffled,
)

Adjust = Callable[[Tensor], None]
"""Tells a selector which rows the batch has in the end."""


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Offer:
    """Candidates for one batch.

    Args:
        rows: (k, d) unit rows, or (k, 2d) for two towers: an anchor and its key in one row.
        towers: 1 or 2.
        given: (g,) rows that are in the batch already.
        seeds: rows to start from, for a selector that does; an index has found their neighbours.
        barred: (k,) True where a row must not be chosen; None: all may be.
        must_fill: the batch must be full, because every sample has to be used. A rule that leaves
            too few rows then fills the batch, also with shortfall="raise".
        products: what `similarity` has computed: a guard asks several times for one batch.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors.greedy import Greedy
        >>> from eigenbatch.selectors.offer import Offer
        >>> offer = Offer(rows=torch.eye(6), given=torch.tensor([4]))
        >>> Greedy().complete(offer, 3)[0].item()  # the batch begins with what was given
        4
    """

    rows: Tensor
    towers: int = 1
    given: Tensor = field(default_factory=_none)
    seeds: Tensor = field(default_factory=_none)
    barred: Tensor | None = None
    must_fill: bool = False
    products: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("rows", "given", "seeds"):
            check_tensor(getattr(self, name), name)
        check_type(self.barred, (Tensor, type(None)), "barred")
        whole(self.towers, "towers", least=1)
        check_flags(must_fill=self.must_fill)
        for name in ("given", "seeds"):
            object.__setattr__(self, name, getattr(self, name).to(self.rows.device))

    @classmethod
    def of(cls, pool: Tensor, batch_size: int) -> "Offer":
        """All rows of a plain pool, on the unit sphere; raises on bad sizes and rows."""
        check_sizes(pool, batch_size)
        return cls(rows=unit_rows(pool.detach(), "pool"))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def anchors(self) -> Tensor:
        """(k, d) the first tower."""
        return self.rows[:, : self.rows.shape[1] // self.towers]

    @property
    def keys(self) -> Tensor:
        """(k, d) the last tower; the first if there is only one."""
        return self.rows[:, -(self.rows.shape[1] // self.towers) :]

    @property
    def taken(self) -> Tensor | None:
        """(k,) True where a row can not be chosen: it is barred, or given. None: all can be."""
        if not len(self.given):
            return self.barred
        mask = torch.zeros(len(self), dtype=torch.bool, device=self.rows.device)
        if self.barred is not None:
            mask |= self.barred
        mask[self.given] = True
        return mask

    @property
    def free(self) -> Tensor:
        """Rows that can be chosen."""
        taken = self.taken
        if taken is None:
            return torch.arange(len(self), device=self.rows.device)
        return places_of(~taken)

    def barring(self, rows: Tensor) -> "Offer":
        """The same offer with further rows (k,) barred."""
        return replace(self, barred=rows if self.barred is None else self.barred | rows)

    def similarity(self, index: Tensor) -> Tensor:
        """(k, len(index)) how hard a negative each row is for each of some rows.

        `<anchor_i, key_j>`, in the mean of both directions. One tall product: on a CPU it is twice
        as fast as the flat one.
        """
        place = tuple(index.tolist())
        if place not in self.products:
            some = self.rows[index] / self.towers  # (s, w)
            if self.towers == 2:
                some = torch.cat(some.chunk(2, dim=1)[::-1], dim=1)  # keys meet anchors
            with no_autocast(self.rows):
                self.products[place] = self.rows @ some.T
        return self.products[place].clone()

    def shuffled(self, generator: torch.Generator | None) -> Tensor:
        """The rows that can be chosen, in random order."""
        order = shuffled(len(self), generator, self.rows.device)
        taken = self.taken
        return order if taken is None else order[~taken[order]]

    def some(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count,) random rows that can be chosen."""
        drawn = distinct(count, self.taken, len(self), generator)
        return drawn.to(self.rows.device)

    def starts(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count,) rows to start from that can be chosen: seeds, then random ones."""
        taken = self.taken
        seeds = self.seeds if taken is None else self.seeds[~taken[self.seeds]]
        if not len(seeds):
            return self.some(count, generator)
        rest = replace(self, given=torch.cat([self.given, seeds]))
        return torch.cat([seeds[:count], rest.some(max(0, count - len(seeds)), generator)])


def places_of(mask: Tensor) -> Tensor:
    """Where a mask (k,) is True, ascending; on a CPU numpy finds it several times as fast."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


def distinct(
    count: int, taken: Tensor | None, size: int, generator: torch.Generator | None
) -> Tensor:
    """(count,) distinct random numbers below `size` where `taken` is False; fewer if need be.

    Of many rows a few are drawn until enough differ: a permutation of all would take longer.
    """
    source = None if generator is None else generator.device
    if 0 < 64 * count <= size:
        drawn = torch.randint(size, (4 * count,), generator=generator, device=source)
        if taken is not None:
            drawn = drawn[~taken.to(drawn.device)[drawn]]
        numbers = list(dict.fromkeys(drawn.tolist()))[:count]
        if len(numbers) == count:
            return torch.tensor(numbers, dtype=torch.int64)
    order = torch.randperm(size, generator=generator, device=source).cpu()
    return (order if taken is None else order[~taken.cpu()[order]])[:count]


class Completing(Protocol):
    """Something that can finish a batch which was begun."""

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`batch_size` distinct rows of the offer: the given ones, then its own choice."""
        ...


class CompletingSelector(Selector, Completing, Protocol):
    """A selector that can also complete a batch."""


def completes(selector: object) -> TypeGuard["CompletingSelector"]:
    """Whether to call `complete`.

    Not if a subclass changed only `__call__`, nor for a selector with `normalize=False`, because
    the rows of an offer are on the unit sphere.
    """
    if not hasattr(selector, "complete"):  # isinstance of a protocol takes 40 microseconds
        return False
    if not getattr(selector, "normalize", True):
        return False
    for kind in type(selector).__mro__:
        if "complete" in vars(kind):
            return True
        if "__call__" in vars(kind):
            return False
    return True


def searched_by(selector: object) -> int | None:
    """How many candidates a selector should be offered; None: any number."""
    searched: int | None = getattr(selector, "searched", None)
    return searched


def seeds_of(selector: object) -> int | None:
    """How many samples of a batch it starts from; None: it builds batches in another way.

    Where every sample must be used, the longest-waiting ones are the seeds: no sample is avoided
    for ever, and the rest of the batch is free.
    """
    seeds: int | None = getattr(selector, "seeds", None)
    return seeds


def draws_at_random(selector: object) -> bool:
    """Whether the next batch of a selector that searches for neighbours is a random one."""
    return bool(getattr(selector, "draws_at_random", False))


def complete(
    selector: Selector, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """A batch that begins with the given rows, by any selector.

    One that cannot complete a batch chooses a whole one from the first tower; of it, rows that are
    not given are added until the batch is full.
    """
    if completes(selector):
        chosen = selector.complete(offer, batch_size, generator=generator)
        fewer = may_stop_early(selector) and not offer.must_fill
        chosen = checked_indices(chosen, selector, batch_size, len(offer), fewer=fewer)
        if offer.barred is not None and offer.barred[chosen].any():
            wrong = chosen[offer.barred[chosen]].tolist()
            raise ParameterError(
                f"{type(selector).__name__}.complete returned barred rows {wrong!s:.100}: it must "
                "not add a row where offer.barred is True (offer.free are those it may add)"
            )
        return chosen
    back = None if offer.barred is None else places_of(~offer.barred)
    pool = allowed_rows(offer)
    selector = selector if back is None else bound(selector, back, len(offer))
    picks = selector(pool, batch_size, generator=generator)
    picks = checked_indices(picks, selector, batch_size, len(pool))
    picks = picks if back is None else back[picks]
    if not len(offer.given):
        return picks
    fresh = picks[~torch.isin(picks, offer.given)]
    return torch.cat([offer.given, fresh])[:batch_size]


def allowed_rows(offer: Offer) -> Tensor:
    """(k, d) the first tower of all rows that are not barred."""
    return offer.anchors if offer.barred is None else offer.anchors[~offer.barred]


@runtime_checkable
class Settling(Protocol):
    """A selector that must be settled before it can be called several times for one batch."""

    def settle(self, offer: Offer) -> tuple[Selector, Adjust]:
        """What chooses the next batch, and what to call with the chosen one."""
        ...


def settled(selector: Selector, offer: Offer) -> tuple[Selector, Adjust]:
    """What to call several times for one and the same batch, and once with the final batch."""
    return selector.settle(offer) if isinstance(selector, Settling) else (selector, _nothing)


def _nothing(batch: Tensor) -> None:
    """For selectors that learn nothing from a batch."""


def observe_training(
    selector: object,
    latest: Callable[[], tuple[Tensor, Tensor, int] | None],
    batch_size: int,
) -> None:
    """Tell a selector and those it is made of about the last training step; `latest` reads it.

    Nothing is read for selectors that do not learn from it.
    """
    for part in parts_of(selector):
        if hasattr(part, "observe_training"):
            part.observe_training(latest(), batch_size)


def parts_of(selector: object) -> Iterator[object]:
    """The selectors that a rule or a schedule is made of, and itself, the innermost first."""
    for part in getattr(selector, "_parts", ()):
        yield from parts_of(part)
    yield selector


def check_data(selector: object, *, towers: int, size: int, kept_rows: int) -> None:
    """Raise before the first batch if a selector, or a part of it, cannot work with this data.

    Args:
        selector: what chooses batches.
        towers: embeddings of a sample in the cache.
        size: samples of the data set.
        kept_rows: in a batch that must keep the selector's rules; 0 if none must.
    """
    for part in parts_of(selector):
        if hasattr(part, "_check_towers"):
            part._check_towers(towers)
        if hasattr(part, "_check_samples"):
            part._check_samples(size, kept_rows)


def check_offer(offer: Offer, batch_size: int, generator: torch.Generator | None) -> None:
    """Raise unless `batch_size` rows can be chosen from the offer."""
    check_type(offer, Offer, "offer", ": make one by Offer.of(pool, batch_size)")
    whole(batch_size, "batch_size", least=1)
    check_generator(generator)
    if len(offer.given) > batch_size:
        raise ShapeError(
            f"{len(offer.given)} rows are given, but batch_size is {batch_size}: the batch is full"
        )
    taken = offer.taken
    free = len(offer) - (0 if taken is None else int(taken.count_nonzero()))
    if len(offer.given) + free < batch_size:
        raise ShapeError(
            f"the offer has {len(offer.given)} given rows and {free} to choose from, but "
            f"batch_size is {batch_size}"
        )


def mapped(offer: Offer) -> tuple[Tensor, Tensor]:
    """The given rows, then those that can be chosen, as (rows, their indices in the offer).

    For searches on a plain matrix; without a given or barred row nothing is copied.
    """
    if offer.taken is None:
        return offer.anchors, offer.free
    index = torch.cat([offer.given, offer.free])
    return offer.anchors[index], index
