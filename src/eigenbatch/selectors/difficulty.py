"""The other direction: batches of *similar* rows, as in the strongest published samplers."""

import torch
from torch import Tensor

from eigenbatch.checks import real, whole
from eigenbatch.core.precision import no_autocast
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.search import SearchState, greedy_search, least_similar
from eigenbatch.selectors.selector import shuffled, unit_pool


class Clustered:
    """Hard batches: `clusters` random seeds and their nearest neighbours, in equal shares."""

    def __init__(self, clusters: int = 8) -> None:
        self.clusters = whole(clusters, "clusters", least=1)

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; a row near several seeds belongs to the first of them."""
        rows = unit_pool(pool, batch_size)
        clusters = min(self.clusters, batch_size)
        seeds = shuffled(len(rows), generator, rows.device)[:clusters]
        with no_autocast(rows):
            similarity = rows[seeds] @ rows.T  # (c, k)
        similarity[:, seeds] = -torch.inf  # a seed is no neighbour of another
        picks = []
        for i in range(clusters):
            share = batch_size // clusters + (i < batch_size % clusters)
            similarity[i, seeds[i]] = torch.inf
            members = similarity[i].topk(share).indices  # (share,)
            picks.append(members)
            similarity[:, members] = -torch.inf
        return torch.cat(picks)


class Blend:
    """One dial from similar to diverse batches: `weight` in [-1, 1], 0 is a random batch.

    Each pick is the least (weight > 0) or most (weight < 0) similar to the batch so far, out of a
    probe of k^|weight| rows: one row at 0, the whole pool at 1. Weight 1 is `Greedy(probe=None)`.
    """

    def __init__(self, weight: float) -> None:
        if not -1 <= real(weight, "weight") <= 1:
            raise ParameterError(f"weight must lie in [-1, 1], got {weight}")
        self.weight = weight

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        rows = unit_pool(pool, batch_size)
        whole = abs(self.weight) == 1
        probe = None if whole else max(1, round(len(rows) ** abs(self.weight)))
        if self.weight >= 0:
            return least_similar(rows, batch_size, probe=probe, generator=generator)
        return greedy_search(
            rows, batch_size, ranking=_most_similar, probe=probe, generator=generator
        )


def _most_similar(state: SearchState) -> Tensor:
    return -state.squares
