"""Two losses to hold the measured one against: guessing, and embeddings that cannot be better."""

import math

import torch
from torch import Tensor

from eigenbatch.core.precision import positive_scalar


def chance_loss(negative_count: int) -> float:
    """log(N- + 1): the InfoNCE loss of guessing."""
    return math.log(negative_count + 1)


def separated_loss(negative_count: int, tau: float | Tensor) -> float:
    """log(1 + N- exp(-1 / tau)): positives identical, negatives orthogonal.

    Many more samples than dimensions cannot do better on average, so when this is near chance the
    temperature, not the encoder, keeps the loss there.
    """
    return math.log1p(negative_count * math.exp(-1 / positive_scalar(tau, "tau")))


def unmasked_loss(log_odds: Tensor, positive_similarity: Tensor, tau: float) -> Tensor:
    """(n,) the loss of anchors that are also their own negatives: a forgotten self-mask.

    With a the log-odds of missing, the anchor itself adds exp((1 - s+) / tau) to exp(a).
    """
    odds = torch.logaddexp(log_odds, (1 - positive_similarity) / tau)
    return torch.nn.functional.softplus(odds)
