"""The certified band of one anchor, rounding included.

An interval that holds the true gamma_i, whatever the rounding.

"True" means: the rows as the user gave them, normalised and contrasted in exact arithmetic. With
a_i the log-odds of missing and r_i = m_i - z_i+ (core/infonce.py),

    sqrt(gamma_i) = (sigmoid(a_i) / tau) ||r_i||,

and sigmoid grows with a_i. So bounds |da| and ||dr|| on the errors of the computed a~ and r~ give

    sqrt(gamma) >= (sigmoid(a~ - |da|) / tau) (||r~|| - ||dr||)
    sqrt(gamma) <= (sigmoid(a~ + |da|) / tau) (||r~|| + ||dr||).

Letters: u unit roundoff of the sums' dtype, w that of the accumulation dtype, d dimension, M
candidates, D additions per sum (`summation_length`: about 1024 + M / 1024), g(k) = k u / (1 - k u),
which bounds the relative error of k roundings in any order, e the distance of a stored row from the
exact one (`row_error`).

Logits. Dividing by tau, d products, the shift by the peak: g(d + 12) / tau. Stored rows: 2.5 e/tau.
Weights. exp errs by at most 4 ulp, underflow by less than one more: so each weight is known up to a
    factor exp(+-h), h = (g(d + 12) + 2.5 e) / tau + 10 u. A common factor does not matter.
Log-odds. Mass: h + g(D). Positive logit, summed in the accumulation dtype: 2.5 e / tau and a few w.
    Stored in the sums' dtype: u |a~|.
Softmax mean. Let q' be the softmax with the weights as computed, m' its mean of the exact rows.
    q' / q lies in exp(+-2h), and the weights of q' - q sum to zero, so with Cauchy-Schwarz
        ||m' - m|| <= (e^2h - 1) sum_j q'_j ||z_j - z+|| <= (e^2h - 1) sqrt(2 (1 - <m', z+>)):
    it shrinks with the spread of the cloud. Summing w z, summing w, dividing, and stored rows add
        ||m~ - m'|| <= f = 2 g(D + 2) + e.
Residual. ||dr|| <= ||m' - m|| + f + e, and d + 8 roundings w of ||r~||.

Each term is proportional to u or e. In float32 with D = 1024 ||dr|| is about 1.3e-4: little beside
||r|| = 1, too much for a nearly collapsed batch. So anchors whose interval is wider than RESOLUTION
are summed again in float64. Then the stored rows alone are left: e = 1.8e-7. All anchors are, where
torch was told to round float32 products further (TF32, bfloat16).

Below the range. A squared gradient under the smallest normal number of its dtype (1.2e-38 for
float32, 2.2e-308 for float64) has the lower end 0 and an upper end of at least that number.

The certified band: no assumption, no constant, no violation.

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

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from eigenbatch.core.contrast import (
    Contrast,
    accumulated,
    accumulation_dtype,
    full_float32_products,
    no_autocast,
    row_error,
    unit_roundoff,
)
from eigenbatch.core.downdate import negative_tops
from eigenbatch.core.infonce import InfoNCE, infonce, summation_length
from eigenbatch.core.spectrum import leading_directions
from eigenbatch.errors import ParameterError

RESOLUTION = 0.02
"""Anchors whose gradient length float32 leaves open by more than this share are done in float64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resolved:
    """Per anchor, in the accumulation dtype: what gamma_i is made of, and how far off it may be."""

    tau: float
    log_odds: Tensor  # (n,) a~
    mean: Tensor  # (n, d) m~
    positives: Tensor  # (n, d) z+
    concentration: Tensor  # (n,) ||q||^2
    residual: Tensor  # (n, d) r~ = m~ - z+
    distance: Tensor  # (n,) ||r~||
    along: Tensor  # (n,) <r~, z+>
    log_odds_error: Tensor  # (n,) |da|
    residual_error: Tensor  # (n,) ||dr||

    @property
    def scale(self) -> Tensor:
        """(n,) (eps / tau)^2."""
        return (torch.sigmoid(self.log_odds) / self.tau).square()

    @property
    def length(self) -> Tensor:
        """(n,) sqrt(gamma_i) as computed."""
        return torch.sigmoid(self.log_odds) / self.tau * self.distance

    @property
    def shortest(self) -> Tensor:
        """(n,) at most the true sqrt(gamma_i)."""
        miss = torch.sigmoid(self.log_odds - self.log_odds_error)
        return miss / self.tau * (self.distance - self.residual_error).clamp(min=0)

    @property
    def longest(self) -> Tensor:
        """(n,) at least the true sqrt(gamma_i); two unit vectors are at most 2 apart."""
        miss = torch.sigmoid(self.log_odds + self.log_odds_error)
        return miss / self.tau * (self.distance + self.residual_error).clamp(max=2)

    @property
    def enclosure(self) -> tuple[Tensor, Tensor]:
        """Lower and upper end of an interval that holds the true gamma_i; (n,) each."""
        slack = 32 * unit_roundoff(self.length.dtype)
        lower = self.shortest.square() * (1 - slack)
        upper = self.longest.square() * (1 + slack)
        return outward(lower, upper, lower.dtype)


def resolved(values: InfoNCE) -> Resolved:
    """The certified ingredients of gamma_i, summed again in float64 where float32 is too coarse."""
    contrast = values.contrast
    known = _bounded(values, row_error(contrast.keys))
    if contrast.keys.dtype == accumulation_dtype(contrast.keys.device):
        return known
    doubtful = known.shortest < (1 - RESOLUTION) * known.longest  # (n,)
    if not full_float32_products():
        doubtful = torch.ones_like(doubtful)
    if not doubtful.any():
        return known
    chosen = doubtful.nonzero()[:, 0]  # (b,)
    again = infonce(_widened(contrast, chosen), values.tau)
    finer = _bounded(again, row_error(contrast.keys))
    columns = [field.name for field in fields(known) if field.name != "tau"]
    return replace(
        known,
        **{
            name: getattr(known, name).index_copy(0, chosen, getattr(finer, name))
            for name in columns
        },
    )


def _widened(contrast: Contrast, chosen: Tensor) -> Contrast:
    """The chosen anchors against all keys, in the accumulation dtype."""
    return Contrast(
        anchors=accumulated(contrast.anchors[chosen]),
        keys=accumulated(contrast.keys),
        positive=contrast.positive[chosen],
        itself=None if contrast.itself is None else contrast.itself[chosen],
        first_negative=contrast.first_negative,
    )


def _bounded(values: InfoNCE, rows: float) -> Resolved:
    """`values` with the error bounds of the module's docstring; `rows` is e."""
    contrast, tau = values.contrast, values.tau
    log_odds = accumulated(values.log_odds)  # (n,)
    mean, positives = accumulated(values.softmax_mean), accumulated(values.positives)  # (n, d)
    residual = mean - positives  # (n, d)
    distance = torch.linalg.vector_norm(residual, dim=1)  # (n,)
    d, count = residual.shape[1], len(contrast.candidates)
    additions = summation_length(contrast)
    unit, wide = unit_roundoff(values.softmax_mean.dtype), unit_roundoff(residual.dtype)

    weight = (_rounded(d + 12, unit) + 2.5 * rows) / tau + 10 * unit  # h
    direct = 2 * _rounded(additions + 2, unit) + rows  # f
    positive_logit = (2.5 * rows + _rounded(d + 4, wide)) / tau
    logarithm = 8 * wide * (1 / tau + math.log(count) + 1)
    fixed = weight + _rounded(additions, unit) + positive_logit + logarithm
    log_odds_error = fixed + (unit + 8 * wide) * log_odds.abs()
    along = torch.linalg.vecdot(residual, positives)  # (n,) <m~, z+> - 1
    spread = (2 * ((-along).clamp(min=0) + 5 * direct)).sqrt()  # (n,) of the negatives around z+
    tilt = math.expm1(2 * weight) if weight < 1 else math.inf
    return Resolved(
        tau=tau,
        log_odds=log_odds,
        mean=mean,
        positives=positives,
        concentration=1 / accumulated(values.effective_negatives),
        residual=residual,
        distance=distance,
        along=along,
        log_odds_error=log_odds_error,
        residual_error=tilt * spread + direct + rows + _rounded(d + 8, wide) * distance,
    )


def _rounded(count: int, unit: float) -> float:
    """g(k) = k u / (1 - k u): the relative error of k roundings; no bound from k u = 1 on."""
    return count * unit / (1 - count * unit) if count * unit < 1 else math.inf


def outward(lower: Tensor, upper: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The ends of a band of squares in `dtype`, never narrower than they were given.

    Below the smallest normal number nothing can be said: 0 and that number are the ends.
    """
    tiny = torch.finfo(dtype).tiny
    low, high = lower.to(dtype), upper.to(dtype)
    low = torch.where(low > lower, low.nextafter(torch.zeros_like(low)), low)
    high = torch.where(high < upper, high.nextafter(torch.full_like(high, torch.inf)), high)
    return torch.where(low < tiny, 0.0, low), high.clamp(min=tiny)


def summable(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a band, so that their floating-point sums and means are ends of the true ones.

    Adding n of them, dividing, and adding the sums of up to 1,024 processes is provided for.
    """
    slack = _rounded(len(lower) + 1024, unit_roundoff(lower.dtype))
    return lower * (1 - slack), upper * (1 + slack)


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
