"""The paper's ceiling on gamma_i (Theorem "Gradient-Norm Spectral Band"), term by term.

    gamma_i <= 3 eps_i^2 / tau^2 (1 + noise + sigma / tau^2 + c (sigma / tau^2)^2)

with noise = 1 / N- for independent negatives and sigma a bound on sigma*^(i).
"""

from typing import Any

from torch import Tensor


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
