"""One weight between similar and diverse batches."""

import torch
from torch import Tensor

from eigenbatch.checks import real
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.least_similar import least_similar
from eigenbatch.selectors.offer import Offer, check_offer, mapped
from eigenbatch.selectors.search import SearchState, greedy_search


class Blend:
    """From similar to diverse batches: `weight` in [-1, 1], 0 is a random batch.

    Each pick is the least (weight > 0) or most (weight < 0) similar to the batch so far, out of a
    probe of k^|weight| rows: one row at 0, the whole pool at 1. Weight 1 is `Greedy(probe=None)`.

    Args:
        weight: from -1, most similar, to 1, most diverse.

    Examples:
        >>> import torch
        >>> from eigenbatch import Blend, participation_ratio, select
        >>> pool = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> similar, diverse = (pool[select(pool, 20, Blend(w))] for w in (-0.5, 0.5))
        >>> participation_ratio(similar) < participation_ratio(diverse)
        True
    """

    def __init__(self, weight: float) -> None:
        if not -1 <= real(weight, "weight") <= 1:
            raise ParameterError(f"weight must lie in [-1, 1], got {weight}")
        self.weight = weight

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        return self.complete(Offer.of(pool, batch_size), batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add rows to the given ones, by the first tower."""
        check_offer(offer, batch_size, generator)
        rows, index = mapped(offer)
        begun = len(offer.given)
        whole = abs(self.weight) == 1
        probe = None if whole else max(1, round(len(rows) ** abs(self.weight)))
        if self.weight >= 0:
            picks = least_similar(rows, batch_size, probe=probe, generator=generator, begun=begun)
        else:
            picks = greedy_search(
                rows,
                batch_size,
                ranking=_most_similar,
                probe=probe,
                generator=generator,
                begun=begun,
            )
        return index[picks]


def _most_similar(state: SearchState) -> Tensor:
    return -state.squares
