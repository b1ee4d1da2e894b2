"""Sums over anchors that add up over processes: gradients, bands, similarities.

Additive numbers: sums over anchors that merge exactly across processes.

A reading is made of means, and a mean over several processes is a sum of sums. Each record below
is a row of float64 sums; `vector()` is what an all_reduce needs and `from_vector` reads it back.

How the negatives lie: uniformity, negatives harder than the positive, look-alikes.

A duplicate of an anchor's sample among its negatives is a false negative. It cannot be told from
one similarity: augmentation spreads positives, and a hard negative may come close by chance. But a
duplicate is *as similar as a positive*, and stands apart from the other negatives, whose tail
thins out long before. So two counts are made against the mean positive similarity p and the mean
negative similarity s: negatives above p, and negatives above p - NEARLY (p - s).

Four counts over anchors say how far the task is solved: an anchor is solved when its positive beats
every negative, found when at most a tenth of its negatives beat the positive, misplaced when more
than half of them do. In a run that finds most positives, misplaced ones are wrong pairs.

What would a batch of neighbours be like? The most similar of n random samples is about as similar
as the nearest n / 4 of n^2 / 4, so an anchor is given N- / 4 further negatives that are as similar
as its hardest one: a' = log(e^a + (N- / 4) e^{(s_max - s+) / tau}), from which its miss follows.
"""

import math
from dataclasses import astuple, dataclass, fields
from typing import Self

import torch
from torch import Tensor

from eigenbatch.core.bands import BatchBand, VarianceBand, equation_v, theorem_terms
from eigenbatch.core.certified import certified_bounds, summable
from eigenbatch.core.contrast import Contrast, accumulated, no_autocast
from eigenbatch.core.infonce import BLOCK_ELEMENTS, InfoNCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Floats that are added field by field."""

    def vector(self) -> Tensor:
        """(k,) float64, in the order of the fields."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def from_vector(cls, vector: Tensor) -> Self:
        """The record whose `vector()` this is."""
        names = [field.name for field in fields(cls)]
        return cls(**dict(zip(names, vector.tolist(), strict=True)))

    def __add__(self, other: Self) -> Self:
        return self.from_vector(self.vector() + other.vector())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorSums(Sums):
    """Sums over anchors of what InfoNCE and the certified band say about each."""

    anchors: float
    loss: float
    miss: float
    squared_miss: float
    shortfall: float  # 1 - rho_i
    positive_similarity: float
    squared_positive_similarity: float
    negative_similarity: float  # mean over an anchor's negatives
    effective_negatives: float
    squared_gradient: float
    fourth_power: float  # gamma_i^2
    certified_lower: float
    certified_upper: float

    @property
    def certified(self) -> BatchBand:
        """The certified band of the batch mean."""
        return BatchBand(
            lower=self.certified_lower / self.anchors,
            measured=self.squared_gradient / self.anchors,
            upper=self.certified_upper / self.anchors,
        )

    def paper_band(
        self, sigma: float, negative_count: int, tau: float, *, smoothness: float = 0.5
    ) -> BatchBand:
        """The paper's batch-level band (appendix "Exact upper-band expression", boxed).

        `sigma` bounds every sigma*^(i): (n / (n-2)) sigma-hat, or the queue's sigma_Q + eps_K.
        """
        scale = self.squared_miss / self.anchors / tau**2
        terms = theorem_terms(scale, sigma, tau, noise=1 / negative_count, smoothness=smoothness)
        return BatchBand(
            lower=(self.shortfall / self.anchors / tau) ** 2,
            measured=self.squared_gradient / self.anchors,
            upper=sum(terms.values()),
        )

    def variance_band(self, sigma: float, negative_count: int, tau: float) -> VarianceBand:
        """Equation (V) with `sigma` in place of the mean of sigma*^(i)."""
        mean = self.squared_gradient / self.anchors
        return equation_v(
            squared_miss=self.squared_miss / self.anchors,
            negative_count=negative_count,
            tau=tau,
            sigma=sigma,
            measured=max(0.0, self.fourth_power / self.anchors - mean**2),
        )


@torch.no_grad()
def anchor_sums(
    contrast: Contrast, values: InfoNCE, *, eigenpairs: tuple[Tensor, Tensor] | None = None
) -> AnchorSums:
    """Sums over the anchors of `contrast`; `values` is its InfoNCE.

    eigenpairs: `leading_directions(candidates, 1)`, for callers that have them already.
    """
    miss = torch.sigmoid(accumulated(values.log_odds))  # (n,)
    positive = (contrast.anchors * values.positives).sum(1)  # (n,)
    lower, gamma, upper = certified_bounds(values, 1, eigenpairs=eigenpairs)  # (n,) each
    summable_lower, summable_upper = summable(lower, upper)
    columns = {
        "anchors": torch.ones_like(miss),
        "loss": values.loss,
        "miss": miss,
        "squared_miss": miss.square(),
        "shortfall": miss * accumulated(values.margin),
        "positive_similarity": positive,
        "squared_positive_similarity": accumulated(positive).square(),
        "negative_similarity": (contrast.anchors * values.negative_mean).sum(1),
        "effective_negatives": values.effective_negatives,
        "squared_gradient": gamma,
        "fourth_power": gamma.square(),
        "certified_lower": summable_lower,
        "certified_upper": summable_upper,
    }
    totals = torch.stack([accumulated(column).sum() for column in columns.values()]).tolist()
    return AnchorSums(**dict(zip(columns, totals, strict=True)))


NEARLY = 0.25
"""How far below the mean positive "nearly alike" reaches, as a share of its lead over negatives."""

TOP = 0.1
"""A positive is found while at most this share of the anchor's negatives beat it."""

HARD_SHARE = 0.25
"""Share of a batch by `Neighbours(seeds=4)` that lies near an anchor."""

COPY = 0.9999
"""Cosine above which two rows are the same input, even in float32."""


@dataclass(frozen=True, slots=True)
class SimilaritySums(Sums):
    """Counts and sums over all (anchor, negative) pairs."""

    pairs: float
    potential: float  # sum of exp(-2 ||x - y||^2), Wang and Isola's uniformity before the log
    harder: float  # pairs more similar than the anchor's own positive
    look_alike: float  # pairs at least as similar as the mean positive
    nearly_alike: float  # pairs that similar or nearly so
    anchors_with_look_alike: float
    solved: float  # anchors whose positive beats every negative
    found: float  # anchors whose positive is beaten by at most a tenth of their negatives
    misplaced: float  # anchors whose positive is beaten by more than half of their negatives
    copied: float  # anchors with a negative at cosine above COPY
    hard_miss: float  # over anchors, the miss in a batch of neighbours
    squared_hard_miss: float


@torch.no_grad()
def similarity_sums(
    values: InfoNCE,
    mean_positive: float,
    mean_negative: float,
    *,
    counted: Tensor | None = None,
) -> SimilaritySums:
    """One pass over the similarities in row blocks of bounded memory.

    `counted` (n,) says which anchors can be solved; None: all.
    """
    contrast = values.contrast
    anchors, candidates = contrast.anchors, contrast.candidates
    own = (anchors * contrast.keys[contrast.positive]).sum(1, keepdim=True)  # (n, 1)
    near = mean_positive - NEARLY * (mean_positive - mean_negative)
    n, rows = len(anchors), max(1, BLOCK_ELEMENTS // len(candidates))
    count = contrast.negative_count
    totals = accumulated(anchors.new_zeros(11))
    with no_autocast(anchors):
        for start in range(0, n, rows):
            block = slice(start, start + rows)
            similarity = anchors[block] @ candidates.T  # (b, M)
            for index in contrast.removed:
                similarity.scatter_(1, index[block, None], -torch.inf)
            peak = similarity.amax(1, keepdim=True)  # (b, 1)
            within_reach = (peak >= own[block].clamp(max=near)).squeeze(1)  # (b,)
            close = similarity[within_reach]  # few rows once samples are told apart
            solved = peak < own[block]  # (b, 1)
            if counted is not None:
                solved &= counted[block, None]
            beaten = (close > own[block][within_reach]).sum(1)  # (c,) negatives above the positive
            out_of_reach = len(peak) - len(close)
            counts = (
                beaten.sum(),
                (close >= mean_positive).count_nonzero(),
                (close >= near).count_nonzero(),
                (peak >= mean_positive).count_nonzero(),
                solved.count_nonzero(),
                (beaten <= TOP * count).count_nonzero() + out_of_reach,
                (2 * beaten > count).count_nonzero(),
                (peak > COPY).count_nonzero(),
            )
            lead = accumulated(peak - own[block]).squeeze(1) / values.tau  # (b,)
            hard = (lead + math.log(max(1.0, HARD_SHARE * count))).logaddexp(
                accumulated(values.log_odds[block])
            )
            miss = torch.sigmoid(hard)  # (b,)
            # ||x - y||^2 = 2 - 2 <x, y> for unit rows
            potential = similarity.mul_(4).sub_(4).exp_().sum()
            sums = [potential, *counts, miss.sum(), miss.square().sum()]
            totals += torch.stack([one.to(totals) for one in sums])
    return SimilaritySums(float(n * count), *totals.tolist())


@torch.no_grad()
def copied_rows(rows: Tensor) -> int:
    """How many of the unit rows (n, d) have a copy among the others."""
    copied, size = 0, max(1, BLOCK_ELEMENTS // len(rows))
    with no_autocast(rows):
        for start in range(0, len(rows), size):
            similarity = rows[start : start + size] @ rows.T  # (b, n)
            similarity.diagonal(start).fill_(-torch.inf)
            copied += int((similarity.amax(1) > COPY).sum())
    return copied
