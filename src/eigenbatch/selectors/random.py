"""The baseline: every row as likely as any other."""

import torch
from torch import Tensor

from eigenbatch.selectors.selector import check_pool, shuffled


class Random:
    """`batch_size` rows drawn uniformly without replacement."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        check_pool(pool, batch_size)
        return shuffled(len(pool), generator, pool.device)[:batch_size]
