"""What rules that compose with any selector share."""

import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, check_choice
from eigenbatch.errors import NumericalWarning, ShapeError
from eigenbatch.selectors.offer import Offer, searched_by, seeds_of
from eigenbatch.selectors.selector import (
    Selector,
    check_state,
    restore,
    state_of,
)

Shortfall = Literal["raise", "fill"]


class Rule:
    """A selector under a rule.

    shortfall: what to do when the rule leaves fewer than batch_size rows: "raise", or "fill" the
        batch with random other rows and warn (a sampler that must use every sample needs that).
    """

    def __init__(self, selector: Selector, shortfall: Shortfall) -> None:
        check_callable(selector, "selector", "Greedy()")
        check_choice(shortfall, get_args(Shortfall), "shortfall")
        self.selector = selector
        self.shortfall = shortfall

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

    @property
    def searched(self) -> int | None:
        """How many candidates the inner selector should be offered."""
        return searched_by(self.selector)

    @property
    def seeds(self) -> int | None:
        """How many samples of a batch the inner selector starts from."""
        return seeds_of(self.selector)

    def _filled(
        self,
        kept: Tensor,
        rule: str,
        offer: Offer,
        batch_size: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """The rows that keep the rule, and random others; raises if that is not wanted."""
        message = f"{rule} leaves {len(kept)} of {len(offer)} rows, but batch_size is {batch_size}"
        if self.shortfall == "raise":
            raise ShapeError(f'{message}: enlarge the pool, or pass shortfall="fill"')
        warnings.warn(f"{message}: filled at random", NumericalWarning, stacklevel=3)
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
