"""Selectors: which samples of a pool should share a batch.

`eigenbatch.select` is this package and the function `select` at once, so it can be called.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from eigenbatch.select.selector import Selector


class _Package(ModuleType):
    def __call__(
        self,
        pool: "Tensor",
        batch_size: int,
        selector: "Selector",
        *,
        generator: "Generator | None" = None,
    ) -> "Tensor":
        """See `eigenbatch.select.selector.select`."""
        from eigenbatch.select.selector import select

        return select(pool, batch_size, selector, generator=generator)


sys.modules[__name__].__class__ = _Package
