"""Synthetic embeddings with a prescribed spectrum (section "Synthetic Gradient-Band Verification").

z = A x / ||A x|| with x Gaussian and A = U diag(lambda)^(1/2). Everything measured here depends on
inner products alone, so U is left out: it would rotate all rows together.
"""

import torch
from torch import Tensor

from eigenbatch.core import unit_rows
from eigenbatch.errors import ParameterError, ShapeError


def spiked_eigenvalues(dim: int, top: float) -> Tensor:
    """(d,) trace-one eigenvalues: `top` first, the rest equal; top = 1/d is isotropic."""
    if dim < 2:
        raise ShapeError(f"a spiked spectrum needs dimension 2 or more, got {dim}")
    if not 1 / dim <= top <= 1:
        raise ParameterError(f"top must lie in [1/d, 1] = [{1 / dim:.4g}, 1], got {top}")
    values = torch.full((dim,), (1 - top) / (dim - 1), dtype=torch.float64)
    values[0] = top
    return values


def gaussian_rows(count: int, eigenvalues: Tensor, *, generator: torch.Generator) -> Tensor:
    """(count, d) unit rows whose population second moment has about these eigenvalues."""
    noise = torch.randn(
        count, len(eigenvalues), dtype=eigenvalues.dtype, generator=generator
    )  # (count, d)
    return unit_rows(noise * eigenvalues.sqrt())


def positives_at_cosine(z: Tensor, cosine: float, *, generator: torch.Generator) -> Tensor:
    """(n, d) unit rows c z + sqrt(1 - c^2) u with u a random unit vector orthogonal to z."""
    if not -1 <= cosine <= 1:
        raise ParameterError(f"cosine must lie in [-1, 1], got {cosine}")
    if abs(cosine) == 1:  # no room for u, and in one dimension there is none
        return cosine * z
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator)
    orthogonal = noise - (noise * z).sum(1, keepdim=True) * z  # Gram-Schmidt
    height: float = (1 - cosine**2) ** 0.5
    return cosine * z + height * unit_rows(orthogonal)


def shared_component_rows(
    count: int, dim: int, strength: float, *, generator: torch.Generator, as_printed: bool = False
) -> Tensor:
    """(count, d) unit rows sqrt(a) u + sqrt(1 - a) x, u a unit vector common to all, x Gaussian.

    `strength` is a, and about the mean cosine of two rows, because x has entries of variance 1/d.
    Deviates from "Effect of Correlated Negatives": there x ~ N(0, I), which makes that cosine about
    a / d. `as_printed=True` is that.
    """
    if not 0 <= strength <= 1:
        raise ParameterError(f"strength must lie in [0, 1], got {strength}")
    shared = unit_rows(torch.randn(1, dim, dtype=torch.float64, generator=generator))  # (1, d)
    noise = torch.randn(count, dim, dtype=torch.float64, generator=generator)  # (count, d)
    if not as_printed:
        noise = noise / dim**0.5
    own: float = (1 - strength) ** 0.5
    return unit_rows(strength**0.5 * shared + own * noise)
