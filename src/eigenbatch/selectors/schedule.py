"""The paper's practical recipe as composition: one policy, then another once a signal is true."""

from typing import Any

from torch import Tensor

from eigenbatch.checks import check_callable, check_entries, is_count, is_flag, whole
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.pool import PoolBalanced
from eigenbatch.selectors.selector import Selector, holds_state_of, restore, state_of
from eigenbatch.selectors.signals import AfterBatches as AfterBatches
from eigenbatch.selectors.signals import IsotropyBelow, Signal
from eigenbatch.selectors.switching import Switching


class Schedule(Switching):
    """`warmup` until `when` is true for the first time, `then` from that batch on.

    The default is the paper's recipe: Pool-P3, then Greedy-64 once the isotropy gap is at most 5 %.
    Schedules nest: `then` may be another one.

    Args:
        warmup: the first selector.
        then: the second one.
        when: is called with every pool; the switch is made once it returns True.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy, Random, Schedule, select
        >>> from eigenbatch.selectors import AfterBatches
        >>> schedule = Schedule(warmup=Random(), then=Greedy(), when=AfterBatches(100))
        >>> len(select(torch.randn(40, 8), 10, schedule))
        10
    """

    def __init__(
        self,
        warmup: Selector | None = None,
        then: Selector | None = None,
        when: Signal | None = None,
    ) -> None:
        self.warmup: Selector = PoolBalanced() if warmup is None else warmup
        self.then: Selector = Greedy(probe=64) if then is None else then
        self.when: Signal = IsotropyBelow() if when is None else when
        for name in ("warmup", "then", "when"):
            check_callable(
                getattr(self, name), name, "Greedy()" if name != "when" else "AfterBatches(9)"
            )
        self.switched = False

    @property
    def _parts(self) -> tuple[Selector, ...]:
        return self.warmup, self.then

    def _policy(self, pool: Tensor) -> Selector:
        if not self.switched:
            self.switched = self.when(pool)
        return self.then if self.switched else self.warmup

    def state_dict(self) -> dict[str, Any]:
        """Which policy is in force, and the state of all parts."""
        return {
            "switched": self.switched,
            "warmup": state_of(self.warmup),
            "then": state_of(self.then),
            "when": state_of(self.when),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this schedule and of all its parts."""
        parts = {"warmup": self.warmup, "then": self.then, "when": self.when}
        entries = {name: holds_state_of(part) for name, part in parts.items()}
        check_entries(state, "Schedule", {"switched": is_flag} | entries)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the policy that was in force."""
        self.check_state_dict(state)
        restore(self.warmup, state["warmup"])
        restore(self.then, state["then"])
        restore(self.when, state["when"])
        self.switched = state["switched"]


class EveryNth(Switching):
    """`selector` once every `every` batches, `otherwise` in between (P2 "to escape flats").

    Args:
        selector: chooses the `every`-th, 2 `every`-th, ... batch.
        every: batches per use of `selector`.
        otherwise: chooses the other batches.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import EveryNth, PoolBalanced, PoolMin, select
        >>> rarely = EveryNth(PoolMin(), 10, PoolBalanced())
        >>> len(select(torch.randn(40, 8), 10, rarely))
        10
    """

    def __init__(self, selector: Selector, every: int, otherwise: Selector) -> None:
        check_callable(selector, "selector", "PoolMin()")
        check_callable(otherwise, "otherwise", "Greedy()")
        self.selector = selector
        self.every = whole(every, "every", least=1)
        self.otherwise = otherwise
        self._seen = 0

    @property
    def _parts(self) -> tuple[Selector, ...]:
        return self.selector, self.otherwise

    def _policy(self, pool: Tensor) -> Selector:
        self._seen += 1
        return self.selector if self._seen % self.every == 0 else self.otherwise

    def state_dict(self) -> dict[str, Any]:
        """Batches seen, and the state of both parts."""
        return {
            "seen": self._seen,
            "selector": state_of(self.selector),
            "otherwise": state_of(self.otherwise),
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this selector and of both parts."""
        parts = {"selector": self.selector, "otherwise": self.otherwise}
        entries = {name: holds_state_of(part) for name, part in parts.items()}
        check_entries(state, "EveryNth", {"seen": is_count} | entries)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        self.check_state_dict(state)
        restore(self.selector, state["selector"])
        restore(self.otherwise, state["otherwise"])
        self._seen = state["seen"]
