"""The baseline: every row as likely as any other."""

import torch
from torch import Tensor

from eigenbatch.selectors.offer import Offer, check_offer
from eigenbatch.selectors.selector import check_pool, shuffled


class Random:
    """`batch_size` rows drawn uniformly without replacement.

    Examples:
        >>> import torch
        >>> from eigenbatch import Random, select
        >>> len(select(torch.randn(40, 8), 10, Random()).unique())
        10
    """

    extendable = True  # a smaller batch is as good as the beginning of a larger one

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        check_pool(pool, batch_size)
        return shuffled(len(pool), generator, pool.device)[:batch_size]

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add random rows to the given ones."""
        check_offer(offer, batch_size, generator)
        return torch.cat([offer.given, offer.shuffled(generator)])[:batch_size]
