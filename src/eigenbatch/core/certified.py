"""The certified band: no assumption, no constant, no violation.

Because the weights are a softmax, with q the softmax over the negatives alone, exactly

    gamma_i = (eps_i / tau)^2 ||m_i - z_i+||^2,    m_i = sum_j q_ij z_j.

Only ||m_i||^2 is bounded, by spectra. With v_1..v_k the leading eigenvectors of the candidate
negatives' sum of outer products and lambda its eigenvalues

    ||m_i||^2 <= min{1, N- sigma*^(i) ||q_i||^2}                             (directions = 0)
    ||m_i||^2 <= min{1, sum_{j<=k} <m_i, v_j>^2 + lambda_{k+1} ||q_i||^2}    (directions = k >= 1)

because the negatives are a subset of the candidates; the second takes the best of 0..k. The floor
projects m_i - z_i+ on v_1..v_k and on what they leave of z_i+; k = 0 is the paper's (1 - rho_i)^2.

Rounding. gamma_i here is that of the rows as given, in exact arithmetic. core/rounding.py encloses
it from the sums alone, without any eigenvector. The band is the hull of that interval and of the
spectral band as computed: errors of eigenvalues and eigenvectors move its ends, never past gamma_i.
"""

import torch
from torch import Tensor

from eigenbatch.core.downdate import negative_tops
from eigenbatch.core.infonce import InfoNCE
from eigenbatch.core.precision import accumulated, no_autocast
from eigenbatch.core.rounding import Resolved, resolved
from eigenbatch.core.spectrum import leading_directions
from eigenbatch.errors import ParameterError


def certified_bounds(
    values: InfoNCE,
    directions: int,
    *,
    leading: Tensor | None = None,
    eigenpairs: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Floor of gamma_i, gamma_i as measured, and its ceiling; (n,) each, in float64 where it is.

    0 <= floor <= measured <= ceiling always, and floor <= gamma_i <= ceiling for the true gamma_i.
    leading: rows with the same `directions` + 1 leading eigenpairs as the candidates, or
    eigenpairs: what `leading_directions` gives for them, for callers that have them already.
    """
    candidates = values.contrast.candidates if leading is None else leading  # (M, d)
    rank = min(candidates.shape)
    if not 0 <= directions <= rank:
        raise ParameterError(
            f"directions must lie in 0..{rank} (the smaller of candidates and dimension), "
            f"got {directions}"
        )
    facts = resolved(values)
    lowest, highest = facts.enclosure  # (n,) each
    measured = facts.length.square().clamp(lowest, highest)
    with no_autocast(candidates):
        if directions == 0:
            vectors = facts.mean.new_zeros(candidates.shape[1], 0)
            tops = values.contrast.negative_count * negative_tops(values.contrast)  # (n,)
            square = facts.concentration * tops  # (n,) ceiling of ||m||^2
        else:
            eigenvalues, vectors = eigenpairs or leading_directions(
                accumulated(candidates), directions
            )
            square = _deflated(facts, eigenvalues, vectors)
        floor = facts.scale * _projected(facts, vectors)
    excess = square.clamp(max=1) - torch.linalg.vector_norm(facts.mean, dim=1).square()
    ceiling = measured + facts.scale * excess
    return torch.minimum(floor, lowest), measured, torch.maximum(ceiling, highest)


def _deflated(facts: Resolved, eigenvalues: Tensor, vectors: Tensor) -> Tensor:
    """The least of sum_{l<=j} <m, v_l>^2 + lambda_{j+1} ||q||^2 over j = 0..k; (n,)."""
    explained = (facts.mean @ vectors).square().cumsum(1)  # (n, k)
    square = facts.concentration * eigenvalues[0]  # (n,)
    for j in range(vectors.shape[1]):
        tail = facts.concentration * eigenvalues[j + 1]
        square = torch.minimum(square, explained[:, j] + tail)
    return square


def _projected(facts: Resolved, vectors: Tensor) -> Tensor:
    """||P (m - z+)||^2 with P onto the vectors and the positive; (n,).

    What the vectors leave of z+ is z+ - V V^T z+, of squared length 1 - ||V^T z+||^2. Where little
    is left, it is computed as a vector and orthogonalised twice.
    """
    residual, positives = facts.residual, facts.positives  # (n, d) each
    seen, shares = residual @ vectors, positives @ vectors  # (n, k) each
    floor = seen.square().sum(1)  # (n,)
    left = (1 - shares.square().sum(1)).clamp(min=0)  # (n,)
    along = facts.along - (shares * seen).sum(1)
    close = left < 0.01
    if close.any():
        rest = positives[close]
        for _ in range(2):
            rest = torch.addmm(rest, rest @ vectors, vectors.T, alpha=-1)  # (c, d)
        left = left.index_put((close,), rest.square().sum(1))
        along = along.index_put((close,), torch.linalg.vecdot(residual[close], rest))
    resolved = left > torch.finfo(left.dtype).eps
    return floor + torch.where(resolved, along.square() / torch.where(resolved, left, 1.0), 0.0)
