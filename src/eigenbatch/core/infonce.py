"""InfoNCE of one batch, summarised per anchor in closed form (Steps 1-4 of the proof).

Letters: n anchors, M candidate negatives, d dimension.

With q the softmax over the negatives alone and m_i = sum_j q_ij z_j, everything about anchor i
follows from its log-odds a_i = logsumexp_j(s_ij / tau) - s_i+ / tau and from m_i:

    loss = softplus(a)    miss eps = sigmoid(a)    gradient = (eps / tau) (m - z+)

The miss is thus a sum over negatives; 1 - p, which cancels, never appears.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.precision import no_autocast, positive_scalar

BLOCK_ELEMENTS = 2**20
"""Logits held at once: a (rows, M) block, small enough to stay in cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InfoNCE:
    """Per-anchor values; a gradient is that of the anchor's own loss, keys held fixed."""

    tau: float
    log_odds: Tensor  # (n,) of missing the positive
    softmax_mean: Tensor  # (n, d) m_i, negatives only
    positives: Tensor  # (n, d) z_i+
    effective_negatives: Tensor  # (n,) 1 / ||q_i||^2
    negative_mean: Tensor  # (n, d) plain mean of negatives

    @property
    def loss(self) -> Tensor:
        """(n,) -log p_i+."""
        return softplus(self.log_odds)

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
        """(n,) <m_i, z_i+>: how much the weighted negatives look like the positive."""
        return (self.softmax_mean * self.positives).sum(1)

    @property
    def alignment(self) -> Tensor:
        """(n,) rho_i = <M_i, z_i+> = 1 - eps_i (1 - <m_i, z_i+>)."""
        return 1 - self.miss * (1 - self.confusion)

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
    def negative_mean_sqnorm(self) -> Tensor:
        """(n,) ||zbar_i-||^2: 1/N- for independent negatives, more when they are correlated."""
        return self.negative_mean.square().sum(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decomposition:
    """delta_i = M_i - z_i+ = A_i + B_i + C_i (Step 4); each (n, d)."""

    softmax_error: Tensor  # A = -eps z+
    sampling: Tensor  # B = eps zbar-
    fluctuation: Tensor  # C = eps sum (q - 1/N-) z

    @property
    def total(self) -> Tensor:
        """(n, d) delta_i, which is tau times the anchor gradient."""
        return self.softmax_error + self.sampling + self.fluctuation


@torch.no_grad()
def infonce(contrast: Contrast, tau: float | Tensor) -> InfoNCE:
    """Everything InfoNCE says about each anchor, in row blocks of bounded memory.

    The result is detached: it describes a batch, it does not train one.
    """
    temperature = positive_scalar(tau, "tau")
    anchors, candidates = contrast.anchors, contrast.candidates
    n, d = anchors.shape
    count = len(candidates)
    positives = contrast.keys[contrast.positive]  # (n, d)
    log_odds = anchors.new_empty(n)
    softmax_mean = anchors.new_empty(n, d)
    concentration = anchors.new_empty(n)  # ||q_i||^2

    rows = max(1, BLOCK_ELEMENTS // count)
    with no_autocast(anchors):
        for start in range(0, n, rows):
            block = slice(start, start + rows)
            logits = (anchors[block] / temperature) @ candidates.T  # (b, M)
            for index in contrast.removed:
                logits.scatter_(1, index[block, None], -torch.inf)
            peak = logits.amax(1, keepdim=True)  # (b, 1)
            weights = logits.sub_(peak).exp_()  # (b, M) unnormalised
            mass = weights.sum(1, keepdim=True)  # (b, 1) at least 1
            softmax_mean[block] = (weights @ candidates) / mass
            concentration[block] = (torch.linalg.vector_norm(weights, dim=1) / mass[:, 0]).square()
            positive_logit = (anchors[block] * positives[block]).sum(1) / temperature
            log_odds[block] = peak[:, 0] + mass[:, 0].log() - positive_logit

    total = candidates.sum(0) - sum(contrast.keys[index] for index in contrast.removed)
    return InfoNCE(
        tau=temperature,
        log_odds=log_odds,
        softmax_mean=softmax_mean,
        positives=positives,
        effective_negatives=1 / concentration,
        negative_mean=(total / contrast.negative_count).expand(n, d),
    )


def decompose(contrast: Contrast, tau: float | Tensor) -> Decomposition:
    """The exact split of tau times the anchor gradient into error, sampling and fluctuation."""
    values = infonce(contrast, tau)
    miss = values.miss[:, None]  # (n, 1)
    return Decomposition(
        softmax_error=-miss * values.positives,
        sampling=miss * values.negative_mean,
        fluctuation=miss * (values.softmax_mean - values.negative_mean),
    )
