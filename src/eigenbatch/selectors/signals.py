"""Signals: what tells a schedule that it is time to switch."""

from collections import deque
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.checks import are_numbers, check_entries, is_count, real, whole
from eigenbatch.core.precision import check_matrix
from eigenbatch.core.spectrum import isotropy_gap, participation_ratio
from eigenbatch.errors import ParameterError


class Signal(Protocol):
    """Called once per pool; True when it is time to switch."""

    def __call__(self, pool: Tensor) -> bool:
        """Measure one pool."""
        ...


class AfterBatches:
    """True once `count` batches were selected.

    A sampler selects nothing while its cache is cold: for about 15 epochs, `14 * len(sampler)`.

    Args:
        count: batches before the switch.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import AfterBatches
        >>> signal = AfterBatches(1)
        >>> signal(torch.randn(40, 8)), signal(torch.randn(40, 8))
        (False, True)
    """

    def __init__(self, count: int) -> None:
        self.count = whole(count, "count", least=0)
        self._seen = 0

    def __call__(self, pool: Tensor) -> bool:
        """Count one batch."""
        check_matrix(pool, "pool")
        self._seen += 1
        return self._seen > self.count

    def state_dict(self) -> dict[str, Any]:
        """Batches seen."""
        return {"seen": self._seen}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this signal."""
        check_entries(state, "AfterBatches", {"seen": is_count})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        self.check_state_dict(state)
        self._seen = state["seen"]


class IsotropyBelow:
    """True once the noise-corrected isotropy gap of the pool is small enough.

    The raw gap of a batch never gets near 5 % (sampling alone gives 100 sqrt((d-1)/n)), so the
    paper's switch only makes sense with the unbiased estimate.

    Args:
        percent: largest gap that counts as isotropic.
        every: batches between two measurements.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import IsotropyBelow
        >>> IsotropyBelow(5.0)(torch.ones(40, 8)), IsotropyBelow(5.0)(torch.eye(8).repeat(200, 1))
        (False, True)
    """

    def __init__(self, percent: float = 5.0, *, every: int = 10) -> None:
        self.percent = real(percent, "percent")
        self._clock = _Clock(every)

    def __call__(self, pool: Tensor) -> bool:
        """Measure the pool when it is due."""
        check_matrix(pool, "pool")
        return self._clock.due() and isotropy_gap(pool, unbiased=True) <= self.percent

    def state_dict(self) -> dict[str, Any]:
        """Batches seen."""
        return {"seen": self._clock.seen}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this signal."""
        check_entries(state, "IsotropyBelow", {"seen": is_count})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting."""
        self.check_state_dict(state)
        self._clock.seen = state["seen"]


class RankPlateau:
    """True once the pool's unbiased R_eff stabilises.

    It does when the mean of the last `span` measurements differs from the mean of the `span` before
    by at most `tolerance`, relatively.

    Args:
        tolerance: largest relative difference.
        span: measurements that are averaged.
        every: batches between two measurements.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import RankPlateau
        >>> signal, pool = RankPlateau(span=1, every=1), torch.eye(8).repeat(5, 1)
        >>> signal(pool), signal(pool)
        (False, True)
    """

    def __init__(self, tolerance: float = 0.02, *, span: int = 10, every: int = 10) -> None:
        if not real(tolerance, "tolerance") >= 0:
            raise ParameterError(f"tolerance must be at least 0, got {tolerance}")
        self.tolerance = tolerance
        self.span = whole(span, "span", least=1)
        self._clock = _Clock(every)
        self._ranks: deque[float] = deque(maxlen=2 * span)

    def __call__(self, pool: Tensor) -> bool:
        """Measure the pool when it is due."""
        check_matrix(pool, "pool")
        if not self._clock.due():
            return False
        self._ranks.append(participation_ratio(pool, unbiased=True))
        if len(self._ranks) < 2 * self.span:
            return False
        ranks = torch.tensor(list(self._ranks), dtype=torch.float64)
        before, latest = ranks[: self.span].mean(), ranks[self.span :].mean()
        return bool((latest - before).abs() <= self.tolerance * before)

    def state_dict(self) -> dict[str, Any]:
        """Batches seen and the measurements kept."""
        return {"seen": self._clock.seen, "ranks": list(self._ranks)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless `state` is a state of this signal."""
        check_entries(state, "RankPlateau", {"seen": is_count, "ranks": are_numbers})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue measuring."""
        self.check_state_dict(state)
        self._clock.seen = state["seen"]
        self._ranks = deque(state["ranks"], maxlen=2 * self.span)


class _Clock:
    """Due at the first and then every `every`-th call."""

    def __init__(self, every: int) -> None:
        self.every = whole(every, "every", least=1)
        self.seen = 0

    def due(self) -> bool:
        self.seen += 1
        return (self.seen - 1) % self.every == 0
