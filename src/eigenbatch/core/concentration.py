"""How far a sampled second moment may be from the true one (Appendix "Matrix concentration").

Two forms are the paper's, with its unspecified constants C and kappa as arguments. The third,
matrix Bernstein for unit rows, has no constant to guess and is what to use for a guarantee.
"""

import math

from eigenbatch.checks import real, whole
from eigenbatch.core.precision import positive_scalar
from eigenbatch.errors import ParameterError


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
