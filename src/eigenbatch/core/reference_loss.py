"""Two losses to hold the measured one against: guessing, and a forgotten self-mask."""

import math

import torch
from torch import Tensor


def chance_loss(negative_count: int) -> float:
    """log(N- + 1): the InfoNCE loss of guessing."""
    return math.log(negative_count + 1)


def unmasked_loss(log_odds: Tensor, positive_similarity: Tensor, tau: float) -> Tensor:
    """(n,) the loss of anchors that are also their own negatives: a forgotten self-mask.

    With a the log-odds of missing, the anchor itself adds exp((1 - s+) / tau) to exp(a).
    """
    odds = torch.logaddexp(log_odds, (1 - positive_similarity) / tau)
    return torch.nn.functional.softplus(odds)
