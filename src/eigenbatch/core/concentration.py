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

    `rank` is d, or the effective rank tr(Sigma) / ||Sigma|| (the queue's eps_K).
    """
    _check(count, rank, delta)
    scale = positive_scalar(constant, "constant") * positive_scalar(kappa, "kappa") ** 2
    return scale * math.sqrt((rank + math.log(1 / delta)) / count)


def effective_rank_radius(
    count: int, rank: float, *, delta: float = 0.05, kappa: float = 1.0, constant: float = 1.0
) -> float:
    """The radius C kappa^2 (sqrt(rank log(1/delta) / count) + log(1/delta) / count)."""
    _check(count, rank, delta)
    scale = positive_scalar(constant, "constant") * positive_scalar(kappa, "kappa") ** 2
    tail = math.log(1 / delta) / count
    return scale * (math.sqrt(rank * tail) + tail)


def bernstein_radius(count: int, dim: int, top: float, *, delta: float = 0.05) -> float:
    """The t with P(||Sigma-hat - Sigma|| > t) <= delta for independent unit rows; no constant.

    Matrix Bernstein: each z z^T - Sigma has norm at most 1 and variance at most Sigma, whose
    largest eigenvalue is `top`, so P(> t) <= 2 d exp(-count t^2 / (2 top + 2 t / 3)); solved for t.
    """
    _check(count, whole(dim, "dim"), delta, "dim")
    tail = math.log(2 * dim / delta) / count
    return tail / 3 + math.sqrt((tail / 3) ** 2 + 2 * positive_scalar(top, "top") * tail)


def queue_ceiling(sampled_top: float, radius: float) -> float:
    """min(1, sigma_Q + eps_K): the ceiling on sigma* when only a sample of the queue was seen."""
    return min(1.0, real(sampled_top, "sampled_top") + real(radius, "radius"))


def sampling_inflation(negative_count: int, correlation: float) -> float:
    """1 + (N- - 1) mu: what correlated negatives do to the sampling term 1/N-.

    Lemma "Sampling term under pairwise correlation"; mu is the mean of <z_j, z_k> over j != k.
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
