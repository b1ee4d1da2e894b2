"""The paper's practical recipe as composition: one policy, then another once a signal says so."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.core.spectrum import isotropy_gap, participation_ratio
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.pool import PoolBalanced
from eigenbatch.selectors.selector import Selector, bound, restore, state_of


class Signal(Protocol):
    """Sees every pool once; True when it is time to switch."""

    def __call__(self, pool: Tensor) -> bool:
        """Look at one pool."""
        ...


class AfterBatches:
    """True once `count` batches were selected.

    A sampler selects nothing while its cache is cold: for about 15 epochs, `14 * len(sampler)`.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ParameterError(f"count must not be negative, got {count}")
        self.count = count
        self._seen = 0

    def __call__(self, pool: Tensor) -> bool:
        """Count one batch."""
        self._seen += 1
        return self._seen > self.count

    def state_dict(self) -> dict[str, Any]:
        """Batches seen."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        _check_keys(state, {"seen"}, "AfterBatches")
        self._seen = int(state["seen"])


class IsotropyBelow:
    """True once the noise-corrected isotropy gap of the pool is at most `percent`.

    The raw gap of a batch never gets near 5 % (sampling alone gives 100 sqrt((d-1)/n)), so the
    paper's switch only makes sense with the unbiased estimate. Looked at every `every` batches.
    """

    def __init__(self, percent: float = 5.0, *, every: int = 10) -> None:
        self.percent = percent
        self._clock = _Clock(every)

    def __call__(self, pool: Tensor) -> bool:
        """Measure the pool when it is due."""
        return self._clock.due() and isotropy_gap(pool, unbiased=True) <= self.percent

    def state_dict(self) -> dict[str, Any]:
        """Batches seen."""
        return {"seen": self._clock.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        _check_keys(state, {"seen"}, "IsotropyBelow")
        self._clock.seen = int(state["seen"])


class RankPlateau:
    """True once the pool's unbiased R_eff stabilises.

    The mean of the last `span` measurements differs from the mean of the `span` before by at most
    `tolerance`, relatively. Measured every `every` batches.
    """

    def __init__(self, tolerance: float = 0.02, *, span: int = 10, every: int = 10) -> None:
        if tolerance < 0 or span < 1:
            raise ParameterError(
                f"tolerance must be at least 0 and span at least 1, got {tolerance} and {span}"
            )
        self.tolerance = tolerance
        self.span = span
        self._clock = _Clock(every)
        self._ranks: deque[float] = deque(maxlen=2 * span)

    def __call__(self, pool: Tensor) -> bool:
        """Measure the pool when it is due."""
        if not self._clock.due():
            return False
        self._ranks.append(participation_ratio(pool, unbiased=True))
        if len(self._ranks) < 2 * self.span:
            return False
        ranks = torch.tensor(list(self._ranks), dtype=torch.float64)
        before, lately = ranks[: self.span].mean(), ranks[self.span :].mean()
        return bool((lately - before).abs() <= self.tolerance * before)

    def state_dict(self) -> dict[str, Any]:
        """Batches seen and the measurements kept."""
        return {"seen": self._clock.seen, "ranks": list(self._ranks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue measuring."""
        _check_keys(state, {"seen", "ranks"}, "RankPlateau")
        self._clock.seen = int(state["seen"])
        self._ranks = deque(state["ranks"], maxlen=2 * self.span)


class _Clock:
    """Due at the first and then every `every`-th call."""

    def __init__(self, every: int) -> None:
        if every < 1:
            raise ParameterError(f"every must be at least 1, got {every}")
        self.every = every
        self.seen = 0

    def due(self) -> bool:
        self.seen += 1
        return (self.seen - 1) % self.every == 0


class Schedule:
    """`warmup` until `when` is true for the first time, `then` from that batch on.

    The default is the paper's recipe: Pool-P3, then Greedy-64 once the isotropy gap is at most 5 %.
    Schedules nest: `then` may be another one.
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
        self.switched = False

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch by the policy in force."""
        return self._policy(pool)(pool, batch_size, generator=generator)

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The same schedule for a pool whose row i is sample `ids[i]`."""
        return _Bound(self._policy, ids, of)

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the policy that was in force."""
        _check_keys(state, {"switched", "warmup", "then", "when"}, "Schedule")
        parts = {"warmup": self.warmup, "then": self.then, "when": self.when}
        _restore_all(parts, state)
        self.switched = bool(state["switched"])


class Sparingly:
    """`selector` once every `every` batches, `otherwise` in between (P2 "to escape flats")."""

    def __init__(self, selector: Selector, every: int, otherwise: Selector) -> None:
        if every < 1:
            raise ParameterError(f"every must be at least 1, got {every}")
        self.selector = selector
        self.every = every
        self.otherwise = otherwise
        self._seen = 0

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; the `every`-th, 2 `every`-th, ... come from `selector`."""
        return self._policy(pool)(pool, batch_size, generator=generator)

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The same selectors for a pool whose row i is sample `ids[i]`."""
        return _Bound(self._policy, ids, of)

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        _check_keys(state, {"seen", "selector", "otherwise"}, "Sparingly")
        _restore_all({"selector": self.selector, "otherwise": self.otherwise}, state)
        self._seen = int(state["seen"])


class _Bound:
    """A policy that is picked when it is asked, then bound to the samples of the pool."""

    def __init__(self, policy: Callable[[Tensor], Selector], ids: Tensor, of: int | None) -> None:
        self._policy, self._ids, self._of = policy, ids, of

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        policy = bound(self._policy(pool), self._ids, self._of)
        return policy(pool, batch_size, generator=generator)

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """For some of the rows it is bound to already."""
        return _Bound(self._policy, self._ids[ids.to(self._ids.device)], self._of)


def _restore_all(parts: dict[str, object], state: dict[str, Any]) -> None:
    """Restore every part from its state, or none if one of them refuses."""
    before = {name: state_of(part) for name, part in parts.items()}
    try:
        for name, part in parts.items():
            restore(part, state[name])
    except Exception:
        for name, part in parts.items():
            restore(part, before[name])
        raise


def _check_keys(state: dict[str, Any], expected: set[str], name: str) -> None:
    if set(state) != expected:
        raise ParameterError(
            f"a {name} state holds {sorted(expected)}, got {sorted(state)}: "
            "was it taken from another selector?"
        )
