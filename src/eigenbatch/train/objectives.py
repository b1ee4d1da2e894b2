"""Contrastive losses that train, and the negative-side baselines of the paper.

Letters: b anchors of this process, B keys of all processes, K queue keys, d dimension; unit rows.
The diagnostics of `eigenbatch.core` describe the same losses, detached and in closed form.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from eigenbatch.core.contrast import accumulated
from eigenbatch.errors import ParameterError


def nt_xent(anchors: Tensor, keys: Tensor, itself: Tensor, positive: Tensor, tau: float) -> Tensor:
    """Mean NT-Xent of anchors (b, d) against keys (B, d); `itself`, `positive` (b,) index keys."""
    logits = anchors @ keys.T / tau  # (b, B)
    return cross_entropy(logits.scatter(1, itself[:, None], -torch.inf), positive)


def supervised_contrastive(
    anchors: Tensor, keys: Tensor, itself: Tensor, labels: Tensor, key_labels: Tensor, tau: float
) -> Tensor:
    """SupCon (Khosla et al., L_out): -log p averaged over an anchor's positives, then anchors."""
    logits = (anchors @ keys.T / tau).scatter(1, itself[:, None], -torch.inf)  # (b, B)
    log_p = logits.log_softmax(1)
    same = (labels[:, None] == key_labels).scatter(1, itself[:, None], False)  # (b, B)
    total = log_p.masked_fill(~same, 0.0).sum(1)
    return -(total / same.sum(1)).mean()  # the other view is always same


def queue_loss(queries: Tensor, keys: Tensor, negative_cosines: Tensor, tau: float) -> Tensor:
    """MoCo: query i against its key and its negatives' cosines (b, m)."""
    positive = (queries * keys).sum(1, keepdim=True)  # (b, 1)
    logits = torch.cat([positive, negative_cosines], 1) / tau
    return cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.long))


class AllNegatives:
    """MoCo's own: every key of the queue."""

    def __call__(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        """(b, K) cosines."""
        return queries @ queue.T


class MixedNegatives:
    """Hard-negative mixing as the paper uses it: the positive mixed with the hardest queue keys.

    To the queue are added `count` synthetic negatives per query, ratio * key + (1 - ratio) * hard,
    put back on the sphere; the ratio is fixed.
    """

    def __init__(self, count: int = 16, ratio: float = 0.3) -> None:
        if count < 1 or not 0 < ratio < 1:
            raise ParameterError(
                f"count must be at least 1 and ratio in (0, 1), got {count}, {ratio}"
            )
        self.count, self.ratio = count, ratio

    def __call__(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        """(b, K + count) cosines."""
        cosines = queries @ queue.T  # (b, K)
        hardest = cosines.detach().topk(min(self.count, len(queue)), 1).indices  # (b, c)
        mixed = self.ratio * keys[:, None] + (1 - self.ratio) * queue[hardest]  # (b, c, d)
        synthetic = (normalize(mixed, dim=2) * queries[:, None]).sum(2)  # (b, c)
        return torch.cat([cosines, synthetic], 1)


class DistanceWeighted:
    """Distance-weighted sampling from the queue (Wu et al. 2017).

    On the sphere S^(d-1) distances have density q(r) = r^(d-2) (1 - r^2/4)^((d-3)/2); `count` keys
    per query are drawn with the weight min(cap, 1 / q(r)), so that all distances are as likely. The
    cap is 1 / q(closest): neither noise among the nearest keys nor a key on the far side, where q
    vanishes too, takes over.
    """

    def __init__(self, count: int = 1024, closest: float = 0.5) -> None:
        if count < 1 or not 0 < closest < 2:
            raise ParameterError(
                f"count must be at least 1 and closest in (0, 2), got {count}, {closest}"
            )
        self.count, self.closest = count, closest

    def __call__(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        """(b, count) cosines, all of the queue if that is fewer."""
        cosines = queries @ queue.T  # (b, K)
        if len(queue) <= self.count:
            return cosines
        chosen = self.weights(cosines.detach(), queries.shape[1]).multinomial(self.count)
        return cosines.gather(1, chosen)

    def weights(self, cosines: Tensor, dim: int) -> Tensor:
        """(b, K) sampling weights, largest one."""
        distance = (2 - 2 * accumulated(cosines)).clamp(min=0).sqrt()
        distance = distance.clamp(self.closest, 2 - 1e-6)
        least = _log_density(distance.new_tensor(self.closest), dim)
        log_density = _log_density(distance, dim).clamp(min=least)
        return (log_density.amin(1, keepdim=True) - log_density).exp()


def _log_density(distance: Tensor, dim: int) -> Tensor:
    """Log of the density of distances between random points of the sphere, up to a constant."""
    return (dim - 2) * distance.log() + (dim - 3) / 2 * (1 - distance**2 / 4).log()
