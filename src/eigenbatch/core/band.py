"""Bands around the squared anchor gradient gamma_i (Theorem "Gradient-Norm Spectral Band").

The paper's ceilings ("theorem", "proxy", "queue") expand the softmax around uniform weights and are
loose by up to five orders of magnitude at small tau. "certified" (core/certified.py) starts
from an identity instead and always holds.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_generator, check_type, real, whole
from eigenbatch.core.certified import certified_bounds
from eigenbatch.core.concentration import queue_ceiling, subgaussian_radius
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.downdate import negative_tops
from eigenbatch.core.infonce import infonce
from eigenbatch.core.precision import accumulated, positive_scalar
from eigenbatch.core.rounding import outward, summable
from eigenbatch.core.spectrum import spectrum
from eigenbatch.core.theorem import theorem_terms
from eigenbatch.errors import ParameterError

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
