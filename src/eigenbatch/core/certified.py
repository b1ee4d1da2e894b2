"""The certified band: no assumption, no constant, no violation.

Because the weights are a softmax, with q the softmax over the negatives alone, exactly

    gamma_i = (eps_i / tau)^2 ||m_i - z_i+||^2,    m_i = sum_j q_ij z_j.

Only ||m_i||^2 is bounded, by spectra. With v_1..v_k the leading eigenvectors of the candidate
negatives' sum of outer products and lambda its eigenvalues

    ||m_i||^2 <= min{1, N- sigma*^(i) ||q_i||^2}                             (directions = 0)
    ||m_i||^2 <= min{1, sum_{j<=k} <m_i, v_j>^2 + lambda_{k+1} ||q_i||^2}    (directions = k >= 1)

because the negatives are a subset of the candidates; the second takes the best of 0..k. The floor
projects m_i - z_i+ on v_1..v_k and on what they leave of z_i+; k = 0 is the paper's (1 - rho_i)^2.
"""

import torch
from torch import Tensor

from eigenbatch.core.downdate import negative_tops, pole_guard
from eigenbatch.core.infonce import InfoNCE
from eigenbatch.core.precision import accumulated, no_autocast
from eigenbatch.core.spectrum import leading_directions
from eigenbatch.errors import ParameterError


def certified_bounds(values: InfoNCE, directions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Floor of gamma_i, gamma_i as measured, and what its ceiling adds to that; (n,) each.

    Rounded outward, so that they hold for the true gamma_i: m, q and the logits carry the working
    dtype's rounding, a logit that of a cosine over tau; eigenvalues that of the accumulation dtype.
    """
    scale = (torch.sigmoid(accumulated(values.log_odds)) / values.tau).square()  # (n,)
    positives = accumulated(values.positives)  # (n, d) z+
    residual = accumulated(values.softmax_mean) - positives  # (n, d) m - z+
    measured = scale * torch.linalg.vector_norm(residual, dim=1).square()
    floor, excess = _geometry(values, residual, positives, directions)
    rounding = min(1.0, 8 * torch.finfo(values.softmax_mean.dtype).eps / values.tau)
    return scale * floor * (1 - rounding), measured, scale * excess + measured * rounding


def _geometry(
    values: InfoNCE, residual: Tensor, positives: Tensor, directions: int
) -> tuple[Tensor, Tensor]:
    """Floor of ||m_i - z_i+||^2 and the excess of its ceiling over the true value; (n,) each."""
    contrast = values.contrast
    candidates = accumulated(contrast.candidates)  # (M, d)
    rank = min(candidates.shape)
    if not 0 <= directions <= rank:
        raise ParameterError(
            f"directions must lie in 0..{rank} (the smaller of candidates and dimension), "
            f"got {directions}"
        )
    mean = accumulated(values.softmax_mean)  # (n, d) m
    concentration = 1 / accumulated(values.effective_negatives)  # (n,) ||q_i||^2
    with no_autocast(candidates):
        if directions == 0:
            tops = contrast.negative_count * negative_tops(contrast)  # (n,)
            tops = tops * (1 + 16 * pole_guard(tops.dtype))
            vectors = candidates.new_zeros(candidates.shape[1], 0)
            largest, ceiling = tops.max(), tops * concentration
        else:
            eigenvalues, vectors = leading_directions(candidates, directions)  # (k + 1,), (d, k)
            explained = (mean @ vectors).square().cumsum(1)  # (n, k)
            ceiling = concentration * eigenvalues[0]
            for j in range(directions):
                tail = concentration * eigenvalues[j + 1]
                ceiling = torch.minimum(ceiling, explained[:, j] + tail)
            largest = eigenvalues[0]
        floor = _projected(residual, positives, vectors)

    eps = 16 * torch.finfo(values.softmax_mean.dtype).eps
    basis_error = 16 * torch.finfo(candidates.dtype).eps * largest * concentration
    ceiling = ceiling.clamp(max=1) * (1 + eps) + eps + basis_error
    shift = eps  # how far the computed m may be from the true one
    length = torch.linalg.vector_norm(residual, dim=1)  # (n,)
    norm = torch.linalg.vector_norm(mean, dim=1)  # (n,)
    excess = ceiling - norm.square() + 2 * shift * length + shift**2
    return (floor.sqrt() - shift).clamp(min=0).square() * (1 - eps), excess


def _projected(residual: Tensor, positives: Tensor, vectors: Tensor) -> Tensor:
    """||P (m - z+)||^2 with P onto the vectors and the positive; (n,)."""
    floor = (residual @ vectors).square().sum(1)  # (n,)
    rest = torch.addmm(positives, positives @ vectors, vectors.T, alpha=-1)  # (n, d)
    length = torch.linalg.vector_norm(rest, dim=1)  # (n,)
    if (length < 0.1).any():  # what cancelled is orthogonal only after a second pass
        rest = torch.addmm(rest, rest @ vectors, vectors.T, alpha=-1)
        length = torch.linalg.vector_norm(rest, dim=1)
    resolved = length > torch.finfo(rest.dtype).eps ** 0.5
    along = (residual * rest).sum(1) / torch.where(resolved, length, 1.0)
    return floor + torch.where(resolved, along.square(), 0.0)
