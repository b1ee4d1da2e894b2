"""Two losses to hold the measured one against: guessing, and embeddings that cannot be better."""

import math

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
