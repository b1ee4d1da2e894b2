"""What selectors share that use one of several others for each batch."""

import torch
from torch import Tensor

from eigenbatch.checks import check_generator, check_type
from eigenbatch.selectors.offer import (
    Adjust,
    Offer,
    allowed_rows,
    check_offer,
    complete,
    searched_by,
    seeds_of,
    settled,
)
from eigenbatch.selectors.selector import Selector, bound, check_ids, check_sizes


class Switching:
    """A selector that uses one of several for each batch."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch by the policy in force."""
        check_sizes(pool, batch_size)
        check_generator(generator)
        return self._policy(pool)(pool, batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Complete one batch by the policy in force."""
        check_offer(offer, batch_size, generator)
        return complete(self.policy(offer), offer, batch_size, generator=generator)

    def policy(self, offer: Offer) -> Selector:
        """The selector of the next batch; counts as one batch."""
        check_type(offer, Offer, "offer")
        return self._policy(allowed_rows(offer))

    def settle(self, offer: Offer) -> tuple[Selector, Adjust]:
        """The policy of the next batch, settled itself; counts as one batch."""
        return settled(self.policy(offer), offer)

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The same selector for a pool whose row i is sample `ids[i]`."""
        return _Bound(self, ids, of)

    @property
    def searched(self) -> int | None:
        """How many candidates the parts should be offered: the most that one of them asks for."""
        return max(
            (n for part in self._parts if (n := searched_by(part)) is not None), default=None
        )

    @property
    def seeds(self) -> int | None:
        """How many samples of a batch the parts start from: the fewest, others draw more."""
        return min((n for part in self._parts if (n := seeds_of(part)) is not None), default=None)

    @property
    def _parts(self) -> tuple[Selector, ...]:
        raise AssertionError("a switching selector names its parts")

    def _policy(self, pool: Tensor) -> Selector:
        raise AssertionError("a switching selector picks one of its parts")


class _Bound(Switching):
    """A policy that is picked when it is asked, then bound to the samples of the pool."""

    def __init__(self, selector: Switching, ids: Tensor, of: int | None) -> None:
        check_ids(ids, of)
        self._selector, self._ids, self._of = selector, ids, of

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """For some of the rows it is bound to already."""
        return _Bound(self._selector, self._ids[ids.to(self._ids.device)], self._of)

    @property
    def _parts(self) -> tuple[Selector, ...]:
        return (self._selector,)

    def _policy(self, pool: Tensor) -> Selector:
        return bound(self._selector._policy(pool), self._ids, self._of)
