"""Hard batches: a few random samples, each with its nearest neighbours."""

import torch
from torch import Tensor

from eigenbatch.checks import whole
from eigenbatch.selectors.offer import Offer, check_offer, places_of

SEARCHED = 65536
"""Candidates that a sampler offers where it has to copy them."""


class Neighbours:
    """Batches of similar samples: each of `seeds` random samples brings its nearest ones.

    Similar samples are hard negatives of each other. They pay where random batches are easy
    (nearly all positives beat all negatives: sentence pairs, CLIP-like training), and not where
    random batches are hard already. Few seeds make hard batches, many seeds easier ones.

    With two towers a neighbour is a hard negative, `<anchor_i, key_j>`, in the mean of both
    directions. If rows are in the batch already, the first of them are the seeds. The picks take
    turns over the seeds, so that a smaller batch is the beginning of a larger one.

    Args:
        seeds: random samples of a batch. `SpectralBatchSampler` also makes this number of the
            longest-waiting samples seeds of a batch in coverage "epoch" and "stream".

    Examples:
        >>> import torch
        >>> from eigenbatch import Neighbours, select
        >>> corners = torch.eye(4).repeat(25, 1)  # 25 copies of each
        >>> chosen = select(corners, 20, Neighbours(seeds=1))
        >>> len(set(chosen.remainder(4).tolist()))  # all from one corner
        1
    """

    searched = SEARCHED
    extendable = True  # see NoNearDuplicates

    def __init__(self, seeds: int = 4) -> None:
        self.seeds = whole(seeds, "seeds", least=1)

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; a row near several seeds belongs to the first that takes it."""
        return self.complete(Offer.of(pool, batch_size), batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add the nearest of the first given rows; if these are too few, also of random ones."""
        check_offer(offer, batch_size, generator)
        given = offer.given
        missing = min(self.seeds, batch_size) - len(given)
        batch = torch.cat([given, offer.starts(missing, generator)]) if missing > 0 else given
        seeds = batch[: self.seeds]
        return torch.cat([batch, nearest(offer, seeds, batch, batch_size - len(batch))])


def nearest(offer: Offer, seeds: Tensor, batch: Tensor, count: int) -> Tensor:
    """(count,) rows outside `batch`, in turns the nearest left to each of the seeds."""
    if count == 0:
        return batch[:0]
    similarity = offer.similarity(seeds)  # (k, s)
    if offer.barred is not None:
        similarity.index_fill_(0, places_of(offer.barred), -torch.inf)
    similarity[batch] = -torch.inf
    shares = [count // len(seeds) + (i < count % len(seeds)) for i in range(len(seeds))]
    turns = torch.full((shares[0], len(seeds)), -1, dtype=torch.int64, device=seeds.device)
    for i, share in enumerate(shares):
        members = similarity[:, i].topk(share).indices  # (share,) the nearest first
        turns[:share, i] = members
        similarity[members] = -torch.inf
    picks = turns.flatten()
    return picks[picks >= 0]
