"""In-batch whitening (section "Diversity manipulation"): z -> (Sigma-hat + eps I)^(-1/2) z."""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eigenbatch.checks import check_flags, check_tensor
from eigenbatch.core.precision import accumulated, no_autocast, positive_scalar, unit_rows
from eigenbatch.errors import NumericalWarning, ShapeError


def whiten(z: Tensor, *, eps: float = 1e-5, renormalize: bool = True) -> Tensor:
    """Rows of z (n, d) whitened by their own second moment; differentiable.

    Uses the smaller Gram: Z (Z^T Z / n + eps)^(-1/2) = (Z Z^T / n + eps)^(-1/2) Z, so n < d costs
    less and its null space never appears. `renormalize` puts the rows back on the unit sphere.

    Args:
        z: (n, d) rows, at least two.
        eps: added to every eigenvalue.
        renormalize: put rows back on the unit sphere.

    Returns:
        (n, d) whitened rows in the dtype of z.

    Examples:
        >>> import torch
        >>> from eigenbatch import participation_ratio, whiten
        >>> scale = torch.tensor([5.0, 1.0, 1.0, 1.0])
        >>> z = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * scale
        >>> participation_ratio(whiten(z)) > participation_ratio(z)
        True
    """
    positive_scalar(eps, "eps")
    check_tensor(z, "z")
    check_flags(renormalize=renormalize)
    dtype = z.dtype
    rows = accumulated(unit_rows(z))  # (n, d)
    n, d = rows.shape
    if n < 2:
        raise ShapeError(f"whitening needs at least 2 rows, got {n}")
    with no_autocast(rows):
        wide = n < d
        gram = (rows @ rows.T if wide else rows.T @ rows) / n  # (min(n, d),) squared
        root, top = _InverseSquareRoot.apply(gram, eps)  # type: ignore[no-untyped-call]
        if gram.detach().trace() - top <= 1e-4 * eps:
            warnings.warn(
                f"the rows are identical up to sign (largest eigenvalue {float(top):.12f} of 1): "
                "whitening cannot spread them and returns them as they are",
                NumericalWarning,
                stacklevel=2,
            )
        white: Tensor = root @ rows if wide else rows @ root  # (n, d)
        if renormalize:
            white = white / torch.linalg.vector_norm(white, dim=1, keepdim=True)
    return white.to(dtype)


class _InverseSquareRoot(torch.autograd.Function):
    """(X + eps I)^(-1/2) of a symmetric X, and X's largest eigenvalue (no gradient).

    The derivative in the eigenbasis is F o (V^T E V) with the divided differences of f = s^(-1/2),

        F_ij = (f(s_i) - f(s_j)) / (s_i - s_j) = -1 / (sqrt(s_i s_j) (sqrt(s_i) + sqrt(s_j))),

    in which nothing is divided by s_i - s_j: repeated eigenvalues are no special case.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(x)
        root = (values.clamp(min=0) + eps).sqrt()  # (k,)
        ctx.save_for_backward(root, vectors)
        top = values[-1]
        ctx.mark_non_differentiable(top)
        return (vectors / root) @ vectors.T, top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        root, vectors = ctx.saved_tensors
        differences = -1 / (torch.outer(root, root) * (root[:, None] + root))  # (k, k)
        symmetric = (grad + grad.T) / 2
        inner = vectors.T @ symmetric @ vectors
        return vectors @ (differences * inner) @ vectors.T, None
