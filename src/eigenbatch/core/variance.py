"""The variance band of the squared anchor gradient, equation (V).

The printed derivation has gaps (docs/paper-notes.md): the bound is offered as the paper states it,
next to what was measured, and is not certified.
"""

from dataclasses import dataclass

from torch import Tensor

from eigenbatch.checks import whole
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.downdate import negative_tops
from eigenbatch.core.infonce import infonce
from eigenbatch.core.precision import accumulated, positive_scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceBand:
    """Var(gamma_i) <= coefficient * sigma + remainder, and the variance over this batch.

    Args:
        coefficient: A(N-, tau).
        remainder: B_tau.
        sigma: mean of sigma*^(i).
        measured: variance of gamma_i over anchors.

    Examples:
        >>> from eigenbatch.core import VarianceBand
        >>> band = VarianceBand(coefficient=2.0, remainder=1.0, sigma=0.5, measured=1.5)
        >>> band.bound, band.contained
        (2.0, True)
    """

    coefficient: float
    remainder: float
    sigma: float
    measured: float

    @property
    def bound(self) -> float:
        """A sigma* + B_tau."""
        return self.coefficient * self.sigma + self.remainder

    @property
    def contained(self) -> bool:
        """Whether the measured variance stays below the bound."""
        return self.measured <= self.bound


def variance_coefficient(negative_count: int, tau: float | Tensor) -> float:
    """A(N-, tau) = 3 / (N- tau^4) (1 - 1/N-).

    Args:
        negative_count: N-, negatives per anchor.
        tau: softmax temperature.

    Returns:
        The factor of sigma* in equation (V).

    Examples:
        >>> from eigenbatch.core import variance_coefficient
        >>> variance_coefficient(3, tau=1.0)
        0.6666666666666667
    """
    whole(negative_count, "negative_count", least=1)
    return 3 / (negative_count * positive_scalar(tau, "tau") ** 4) * (1 - 1 / negative_count)


def variance_band(contrast: Contrast, tau: float | Tensor) -> VarianceBand:
    """Equation (V) with expectations replaced by means over the batch.

    Args:
        contrast: the batch.
        tau: softmax temperature.

    Returns:
        The bound A sigma* + B_tau and the variance measured over the anchors; not certified.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, variance_band
        >>> z = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0))
        >>> band = variance_band(Contrast.paired(*z), tau=0.5)
        >>> band.bound == band.coefficient * band.sigma + band.remainder
        True
    """
    values = infonce(contrast, tau)
    return equation_v(
        squared_miss=accumulated(values.miss).square().mean().item(),
        negative_count=contrast.negative_count,
        tau=tau,
        sigma=negative_tops(contrast).mean().item(),
        measured=accumulated(values.squared_gradient).var(correction=0).item(),
    )


def equation_v(
    *,
    squared_miss: float,
    negative_count: int,
    tau: float | Tensor,
    sigma: float,
    measured: float,
) -> VarianceBand:
    """A(N-, tau) sigma + B_tau with B_tau = mean eps^2 (1 + 1/N-)."""
    return VarianceBand(
        coefficient=variance_coefficient(negative_count, tau),
        remainder=squared_miss * (1 + 1 / negative_count),
        sigma=sigma,
        measured=measured,
    )
