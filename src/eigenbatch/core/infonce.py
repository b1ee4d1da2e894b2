"""InfoNCE of one batch, summarised per anchor in closed form (Steps 1-4 of the proof).

Letters: n anchors, M candidate negatives, d dimension.

With q the softmax over the negatives alone and m_i = sum_j q_ij z_j, everything about anchor i
follows from its log-odds a_i = logsumexp_j(s_ij / tau) - s_i+ / tau and from m_i:

    loss = softplus(a)    miss eps = sigmoid(a)    gradient = (eps / tau) (m - z+)

The miss is thus a sum over negatives; 1 - p, which cancels, never appears.

Two losses to hold the measured one against: guessing, and a forgotten self-mask.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eigenbatch.core.contrast import (
    Contrast,
    accumulated,
    check_contrast,
    no_autocast,
    positive_scalar,
)

BLOCK_ELEMENTS = 2**20
"""Logits held at once: a (rows, M) block, small enough to stay in cache."""

SUM_LENGTH = 2**10
"""Terms summed at once. Partial sums are added up, so that rounding grows with this, not with M."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InfoNCE:
    """Per-anchor values; a gradient is that of the anchor's own loss, keys held fixed.

    Args:
        contrast: the batch.
        tau: softmax temperature.
        log_odds: (n,) log-odds of missing the positive.
        softmax_mean: (n, d) m_i, the softmax mean of the negatives only.
        positives: (n, d) z_i+.
        effective_negatives: (n,) 1 / ||q_i||^2, q the softmax over negatives.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, infonce
        >>> values = infonce(Contrast.cross(torch.eye(4), torch.eye(4)), tau=1.0)
        >>> bool((values.positive_probability + values.miss - 1).abs().max() < 1e-6)
        True
    """

    contrast: Contrast
    tau: float
    log_odds: Tensor
    softmax_mean: Tensor
    positives: Tensor
    effective_negatives: Tensor

    @property
    def loss(self) -> Tensor:
        """(n,) -log p_i+."""
        return softplus(self.log_odds, threshold=40)  # beyond, exp(-x) is lost in float64 too

    @property
    def positive_probability(self) -> Tensor:
        """(n,) p_i+."""
        return torch.sigmoid(-self.log_odds)

    @property
    def miss(self) -> Tensor:
        """(n,) eps_i = 1 - p_i+, without the subtraction."""
        return torch.sigmoid(self.log_odds)

    @property
    def confusion(self) -> Tensor:
        """(n,) `<m_i, z_i+>`: how much the weighted negatives look like the positive."""
        return (self.softmax_mean * self.positives).sum(1)

    @property
    def margin(self) -> Tensor:
        """(n,) `1 - <m_i, z_i+> = <z_i+ - m_i, z_i+>`, without the subtraction from 1."""
        return ((self.positives - self.softmax_mean) * self.positives).sum(1)

    @property
    def alignment(self) -> Tensor:
        """(n,) `rho_i = <M_i, z_i+> = 1 - eps_i (1 - <m_i, z_i+>)`."""
        return 1 - self.miss * self.margin

    @property
    def geometry(self) -> Tensor:
        """(n,) ||m_i - z_i+||^2 in [0, 4]: the squared gradient is (miss / tau)^2 times this."""
        return (self.softmax_mean - self.positives).square().sum(1)

    @property
    def squared_gradient(self) -> Tensor:
        """(n,) gamma_i = ||grad_{z_i} L_i||^2."""
        return (self.miss / self.tau).square() * self.geometry

    @property
    def gradients(self) -> Tensor:
        """(n, d) grad_{z_i} L_i (Step 3), keys held fixed."""
        return (self.miss / self.tau)[:, None] * (self.softmax_mean - self.positives)

    @property
    def negative_mean(self) -> Tensor:
        """(n, d) plain mean of each anchor's negatives."""
        c = self.contrast
        total = c.candidates.sum(0) - sum(c.keys[index] for index in c.removed)
        return (total / c.negative_count).expand_as(self.positives)

    @property
    def negative_mean_sqnorm(self) -> Tensor:
        """(n,) ||zbar_i-||^2: 1/N- for independent negatives, more when they are correlated."""
        return self.negative_mean.square().sum(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposition:
    """delta_i = M_i - z_i+ = A_i + B_i + C_i (Step 4).

    Args:
        softmax_error: (n, d) A = -eps z+.
        sampling: (n, d) B = eps zbar-.
        fluctuation: (n, d) C = eps sum (q - 1/N-) z.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast
        >>> from eigenbatch.core import decompose
        >>> parts = decompose(Contrast.cross(torch.eye(4), torch.eye(4)), tau=1.0)
        >>> bool(parts.fluctuation.abs().max() < 1e-6)  # equal negatives: nothing fluctuates
        True
    """

    softmax_error: Tensor
    sampling: Tensor
    fluctuation: Tensor

    @property
    def total(self) -> Tensor:
        """(n, d) delta_i, which is tau times the anchor gradient."""
        return self.softmax_error + self.sampling + self.fluctuation


@torch.no_grad()
def infonce(contrast: Contrast, tau: float | Tensor) -> InfoNCE:
    """Everything InfoNCE says about each anchor, in row blocks of bounded memory.

    The result is detached: it describes a batch, it does not train one.

    Args:
        contrast: the batch.
        tau: softmax temperature that similarities are divided by.

    Returns:
        Loss, miss, gradient and their parts, one value per anchor.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, infonce
        >>> values = infonce(Contrast.cross(torch.eye(4), torch.eye(4)), tau=1.0)
        >>> round(values.loss.mean().item(), 4)  # log(e + 3) - 1
        0.7437
    """
    check_contrast(contrast)
    temperature = positive_scalar(tau, "tau")
    anchors = contrast.anchors
    positives = contrast.keys[contrast.positive]  # (n, d)
    # Logits lie in [-1/tau, 1/tau]: with one common shift, squared weights stay above the smallest
    # normal number where that is narrow enough, and the weights of both views are symmetric.
    narrow = 4 / temperature < -math.log(torch.finfo(anchors.dtype).tiny)
    with no_autocast(anchors):
        if anchors is contrast.keys and narrow:
            sums = _symmetric_sums(contrast, temperature)
        else:
            sums = _sums(contrast, temperature)
    positive_logit = (accumulated(anchors) * positives).sum(1) / temperature  # (n,)
    log_odds = accumulated(sums.mass).log() + sums.peak - positive_logit
    softmax_mean = sums.weighted / sums.mass[:, None]
    concentration = sums.squares / sums.mass.square()  # (n,) ||q_i||^2

    return InfoNCE(
        contrast=contrast,
        tau=temperature,
        log_odds=log_odds.to(anchors.dtype),
        softmax_mean=softmax_mean,
        positives=positives,
        effective_negatives=1 / concentration,
    )


@dataclass(slots=True)
class _Sums:
    """Sums over an anchor's negatives of w = exp(logit - peak)."""

    peak: Tensor | float
    mass: Tensor  # (n,) of w
    squares: Tensor  # (n,) of w^2
    weighted: Tensor  # (n, d) of w z


def _sums(contrast: Contrast, tau: float) -> _Sums:
    """Any layout and temperature: each anchor's largest logit is its peak."""
    anchors, candidates = contrast.anchors, contrast.candidates
    n, d = anchors.shape
    peaks, mass, squares = anchors.new_zeros(3, n)
    weighted = anchors.new_zeros(n, d)
    rows = max(1, BLOCK_ELEMENTS // len(candidates))
    for start in range(0, n, rows):
        block = slice(start, start + rows)
        logits = (anchors[block] / tau) @ candidates.T  # (b, M)
        for index in contrast.removed:
            logits.scatter_(1, index[block, None], -torch.inf)
        peak = logits.amax(1, keepdim=True)  # (b, 1)
        weights = logits.sub_(peak).exp_()  # (b, M)
        peaks[block] = peak[:, 0]
        _add_rows(weights, candidates, mass[block], squares[block], weighted[block])
    return _Sums(peaks, mass, squares, weighted)


def _symmetric_sums(contrast: Contrast, tau: float) -> _Sums:
    """NT-Xent: w_ij = w_ji under a common peak of 1/tau, so half of the weights are enough."""
    rows, positive = contrast.anchors, contrast.positive
    n, d = rows.shape
    mass, squares = rows.new_zeros(2, n)
    weighted = rows.new_zeros(n, d)
    size = _symmetric_block(n)
    for start in range(0, n, size):
        stop = min(start + size, n)
        weights = (rows[start:stop] / tau) @ rows[start:].T  # (b, n - start)
        weights.sub_(1 / tau).exp_()
        weights.diagonal().zero_()  # itself
        partner = positive[start:stop] - start  # (b,)
        ahead = (partner >= 0).nonzero()[:, 0]
        weights[ahead, partner[ahead]] = 0
        block = slice(start, stop)
        _add_rows(weights, rows[start:], mass[block], squares[block], weighted[block])
        below = weights[:, stop - start :]  # (b, n - stop): the mirrored block
        mass[stop:] += below.sum(0)
        squares[stop:] += below.square().sum(0)
        weighted[stop:] += below.T @ rows[start:stop]
    return _Sums(1 / tau, mass, squares, weighted)


def _symmetric_block(n: int) -> int:
    """Rows of a block of `_symmetric_sums`."""
    return min(max(1, BLOCK_ELEMENTS // n), max(1, n // 4))


def _add_rows(
    weights: Tensor, rows: Tensor, mass: Tensor, squares: Tensor, weighted: Tensor
) -> None:
    """Add w, w^2 and w z, summed over the columns of weights (b, M), to their totals in place."""
    parts = zip(torch.split(weights, SUM_LENGTH, 1), torch.split(rows, SUM_LENGTH), strict=True)
    for part, part_rows in parts:  # (b, l), (l, d)
        mass += part.sum(1)
        squares += torch.linalg.vector_norm(part, dim=1).square()
        weighted += part @ part_rows


def summation_length(contrast: Contrast) -> int:
    """The most additions that a term of the sums above goes through, whatever their order."""
    n, total = len(contrast.anchors), len(contrast.candidates)
    size = _symmetric_block(n)
    length = min(total, SUM_LENGTH) + math.ceil(total / SUM_LENGTH)
    return max(length, size) + math.ceil(n / size) if contrast.anchors is contrast.keys else length


def decompose(contrast: Contrast, tau: float | Tensor) -> Decomposition:
    """The exact split of tau times the anchor gradient into error, sampling and fluctuation.

    Args:
        contrast: the batch.
        tau: softmax temperature.

    Returns:
        The three parts of every anchor.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast, infonce
        >>> from eigenbatch.core import decompose
        >>> z = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0))
        >>> batch = Contrast.paired(*z)
        >>> parts, values = decompose(batch, tau=0.5), infonce(batch, tau=0.5)
        >>> torch.allclose(parts.total, 0.5 * values.gradients, atol=1e-6)
        True
    """
    values = infonce(contrast, tau)
    miss = values.miss[:, None]  # (n, 1)
    return Decomposition(
        softmax_error=-miss * values.positives,
        sampling=miss * values.negative_mean,
        fluctuation=miss * (values.softmax_mean - values.negative_mean),
    )


def chance_loss(negative_count: int) -> float:
    """log(N- + 1): the InfoNCE loss of guessing."""
    return math.log(negative_count + 1)


def unmasked_loss(log_odds: Tensor, positive_similarity: Tensor, tau: float) -> Tensor:
    """(n,) the loss of anchors that are also their own negatives: a forgotten self-mask.

    With a the log-odds of missing, the anchor itself adds exp((1 - s+) / tau) to exp(a).
    """
    odds = torch.logaddexp(log_odds, (1 - positive_similarity) / tau)
    return torch.nn.functional.softplus(odds)
