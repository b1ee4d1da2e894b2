"""Additive numbers: sums over anchors that merge exactly across processes.

A reading is made of means, and a mean over several processes is a sum of sums. Each record below
is a row of float64 sums; `vector()` is what an all_reduce needs and `from_vector` reads it back.
"""

from dataclasses import astuple, dataclass, fields
from typing import Self

import torch
from torch import Tensor

from eigenbatch.core.band import BatchBand
from eigenbatch.core.certified import certified_bounds
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import InfoNCE
from eigenbatch.core.precision import accumulated
from eigenbatch.core.rounding import summable
from eigenbatch.core.theorem import theorem_terms
from eigenbatch.core.variance import VarianceBand, equation_v


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
