"""The contrasts of all layouts over one geometry, and a brute-force reading of their masks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from clouds import cloud
from eigenbatch import Contrast

LAYOUTS = ("paired", "cross", "queued", "queued_with_batch")


def contrast(layout: str, kind: str, pairs: int, dim: int, *, seed: int = 0) -> Contrast:
    rows = cloud(kind, 3 * pairs + 5, dim, seed=seed)
    first, second, queue = rows[:pairs], rows[pairs : 2 * pairs], rows[2 * pairs :]
    match layout:
        case "paired":
            return Contrast.paired(first, second)
        case "cross":
            return Contrast.cross(first, second)
        case "queued":
            return Contrast.queued(first, second, queue)
        case "queued_with_batch":
            return Contrast.queued(first, second, queue, batch_negatives=True)
    raise AssertionError(layout)


@dataclass(frozen=True)
class Brute:
    """One anchor's softmax, straight from the definition."""

    positive_probability: Tensor
    negative_probabilities: Tensor  # (N-,)
    negatives: Tensor  # (N-, d)
    positive: Tensor  # (d,)


def brute_force(c: Contrast, tau: float, i: int) -> Brute:
    negatives = c.keys[c.negatives[i]]
    positive = c.keys[c.positive[i]]
    logits = torch.cat([positive[None], negatives]) @ c.anchors[i] / tau
    p = torch.softmax(logits, 0)
    return Brute(p[0], p[1:], negatives, positive)
