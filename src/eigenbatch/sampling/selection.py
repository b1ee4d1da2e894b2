"""One batch: from candidates and their cached embeddings to a choice and its statistics."""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.coverage import Candidates
from eigenbatch.selectors.offer import (
    Offer,
    complete,
    completes,
    distinct,
    parts_of,
    places_of,
)
from eigenbatch.selectors.rule import Rule
from eigenbatch.selectors.selector import Selector, shuffled

COPIED = 4
"""Rows of a matrix product that take as long as one row that is copied first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What was chosen for one batch, and from what. Ratios are computed when asked for.

    Args:
        epoch: number of the epoch.
        batch: number of the batch within the epoch.
        ids: (n,) the global batch.
        ages: (n,) updates since each sample was embedded; -1: it has no embedding.
        due: samples that were taken because they were buffered longest.
        seconds: time spent reading the cache and choosing.
        rows: (at most n, d) cached embeddings of the batch, as far as they are known.
        baseline: embeddings of as many candidates at random.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Greedy, SpectralBatchSampler
        >>> cache = EmbeddingCache(100, dim=8)
        >>> cache.update(torch.arange(100), torch.randn(100, 8))
        >>> sampler = SpectralBatchSampler(cache, 10, Greedy())
        >>> batch = next(iter(sampler))
        >>> sampler.last.ids.tolist() == batch, sampler.last.unknown
        (True, 0)
    """

    epoch: int
    batch: int
    ids: Tensor
    ages: Tensor
    due: int
    seconds: float
    rows: Tensor
    baseline: Tensor

    @property
    def participation_ratio(self) -> float:
        """R_eff of the batch as cached; NaN if nothing of it is known."""
        return _ratio(self.rows)

    @property
    def baseline_participation_ratio(self) -> float:
        """R_eff of as many candidates at random: what the batch would be without selection."""
        return _ratio(self.baseline)

    @property
    def unknown(self) -> int:
        """How many were taken without a cached embedding."""
        return len(self.ids) - len(self.rows)

    @property
    def mean_age(self) -> float:
        """Mean age of the known rows in the batch, in updates; NaN if there are none."""
        return self.ages[self.ages >= 0].double().mean().item()

    def scalars(self) -> dict[str, float]:
        """For a logger."""
        return {
            "sampler/participation_ratio": self.participation_ratio,
            "sampler/baseline_participation_ratio": self.baseline_participation_ratio,
            "sampler/mean_age": self.mean_age,
            "sampler/unknown": self.unknown,
            "sampler/seconds": self.seconds,
        }


def _ratio(rows: Tensor) -> float:
    return participation_ratio(rows) if len(rows) else math.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A batch to be chosen, with all that the choice depends on; it reads no cache and no clock."""

    epoch: int
    batch: int
    batch_size: int
    due: int
    seeds: int  # of the first candidates, that a selector may start from
    most_unknown: int  # how many unknown candidates may be taken before the selector chooses
    ids: Tensor  # (k,) candidates, the longest buffered first
    ages: Tensor  # (k,) -1 unknown
    rows: Tensor  # embeddings: of the known ones, in the same order; of all samples, if `whole`
    towers: int
    whole: bool
    must_fill: bool  # every sample has to be used: a rule that leaves too few rows is relaxed
    generator: torch.Generator
    seconds: float

    @classmethod
    def read(
        cls,
        cache: EmbeddingCache,
        candidates: Candidates | None,
        selector: Selector,
        *,
        epoch: int,
        batch: int,
        batch_size: int,
        most_unknown: int,
        in_place: bool,
        must_fill: bool,
        generator: torch.Generator,
    ) -> "Request":
        """Copy the present embeddings and ages of the candidates from the cache.

        Without candidates all samples are. in_place: the rows of all samples are used where they
        are, if that takes less time; then the choice must be made before the next update.
        """
        start = time.perf_counter()
        ids = torch.arange(cache.size) if candidates is None else candidates.ids
        ages = cache.age(None if candidates is None else ids).cpu()
        whole = in_place and COPIED * len(ids) >= cache.size
        if whole:
            rows = cache.unit_rows()
        elif completes(selector):
            rows = cache.unit_rows(ids[ages >= 0])
        else:
            rows = cache.get(ids[ages >= 0])
        return cls(
            epoch=epoch,
            batch=batch,
            batch_size=batch_size,
            due=0 if candidates is None else candidates.due,
            seeds=0 if candidates is None else candidates.seeds,
            most_unknown=most_unknown,
            ids=ids,
            ages=ages,
            rows=rows,
            towers=cache.towers if completes(selector) else 1,
            whole=whole,
            must_fill=must_fill,
            generator=generator,
            seconds=time.perf_counter() - start,
        )

    def choose(self, selector: Selector) -> Selection:
        """Fill the batch: overdue ids, uncached ids (random), then the selector's picks."""
        start = time.perf_counter()
        known = self.ages >= 0  # (k,)
        uncached = (~known).nonzero().squeeze(1)
        uncached = uncached[self._shuffled(len(uncached))]
        first = uncached[: self.most_unknown].tolist()
        taken = list(dict.fromkeys([*range(self.due), *first]))
        row_of = self.ids if self.whole else known.cumsum(0) - 1  # position -> row
        barred = self._barred(known)
        if len(taken) < self.batch_size:
            picks = self._selected(known, row_of, barred, taken, selector)
            taken = list(dict.fromkeys([*taken, *picks.tolist(), *uncached.tolist()]))
        batch = torch.tensor(taken[: self.batch_size])  # (n,) positions
        batch = batch[self._shuffled(len(batch))]  # so that no rank gets all overdue ids
        chosen = row_of[batch[known[batch]]]
        baseline = distinct(len(chosen), barred, len(self.rows), self.generator)
        return Selection(
            epoch=self.epoch,
            batch=self.batch,
            ids=self.ids[batch],
            ages=self.ages[batch],
            due=self.due,
            rows=self._anchors_at(chosen),
            baseline=self._anchors_at(baseline),
            seconds=self.seconds + time.perf_counter() - start,
        )

    def _barred(self, known: Tensor) -> Tensor | None:
        """(rows,) True where a row is not that of a known candidate; None: all are."""
        everything = bool(known.all())
        if not self.whole or (len(known) == len(self.rows) and everything):
            return None
        barred = np.ones(len(self.rows), dtype=bool)
        barred[(self.ids if everything else self.ids[known]).numpy()] = False
        return torch.from_numpy(barred)  # numpy scatters several times as fast as torch

    def _selected(
        self,
        known: Tensor,
        row_of: Tensor,
        barred: Tensor | None,
        taken: list[int],
        selector: Selector,
    ) -> Tensor:
        """Positions of a whole batch of known candidates, or of all if there is nothing to choose.

        The selector always chooses a whole batch, because a window or a rule is about whole
        batches. It begins with the known ones among those taken. What does not fit because unknown
        ones were taken is dropped afterwards.
        """
        count = int(known.count_nonzero())
        ruled = any(isinstance(part, Rule) for part in parts_of(selector))
        if count < self.batch_size or (count == self.batch_size and not ruled):
            return places_of(known)[self._shuffled(count)]
        begun = torch.tensor(taken, dtype=torch.int64)
        device = self.rows.device
        offer = Offer(
            rows=self.rows,
            towers=self.towers,
            given=row_of[begun[known[begun]]].to(device),
            seeds=row_of[: self.seeds].to(device),
            barred=None if barred is None else barred.to(device),
            must_fill=self.must_fill,
        )
        choose = selector
        if hasattr(selector, "bind"):  # isinstance of a protocol takes 40 microseconds
            choose = selector.bind(torch.arange(len(self.rows)) if self.whole else self.ids[known])
        chosen = complete(choose, offer, self.batch_size, generator=self.generator).cpu()
        if not self.whole:
            return places_of(known)[chosen]
        places = np.empty(len(self.rows), dtype=np.int64)
        places[self.ids.numpy()] = np.arange(len(self.ids))
        return torch.from_numpy(places[chosen.numpy()])

    def _anchors_at(self, index: Tensor) -> Tensor:
        """The first tower of some rows, a copy; several times faster than indexing."""
        anchors = self.rows[:, : self.rows.shape[1] // self.towers]
        return anchors.index_select(0, index.to(self.rows.device))

    def _shuffled(self, count: int) -> Tensor:
        return shuffled(count, self.generator, torch.device("cpu"))
