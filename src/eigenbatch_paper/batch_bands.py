"""The bands of one batch at many temperatures, from one eigendecomposition.

`gradient_band` decomposes the batch anew for every method and temperature. Here it is done once:
rows are rotated to the eigenbasis, which keeps all inner products and is never wider than the
number of rows. The figures are those of `gradient_band`, up to rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eigenbatch import infonce
from eigenbatch.core import Contrast, certified_bounds, eigenbasis, theorem_terms, top_after_removal

SMOOTHNESS = 0.5  # c of the paper's plots


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecomposedBatch:
    """An NT-Xent batch in its eigenbasis, with the top eigenvalue of every anchor's negatives."""

    contrast: Contrast  # rows (n, r)
    leading: Tensor  # (2, r) rows with the same two leading eigenpairs
    sigma_hat: float  # of the batch
    negative_tops: Tensor  # (n,) sigma*


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limits:
    """A band of each anchor's squared gradient, and of the batch mean."""

    lower: Tensor  # (n,)
    upper: Tensor  # (n,)
    mean_lower: float
    mean_upper: float

    def outside(self, measured: Tensor) -> tuple[int, int]:
        """How many anchors lie below and above, up to rounding."""
        slack = 1e-9 * measured
        below, above = self.lower > measured + slack, measured > self.upper + slack
        return int(below.sum()), int(above.sum())

    def holds_mean(self, measured: Tensor) -> bool:
        """Whether the batch mean lies inside, up to rounding."""
        mean = measured.mean().item()
        return self.mean_lower <= mean * (1 + 1e-9) and mean <= self.mean_upper * (1 + 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchBands:
    """Bands by name, around the measured squared gradients."""

    measured: Tensor  # (n,)
    miss: Tensor  # (n,)
    bands: Mapping[str, Limits]


def decomposed(contrast: Contrast) -> DecomposedBatch:
    """One eigendecomposition of the rows of an NT-Xent batch."""
    basis = eigenbasis(contrast.anchors)
    rows = basis.coordinates  # (n, r)
    rotated = replace(contrast, anchors=rows, keys=rows)
    # Two rows sqrt(lambda_j) v_j have the same two leading eigenpairs as all rows together, which
    # is all the certified band with one direction looks at.
    return DecomposedBatch(
        contrast=rotated,
        leading=torch.diag(basis.eigenvalues.sqrt())[:2],
        sigma_hat=basis.eigenvalues[0].item() / len(rows),
        negative_tops=top_after_removal(basis, contrast.removed) / contrast.negative_count,
    )


def batch_bands(batch: DecomposedBatch, tau: float) -> BatchBands:
    """The printed plug-in, the theorem per anchor, and the certified band with one direction."""
    contrast = batch.contrast
    values = infonce(contrast, tau)
    n, count = len(contrast.anchors), contrast.negative_count
    scale = (values.miss / tau).square()  # (n,)
    shortfall = (values.miss / tau) * values.margin  # (n,) (1 - rho_i) / tau
    jensen = shortfall.mean().square()  # the floor of the mean
    proxy = _ceiling(scale, torch.full_like(scale, n / count * batch.sigma_hat), count, tau)
    theorem = _ceiling(scale, batch.negative_tops, count, tau)
    lower, measured, upper = certified_bounds(values, 1, leading=batch.leading)
    return BatchBands(
        measured=measured,
        miss=values.miss,
        bands={
            "plug-in": _limits(jensen.expand(n), proxy, jensen),
            "per anchor": _limits(shortfall.square(), theorem, jensen),
            "certified": _limits(lower, upper, lower.mean()),
        },
    )


def _ceiling(scale: Tensor, sigma: Tensor, negative_count: int, tau: float) -> Tensor:
    """3 (eps/tau)^2 (1 + 1/N- + sigma/tau^2 + c sigma^2/tau^4), Theorem 1; (n,)."""
    terms = theorem_terms(scale, sigma, tau, noise=1 / negative_count, smoothness=SMOOTHNESS)
    return torch.stack(list(terms.values())).sum(0)


def _limits(lower: Tensor, upper: Tensor, mean_lower: Tensor) -> Limits:
    return Limits(
        lower=lower, upper=upper, mean_lower=mean_lower.item(), mean_upper=upper.mean().item()
    )
