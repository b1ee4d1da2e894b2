"""P2 "to escape flats": another selector while the training loss stands still."""

import math
from collections import deque
from typing import Any

from torch import Tensor

from eigenbatch.checks import (
    are_numbers,
    check_callable,
    check_entries,
    check_type,
    real,
    whole,
)
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.selector import Selector, holds_state_of, restore, state_of
from eigenbatch.selectors.switching import Switching


class LossPlateau:
    """Whether the training loss stands still.

    It does when the mean of the last `span` losses is not below that of the `span` before by more
    than `tolerance`, relatively. Call `observe` with the loss of every step; our trainer does.

    Args:
        tolerance: smallest relative fall that counts.
        span: losses that are averaged.

    Examples:
        >>> from eigenbatch.selectors import LossPlateau
        >>> plateau = LossPlateau(span=2)
        >>> for loss in (4.0, 3.0, 2.0, 1.0):
        ...     plateau.observe(loss)
        >>> plateau.reached
        False
        >>> for loss in (1.0, 1.0, 1.0):
        ...     plateau.observe(loss)
        >>> plateau.reached
        True
    """

    def __init__(self, tolerance: float = 0.01, *, span: int = 100) -> None:
        if not real(tolerance, "tolerance") >= 0:
            raise ParameterError(f"tolerance must be at least 0, got {tolerance}")
        self.tolerance, self.span = tolerance, whole(span, "span", least=1)
        self._losses: deque[float] = deque(maxlen=2 * self.span)

    def observe(self, loss: float) -> None:
        """Note the loss of one step; one that is not finite says nothing about a plateau."""
        if math.isfinite(number := real(loss, "loss")):
            self._losses.append(number)

    @property
    def reached(self) -> bool:
        """Whether the loss stands still; False until there are enough losses to say."""
        if len(self._losses) < 2 * self.span:
            return False
        losses = list(self._losses)
        before, latest = sum(losses[: self.span]), sum(losses[self.span :])
        return before - latest <= self.tolerance * abs(before)

    def state_dict(self) -> dict[str, Any]:
        """The losses kept."""
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with them."""
        check_entries(state, "LossPlateau", {"losses": are_numbers})
        self._losses = deque(state["losses"], maxlen=2 * self.span)


class OnLossPlateau(Switching):
    """`selector` while the loss stands still, `otherwise` while it falls.

    The losses are no part of the selector's state: they arrive after a batch was chosen. Save
    `plateau` as well; our trainer does.

    Args:
        selector: for the plateau.
        otherwise: for the rest of the time.
        plateau: receives the losses.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import OnLossPlateau, PoolBalanced, PoolMin, select
        >>> selector = OnLossPlateau(PoolMin(), PoolBalanced())
        >>> selector.plateau.observe(2.5)
        >>> len(select(torch.randn(40, 8), 10, selector))
        10
    """

    def __init__(
        self, selector: Selector, otherwise: Selector, plateau: LossPlateau | None = None
    ) -> None:
        check_callable(selector, "selector", "PoolMin()")
        check_callable(otherwise, "otherwise", "PoolBalanced()")
        check_type(plateau, (LossPlateau, type(None)), "plateau")
        self.selector, self.otherwise = selector, otherwise
        self.plateau = LossPlateau() if plateau is None else plateau

    @property
    def _parts(self) -> tuple[Selector, ...]:
        return self.selector, self.otherwise

    def _policy(self, pool: Tensor) -> Selector:
        return self.selector if self.plateau.reached else self.otherwise

    def state_dict(self) -> dict[str, Any]:
        """The state of both parts."""
        return {"selector": state_of(self.selector), "otherwise": state_of(self.otherwise)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of both parts."""
        parts = {"selector": self.selector, "otherwise": self.otherwise}
        entries = {name: holds_state_of(part) for name, part in parts.items()}
        check_entries(state, "OnLossPlateau", entries)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with them."""
        self.check_state_dict(state)
        restore(self.selector, state["selector"])
        restore(self.otherwise, state["otherwise"])
