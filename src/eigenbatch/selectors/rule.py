"""What rules that compose with any selector share."""

import warnings
from copy import copy
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, check_choice, check_type
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors.offer import Adjust, Offer, searched_by, seeds_of, settled
from eigenbatch.selectors.selector import (
    Selector,
    check_state,
    may_stop_early,
    restore,
    state_of,
)

Shortfall = Literal["raise", "fill"]


class Rule:
    """A selector under a rule.

    shortfall: what to do when the rule leaves fewer than batch_size rows: "raise", or "fill" the
        batch with random other rows and warn. An offer that must be filled is filled in any case:
        at the end of an epoch that uses every sample, no rule can hold.

    `unkept` counts the batches that were filled. Only the first one is warned about.
    """

    def __init__(self, selector: Selector, shortfall: Shortfall) -> None:
        check_callable(selector, "selector", "Greedy()")
        check_choice(shortfall, get_args(Shortfall), "shortfall")
        if may_stop_early(selector):
            raise ParameterError(
                "a rule replaces rows of whole batches, and Greedy(literal=True) returns short "
                "ones: leave literal out, the window is kept without it"
            )
        self.selector = selector
        self.shortfall = shortfall
        self.unkept = 0
        self._counter = self  # bound copies count here

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch that keeps the rule."""
        return self.complete(Offer.of(pool, batch_size), batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Complete a batch: rows that are added keep the rule among each other and the given."""
        raise AssertionError("a rule completes a batch")

    def settle(self, offer: Offer) -> tuple[Selector, Adjust]:
        """The same rule on what the inner selector uses for the next batch."""
        check_type(offer, Offer, "offer")
        inner, adjust = settled(self.selector, offer)
        return self._around(inner), adjust

    @property
    def searched(self) -> int | None:
        """How many candidates the inner selector should be offered."""
        return searched_by(self.selector)

    @property
    def seeds(self) -> int | None:
        """How many samples of a batch the inner selector starts from."""
        return seeds_of(self.selector)

    @property
    def _parts(self) -> tuple[Selector, ...]:
        return (self.selector,)

    def _around(self, selector: Selector) -> Self:
        """The same rule for another inner selector, counting into the same `unkept`."""
        twin = copy(self)
        twin.selector = selector
        return twin

    def _filled(
        self,
        kept: Tensor,
        rule: str,
        offer: Offer,
        batch_size: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The rows that keep the rule, and random others; raises if that is not wanted."""
        count = len(offer.given) + len(offer.free)
        message = f"{rule} leaves {len(kept)} of {count} candidates, but batch_size is {batch_size}"
        if self.shortfall == "raise" and not offer.must_fill:
            raise ShapeError(f'{message}: enlarge the pool, or pass shortfall="fill"')
        self._counter.unkept += 1
        if self._counter.unkept == 1:
            text = "filled at random (said once; `unkept` counts such batches)"
            warnings.warn(f"{message}: {text}", NumericalWarning, stacklevel=3)
        order = offer.shuffled(generator)
        others = order[~torch.isin(order, kept)]
        return torch.cat([kept, others])[:batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The inner selector's state; a rule has none."""
        return state_of(self.selector)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless the inner selector would load `state`."""
        check_state(self.selector, state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the inner selector."""
        restore(self.selector, state)
