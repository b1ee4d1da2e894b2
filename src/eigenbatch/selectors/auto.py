"""From random to hard batches, by the miss that the cache predicts."""

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean
from typing import Any, get_args

import torch
from torch import Tensor

from eigenbatch.checks import (
    check_choice,
    check_entries,
    check_tensor,
    check_type,
    is_count,
    is_flag,
    is_number,
    real,
    whole,
)
from eigenbatch.core.contrast import Layout
from eigenbatch.core.precision import check_matrix, positive_scalar, unit_rows
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors.duplicates import NoNearDuplicates
from eigenbatch.selectors.neighbours import SEARCHED, Neighbours
from eigenbatch.selectors.offer import Adjust, Offer, check_offer, complete
from eigenbatch.selectors.predicted_miss import LOOKED_AT, misses, predicted_miss
from eigenbatch.selectors.random import Random
from eigenbatch.selectors.selector import Selector
from eigenbatch.selectors.unseen import UnseenMiss, is_state

STEPS = (64, 16)
"""Seeds of the batches between random ones and the hardest."""

SHARP = 0.07
"""At larger temperatures the miss is large even where every positive is the most similar of all
(translations at tau 0.3: miss 0.81, yet neighbours gain). So hardness is judged at this one."""


EASY = 0.5
"""Random batches with a larger miss are hard already: an anchor gives its negatives together more
weight than its positive."""

FEW_PARTS = 8
"""Updates of the cache with at most half a batch, in a row, before that is said."""

PERSISTENT = 1024
"""Consecutive rows for which random batches are easy, and unseen samples by estimate, before
batches become hard the first time: a single batch may be easy by chance. With small batches it is
many of them, so that a return to random batches must not cost it again."""


class Auto:
    """Hard batches where random ones are easy, random batches where they are hard already.

    The miss is the share of the softmax that negatives get. From both cached towers, or both views,
    the miss of a batch is computed before the batch is used. Random batches are easy if it is below
    0.5, the first time for 1,024 rows in a row: then the next batch is one step harder, and so on
    while the miss is below `target`; above it the next batch is one step easier. The steps: random,
    then neighbours of 64, 16 and `seeds` seeds. A temperature above 0.07 makes the miss large
    without making the batch hard: there it is judged as it would be at 0.07. While its batches are
    random, `SpectralBatchSampler` draws the same ones as for `Random` with that seed (coverage
    "epoch", or "free" once every sample is known; not inside a rule or a schedule).

    Samples it is trained on can be easy because the model memorised them. So it begins with random
    batches and stays there while unseen samples would be hard. `SpectralBatchSampler` lets it
    estimate that from the embeddings of the training steps (see `unseen.py`), if two towers are
    cached; it measures it if it is told `held_out` pairs now and then.

    Args:
        tau: temperature of the loss, or a function that returns it if it is learned.
        target: the miss that hard batches aim for. At 0.8 an anchor gives its negatives together
            four times the weight of its positive. A target below 0.5 is also the limit for random
            batches.
        seeds: seeds of the hardest batches.
        guard: cosine above which two samples are near-duplicates and not put into one hard batch;
            None: no guard.
        positive: similarity of positive pairs, where only one tower is cached; not used with two.
            A key is assumed to be its anchor, turned away by that much in a direction of its own.
        layout: negatives of the loss: "cross", the keys of other samples (CLIP, sentence pairs);
            "paired", both views of other samples (SimCLR's NT-Xent).

    Examples:
        >>> import torch
        >>> from eigenbatch import Auto, EmbeddingCache, SpectralBatchSampler
        >>> cache = EmbeddingCache(1000, dim=16, towers=2)
        >>> sampler = SpectralBatchSampler(cache, 50, Auto(tau=0.07), coverage="free")
    """

    searched = SEARCHED

    def __init__(
        self,
        tau: float | Callable[[], float],
        *,
        target: float = 0.8,
        seeds: int = 4,
        guard: float | None = 0.95,
        positive: float | None = None,
        layout: Layout = "cross",
    ) -> None:
        check_choice(layout, get_args(Layout), "layout")
        if not callable(tau):
            positive_scalar(tau, "tau")
        if positive is not None and not 0 < real(positive, "positive") <= 1:
            raise ParameterError(f"positive must lie in (0, 1], got {positive}")
        if guard is not None and not -1 <= real(guard, "guard") < 1:
            raise ParameterError(f"guard must lie in [-1, 1), got {guard}")
        if not 0 < real(target, "target") < 1:
            raise ParameterError(f"target must lie in (0, 1), got {target}")
        self.tau, self.target = tau, target
        self.seeds = whole(seeds, "seeds", least=1)
        self.guard, self.positive, self.layout = guard, positive, layout
        self.level = 0  # of the next batch; 0 is random
        self.miss: float | None = None  # predicted for the last batch
        self.unseen_miss: float | None = None  # of random batches of unseen pairs
        self._told = False  # whether unseen_miss was measured, by held_out
        self._estimate = UnseenMiss()  # from training steps
        self._observed = 0  # number of the last update that it was estimated from
        self._begun = False  # True from the first hard batch on: nothing is estimated any more
        self._below = 0  # consecutive rows with an estimate of easy batches
        self._easy_rows = 0  # consecutive rows of random batches that were easy
        self._partial = 0  # consecutive updates of at most half a batch
        self._blind = False  # whether steps are to be observed, and there was none yet
        self._counts = [*(count for count in STEPS if count > seeds), seeds]
        hard: Iterable[Selector] = map(Neighbours, self._counts)
        if guard is not None:  # one rule for all levels: it warns once
            hard = map(NoNearDuplicates(Random(), guard, shortfall="fill")._around, hard)
        self._levels: list[Selector] = [Random(), *hard]

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; a plain pool has one tower, so `positive` must be known."""
        return self.complete(Offer.of(pool, batch_size), batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Complete a batch at the present level, then adjust the level by its predicted miss."""
        check_offer(offer, batch_size, generator)
        selector, adjust = self.settle(offer)
        batch = complete(selector, offer, batch_size, generator=generator)
        adjust(batch)
        return batch

    def _check_towers(self, towers: int) -> None:
        """Raise unless the miss can be predicted from so many towers."""
        if towers == 1 and self.positive is None:
            raise ParameterError(
                "Auto predicts the miss from positive pairs: cache both towers, or both views "
                "(EmbeddingCache(..., towers=2)), or pass positive=, their similarity"
            )

    def settle(self, offer: Offer) -> tuple[Selector, Adjust]:
        """The selector of the present level, and what adjusts the level by the chosen batch."""
        check_type(offer, Offer, "offer")
        self._check_towers(offer.towers)
        return self._levels[self.level], partial(self._adjust, offer)

    def held_out(self, z1: Tensor, z2: Tensor, batch_size: int) -> float:
        """Tell it pairs that are not trained on, with present embeddings, say every epoch.

        If random batches of them are hard, so are their neighbours, and what makes training pairs
        easy is memory: all batches are random until it is told better. Several processes must all
        be told the same pairs, or they would choose different batches.

        Args:
            z1: (m, d) embeddings of one tower or view.
            z2: (m, d) those of the other, in the same order.
            batch_size: as in training; m must be at least that.

        Returns:
            The mean miss of batches of them, also kept as `unseen_miss`; at a temperature of at
            most 0.07, as it is judged.
        """
        check_matrix(z1, "z1")
        check_matrix(z2, "z2")
        if z1.shape != z2.shape or len(z1) < whole(batch_size, "batch_size", least=2):
            raise ShapeError(
                f"held-out pairs must be two matrices of one shape with at least batch_size = "
                f"{batch_size} rows, got {tuple(z1.shape)} and {tuple(z2.shape)}"
            )
        sides = unit_rows(z1.detach(), "z1"), unit_rows(z2.detach(), "z2")
        offer = Offer(rows=torch.cat(sides, dim=1), towers=2)
        order = torch.randperm(len(offer), generator=torch.Generator().manual_seed(0))
        batches = order[: len(offer) // batch_size * batch_size].view(-1, batch_size)
        tau = min(self._tau(), SHARP)
        self._told = True
        self.unseen_miss = fmean(
            predicted_miss(offer, batch, tau, layout=self.layout)
            for batch in batches.to(offer.rows.device)
        )
        if self._memorised:
            self.level = 0
        return self.unseen_miss

    def observe_training(self, step: tuple[Tensor, Tensor, int] | None, batch_size: int) -> None:
        """Estimate from a training step how hard unseen samples would be; the sampler calls this.

        It says nothing new after the first hard batch, and once `held_out` was told.

        Args:
            step: `EmbeddingCache.latest()`: (n, 2d) unit anchors and keys as they were in the step,
                (n,) how often each sample was trained on, and the number of the update; None:
                there was no step yet, so batches are random.
            batch_size: samples that are contrasted with each other; n may be several batches.
        """
        check_type(step, (tuple, type(None)), "step")
        whole(batch_size, "batch_size", least=1)
        if step is None:
            self._blind = self._observed == 0
            return
        rows, visits, update = step
        check_matrix(rows, "rows")
        check_tensor(visits, "visits")
        if visits.shape != rows.shape[:1]:
            raise ShapeError(f"{len(rows)} rows need as many visits, got {tuple(visits.shape)}")
        self._blind = False
        if whole(update, "update") <= self._observed or self._told or self._begun:
            return
        self._observed = update
        if min(len(rows), batch_size) < 2:
            return
        self._partial = self._partial + 1 if 2 * len(rows) <= batch_size else 0
        if self._partial == FEW_PARTS:
            warnings.warn(
                f"{FEW_PARTS} updates of the cache in a row held {len(rows)} rows or so of batches "
                f"of {batch_size}: Auto starts late, or never. Update it once per batch, with all "
                "its rows",
                NumericalWarning,
                stacklevel=2,
            )
        parts = max(1, len(rows) // batch_size)  # every parts-th row is a batch
        some = range(min(parts, -(-LOOKED_AT // batch_size)))
        found = [self._seen(rows[part::parts], visits[part::parts]) for part in some]
        self._estimate.observe(*(torch.cat(each) for each in zip(*found, strict=True)))
        self.unseen_miss = self._estimate.value
        below = self.unseen_miss is not None and self.unseen_miss < self.easy
        self._below = self._below + len(rows) if below else 0

    def _seen(self, rows: Tensor, visits: Tensor) -> tuple[Tensor, Tensor]:
        """Misses of rows of one batch, as they are judged, and their visits."""
        index, found = misses(rows, 2, min(self._tau(), SHARP), layout=self.layout)
        return found.cpu(), visits.to(index.device)[index].cpu()

    @property
    def _memorised(self) -> bool:
        """Whether unseen samples are hard, or were until lately."""
        if self.unseen_miss is None or (self._begun and not self._told):
            return False
        return self.unseen_miss >= self.easy if self._told else self._below < PERSISTENT

    @property
    def ready(self) -> bool:
        """Whether random batches of unseen samples are easy by now, as far as it knows."""
        return self._begun or (self.unseen_miss is not None and not self._memorised)

    @property
    def easy(self) -> float:
        """The miss below which random batches are easy."""
        return min(EASY, self.target)

    @property
    def draws_at_random(self) -> bool:
        """Whether the next batch is random; then the sampler draws it as it does for `Random`."""
        return self.level == 0

    def _tau(self) -> float:
        return positive_scalar(self.tau() if callable(self.tau) else self.tau, "tau")

    def _adjust(self, offer: Offer, batch: Tensor) -> None:
        """One step harder if the miss of the batch is below the limit of its level, else easier.

        A batch with as many seeds as samples is a random one, whatever its level is.
        """
        if len(batch) < 2:
            return
        tau = self._tau()
        predicted = partial(predicted_miss, offer, batch, layout=self.layout)
        self.miss = predicted(tau, self.positive)
        judged = self.miss if tau <= SHARP else predicted(SHARP, self.positive)
        random = self.level == 0 or self._counts[self.level - 1] >= len(batch)
        blind = self._blind and not self._told
        below = judged < (self.easy if random else self.target) and not (self._memorised or blind)
        if self.level == 0:
            self._easy_rows = self._easy_rows + len(batch) if below else 0
            below &= self._told or self._begun or self._easy_rows >= PERSISTENT
        self.level = min(max(0, self.level + (1 if below else -1)), len(self._levels) - 1)
        self._begun = self._begun or self.level > 0

    def state_dict(self) -> dict[str, Any]:
        """The level of the next batch, and what is known of unseen pairs."""
        return {
            "level": self.level,
            "unseen_miss": self.unseen_miss,
            "told": self._told,
            "begun": self._begun,
            "observed": self._observed,
            "below": self._below,
            "easy_rows": self._easy_rows,
            "estimate": self._estimate.state_dict(),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this selector."""
        entries = {
            "level": self._is_level,
            "unseen_miss": _is_miss,
            "told": is_flag,
            "begun": is_flag,
            "observed": is_count,
            "below": is_count,
            "easy_rows": is_count,
            "estimate": is_state,
        }
        check_entries(state, "Auto", entries)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the saved level."""
        self.check_state_dict(state)
        self.level, self.unseen_miss = state["level"], state["unseen_miss"]
        self._told, self._begun = state["told"], state["begun"]
        self._observed, self._below = state["observed"], state["below"]
        self._easy_rows = state["easy_rows"]
        self._estimate.load_state_dict(state["estimate"])

    def _is_level(self, value: object) -> bool:
        return is_count(value) and value < len(self._levels)  # type: ignore[operator]


def _is_miss(value: object) -> bool:
    return value is None or is_number(value)
