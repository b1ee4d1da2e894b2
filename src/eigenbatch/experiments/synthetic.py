"""Synthetic embeddings with a prescribed spectrum (section "Synthetic Gradient-Band Verification").

z = A x / ||A x|| with x Gaussian and A = U diag(lambda)^(1/2). Everything measured here depends on
inner products alone, so U is left out: it would rotate all rows together.
"""

import torch
from torch import Tensor

from eigenbatch.core.errors import ParameterError, ShapeError
from eigenbatch.core.precision import unit_rows


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
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator)
    orthogonal = noise - (noise * z).sum(1, keepdim=True) * z  # Gram-Schmidt
    height: float = (1 - cosine**2) ** 0.5
    return cosine * z + height * unit_rows(orthogonal)
