"""Bands of the anchor gradient: the paper's and the certified one, and the variance band.

The paper's ceiling on gamma_i (Theorem "Gradient-Norm Spectral Band"), term by term.

    gamma_i <= 3 eps_i^2 / tau^2 (1 + noise + sigma / tau^2 + c (sigma / tau^2)^2)

with noise = 1 / N- for independent negatives and sigma a bound on sigma*^(i).

How far a sampled second moment may be from the true one (Appendix "Matrix concentration").

Two forms are the paper's, with its unspecified constants C and kappa as arguments. The third,
matrix Bernstein for unit rows, has no constant to guess and is what to use for a guarantee.

Bands around the squared anchor gradient gamma_i (Theorem "Gradient-Norm Spectral Band").

The paper's ceilings ("theorem", "proxy", "queue") expand the softmax around uniform weights and are
loose by up to five orders of magnitude at small tau. "certified" (core/certified.py) starts
from an identity instead and always holds.

The variance band of the squared anchor gradient, equation (V).

The printed derivation has gaps (docs/paper-notes.md): the bound is offered as the paper states it,
next to what was measured, and is not certified.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_generator, check_type, real, whole
from eigenbatch.core.certified import certified_bounds, outward, summable
from eigenbatch.core.contrast import Contrast, accumulated, positive_scalar
from eigenbatch.core.downdate import negative_tops
from eigenbatch.core.infonce import infonce
from eigenbatch.core.spectrum import spectrum
from eigenbatch.errors import ParameterError


def theorem_terms(
    scale: float | Tensor,
    sigma: float | Tensor,
    tau: float,
    *,
    noise: float | Tensor,
    smoothness: float | Tensor = 0.5,
) -> dict[str, Any]:
    """The four terms; `scale` is eps_i^2 / tau^2 of each anchor, or its batch mean.

    Each term is of the type of `scale`: (n,) per anchor, or a number.
    """
    force = 3 * scale
    spectral = sigma / tau**2
    return {
        "softmax_error": force,
        "sampling": force * noise,
        "spectral": force * spectral,
        "remainder": force * smoothness * spectral**2,
    }


def subgaussian_radius(
    count: int, rank: float, *, delta: float = 0.05, kappa: float = 1.0, constant: float = 1.0
) -> float:
    """The radius C kappa^2 sqrt((rank + log(1/delta)) / count), exceeded with probability delta.

    Args:
        count: rows of the sample.
        rank: d, or the effective rank tr(Sigma) / ||Sigma|| (the queue's eps_K).
        delta: probability that the error is larger.
        kappa: sub-Gaussian norm of the rows, which the paper leaves open.
        constant: C, which the paper leaves open.

    Returns:
        A bound on ||Sigma-hat - Sigma||.

    Examples:
        >>> from eigenbatch.core import subgaussian_radius
        >>> subgaussian_radius(4000, 128) / subgaussian_radius(1000, 128)
        0.5
    """
    _check(count, rank, delta)
    scale = positive_scalar(constant, "constant") * positive_scalar(kappa, "kappa") ** 2
    return scale * math.sqrt((rank + math.log(1 / delta)) / count)


def effective_rank_radius(
    count: int, rank: float, *, delta: float = 0.05, kappa: float = 1.0, constant: float = 1.0
) -> float:
    """The radius C kappa^2 (sqrt(rank log(1/delta) / count) + log(1/delta) / count).

    Args:
        count: rows of the sample.
        rank: the effective rank tr(Sigma) / ||Sigma||.
        delta: probability that the error is larger.
        kappa: sub-Gaussian norm of the rows, which the paper leaves open.
        constant: C, which the paper leaves open.

    Returns:
        A bound on ||Sigma-hat - Sigma||.

    Examples:
        >>> from eigenbatch.core import effective_rank_radius
        >>> effective_rank_radius(1000, 8) < effective_rank_radius(1000, 128)
        True
    """
    _check(count, rank, delta)
    scale = positive_scalar(constant, "constant") * positive_scalar(kappa, "kappa") ** 2
    tail = math.log(1 / delta) / count
    return scale * (math.sqrt(rank * tail) + tail)


def bernstein_radius(count: int, dim: int, top: float, *, delta: float = 0.05) -> float:
    """The t with P(||Sigma-hat - Sigma|| > t) <= delta for independent unit rows; no constant.

    Matrix Bernstein: each z z^T - Sigma has norm at most 1 and variance at most Sigma, whose
    largest eigenvalue is `top`, so P(> t) <= 2 d exp(-count t^2 / (2 top + 2 t / 3)); solved for t.

    Args:
        count: rows of the sample.
        dim: dimension d of the rows.
        top: largest eigenvalue of Sigma, or a bound on it.
        delta: probability that the error is larger.

    Returns:
        The radius t.

    Examples:
        >>> from eigenbatch.core import bernstein_radius
        >>> round(bernstein_radius(4096, 128, top=0.05), 3)
        0.015
    """
    _check(count, whole(dim, "dim"), delta, "dim")
    tail = math.log(2 * dim / delta) / count
    return tail / 3 + math.sqrt((tail / 3) ** 2 + 2 * positive_scalar(top, "top") * tail)


def queue_ceiling(sampled_top: float, radius: float) -> float:
    """min(1, sigma_Q + eps_K): the ceiling on sigma* when only a sample of the queue was seen.

    Args:
        sampled_top: sigma_Q, the largest eigenvalue of the sample's second moment.
        radius: eps_K, how far it may be from that of the queue.

    Returns:
        The ceiling, at most 1.

    Examples:
        >>> from eigenbatch.core import queue_ceiling
        >>> queue_ceiling(0.25, 0.5), queue_ceiling(0.75, 0.5)
        (0.75, 1.0)
    """
    return min(1.0, real(sampled_top, "sampled_top") + real(radius, "radius"))


def sampling_inflation(negative_count: int, correlation: float) -> float:
    """1 + (N- - 1) mu: what correlated negatives do to the sampling term 1/N-.

    Lemma "Sampling term under pairwise correlation".

    Args:
        negative_count: N-, negatives per anchor.
        correlation: mu, the mean of `<z_j, z_k>` over j != k.

    Returns:
        The factor; 1 for uncorrelated negatives.

    Examples:
        >>> from eigenbatch.core import sampling_inflation
        >>> sampling_inflation(101, 0.5)
        51.0
    """
    count, correlation = (
        whole(negative_count, "negative_count", least=1),
        real(correlation, "correlation"),
    )
    factor = 1 + (count - 1) * correlation
    if not (factor >= 0 and correlation <= 1):
        raise ParameterError(
            f"correlation {correlation}: no {count} unit rows have such a mean pairwise cosine"
        )
    return factor


def _check(count: int, rank: float, delta: float, name: str = "rank") -> None:
    whole(count, "count", least=1)
    if not real(rank, name) >= 1:
        raise ParameterError(f"{name}, a dimension or effective rank, is at least 1, got {rank}")
    if not 0 < real(delta, "delta") < 1:
        raise ParameterError(f"delta is a failure probability in (0, 1), got {delta}")


Method = Literal["certified", "theorem", "proxy", "queue"]
Sampling = Literal["independent", "empirical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBand:
    """The band of the batch mean of gamma_i.

    Args:
        lower: lower end.
        measured: the mean itself.
        upper: upper end.

    Examples:
        >>> from eigenbatch.core import BatchBand
        >>> BatchBand(lower=1.0, measured=2.0, upper=3.0).contained
        True
    """

    lower: float
    measured: float
    upper: float

    @property
    def contained(self) -> bool:
        """Whether the measured mean lies inside, up to rounding."""
        slack = 1e-6 * self.measured
        return self.lower <= self.measured + slack and self.measured <= self.upper + slack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Band:
    """lower <= gamma_i <= upper for each anchor; `terms` sum to the upper band.

    Args:
        lower: (n,) lower end.
        measured: (n,) gamma_i.
        upper: (n,) upper end.
        terms: parts of the upper end by name, each (n,).
        mean: the band of the batch mean.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, gradient_band
        >>> z = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0))
        >>> band = gradient_band(Contrast.paired(*z), tau=0.1)
        >>> bool(band.contained.all()), band.mean.contained
        (True, True)
    """

    lower: Tensor
    measured: Tensor
    upper: Tensor
    terms: dict[str, Tensor]
    mean: BatchBand

    @property
    def contained(self) -> Tensor:
        """(n,) whether each measured gradient lies inside, up to rounding of its dtype."""
        slack = 16 * torch.finfo(self.measured.dtype).eps * self.measured
        return (self.lower <= self.measured + slack) & (self.measured <= self.upper + slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSample:
    """How `gradient_band(..., method="queue")` looks at the queue: some keys and the radius eps_K.

    Args:
        size: keys that are sampled.
        delta: probability that the radius is exceeded.
        kappa: as in `subgaussian_radius`.
        constant: as in `subgaussian_radius`.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, gradient_band
        >>> from eigenbatch.core import QueueSample
        >>> z = torch.randn(3, 64, 8, generator=torch.Generator().manual_seed(0))
        >>> batch, sample = Contrast.queued(*z), QueueSample(size=32)
        >>> len(gradient_band(batch, tau=0.2, method="queue", queue=sample).upper)
        64
    """

    size: int = 4096
    delta: float = 0.05
    kappa: float = 1.0
    constant: float = 1.0

    def __post_init__(self) -> None:
        whole(self.size, "QueueSample.size", least=1)
        for name in ("delta", "kappa", "constant"):
            positive_scalar(getattr(self, name), name)


@torch.no_grad()
def gradient_band(
    contrast: Contrast,
    tau: float | Tensor,
    *,
    method: Method = "certified",
    directions: int = 1,
    smoothness: float = 0.5,
    sampling: Sampling = "independent",
    max_spectrum: float | None = None,
    fourth_moment: float | None = None,
    queue: QueueSample | None = None,
    generator: torch.Generator | None = None,
) -> Band:
    """Lower and upper band of every anchor's squared gradient, and of the batch mean.

    "certified" holds for the gradient that exact arithmetic makes of the rows as they were given,
    in float16, bfloat16, float32 or float64: rounding is part of the band (core/rounding.py), and
    0 <= lower <= measured <= upper. A square below the smallest normal number of the result's dtype
    (1.2e-38 for float32) has a lower end of 0 and an upper end of at least that number.

    Args:
        contrast: the batch.
        tau: softmax temperature.
        method: "certified" always holds. "theorem" is the paper's with the exact sigma* of each
            anchor, "proxy" with (M / N-) sigma-hat, "queue" with the top eigenvalue of sampled keys
            plus eps_K.
        directions: k, deflated directions of the certified band (0: per-anchor spectrum alone). The
            options below shape the paper's bands only.
        smoothness: c of the theorem's third term.
        sampling: "independent" uses 1/N- in the second term, "empirical" the measured ||zbar-||^2.
        max_spectrum: use this bound on sigma* instead of computing it ("theorem" and "proxy").
        fourth_moment: C4, replaces c by C4 / N-.
        queue: how method="queue" samples the queue.
        generator: for that sample.

    Returns:
        The band of every anchor and, as `mean`, of the batch mean.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, gradient_band
        >>> z = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0))
        >>> mean = gradient_band(Contrast.paired(*z), tau=0.5).mean
        >>> mean.lower <= mean.measured <= mean.upper
        True
    """
    check_choice(method, get_args(Method), "method")
    check_choice(sampling, get_args(Sampling), "sampling")
    check_type(queue, (QueueSample, type(None)), "queue")
    check_generator(generator)
    whole(directions, "directions")
    real(smoothness, "smoothness")
    if fourth_moment is not None:
        real(fourth_moment, "fourth_moment")
    if max_spectrum is not None and method not in ("theorem", "proxy"):
        raise ParameterError(f'max_spectrum belongs to "theorem" and "proxy", not to {method!r}')
    values = infonce(contrast, tau)
    dtype = values.softmax_mean.dtype
    if method == "certified":
        return _certified(*certified_bounds(values, directions), dtype)

    third = smoothness if fourth_moment is None else fourth_moment / contrast.negative_count
    if not third >= 0:
        raise ParameterError(f"smoothness and fourth_moment must not be negative, got {third}")
    if max_spectrum is not None:
        sigma: Tensor | float = _checked_bound(contrast, max_spectrum)
    elif method == "theorem":
        sigma = negative_tops(contrast)  # (n,)
    elif method == "proxy":
        candidates = contrast.candidates
        sigma = len(candidates) / contrast.negative_count * spectrum(candidates).top
    else:
        sigma = _sampled_ceiling(contrast.candidates, queue or QueueSample(), generator)
    independent = 1 / contrast.negative_count
    noise = independent if sampling == "independent" else accumulated(values.negative_mean_sqnorm)
    scale = (torch.sigmoid(accumulated(values.log_odds)) / values.tau).square()  # (n,) (eps/tau)^2
    positives = accumulated(values.positives)  # (n, d) z+
    residual = accumulated(values.softmax_mean) - positives  # (n, d) m - z+
    measured = scale * residual.square().sum(1)  # (n,) gamma_i
    terms = theorem_terms(scale, sigma, values.tau, noise=noise, smoothness=third)
    margin = -(residual * positives).sum(1)  # (n,) 1 - <m, z+>
    shortfall = scale.sqrt() * margin  # (n,) (1 - rho_i) / tau
    batch_lower = shortfall.mean().square()  # Jensen
    return _band(shortfall.square(), measured, terms, dtype, batch_lower=batch_lower)


def _sampled_ceiling(
    candidates: Tensor, queue: QueueSample, generator: torch.Generator | None
) -> float:
    """min(1, sigma_Q + eps_K) of a random subset of the keys."""
    size = min(queue.size, len(candidates))
    device = generator.device if generator is not None else candidates.device
    chosen = torch.randperm(len(candidates), generator=generator, device=device)[:size]
    sampled = spectrum(candidates[chosen.to(candidates.device)])
    radius = subgaussian_radius(
        size, sampled.stable_rank, delta=queue.delta, kappa=queue.kappa, constant=queue.constant
    )
    return queue_ceiling(sampled.top, radius)


def _checked_bound(contrast: Contrast, max_spectrum: float) -> float:
    bound = positive_scalar(max_spectrum, "max_spectrum")
    largest = negative_tops(contrast).max().item()
    if bound < largest * (1 - 1e-6):
        raise ParameterError(
            f"max_spectrum={bound} is no bound: the largest sigma* of this batch is {largest:.6g}"
        )
    return bound


def _certified(lower: Tensor, measured: Tensor, upper: Tensor, dtype: torch.dtype) -> Band:
    """Ends are rounded outward: to the working dtype, and in the means."""
    low, high = outward(lower, upper, dtype)
    summable_lower, summable_upper = summable(lower, upper)
    return Band(
        lower=low,
        measured=measured.to(dtype),
        upper=high,
        terms={"measured": measured.to(dtype), "unresolved": (upper - measured).to(dtype)},
        mean=BatchBand(
            lower=summable_lower.mean().item(),
            measured=measured.mean().item(),
            upper=summable_upper.mean().item(),
        ),
    )


def _band(
    lower: Tensor,
    measured: Tensor,
    terms: dict[str, Tensor],
    dtype: torch.dtype,
    *,
    batch_lower: Tensor,
) -> Band:
    """Rounding to the working dtype comes last: it is monotone and keeps the order."""
    upper = torch.stack(list(terms.values())).sum(0)  # (n,)
    return Band(
        lower=lower.to(dtype),
        measured=measured.to(dtype),
        upper=upper.to(dtype),
        terms={name: term.to(dtype) for name, term in terms.items()},
        mean=BatchBand(
            lower=batch_lower.item(), measured=measured.mean().item(), upper=upper.mean().item()
        ),
    )


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
