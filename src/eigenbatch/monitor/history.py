"""The measured gradient over time: its moving average and its rolling variance."""

from collections import deque
from statistics import pvariance
from typing import Any

from eigenbatch.checks import are_numbers, check_entries, is_number
from eigenbatch.monitor.parts import Trend

SMOOTHING = 0.1
"""Weight of the newest reading in the moving average (the paper's alpha)."""

WINDOW = 50
"""Readings behind the rolling variance (the paper's Var_50 when every step is read)."""


class History:
    """Remembers the last readings of one number."""

    def __init__(self) -> None:
        self._ema: float | None = None
        self._window: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> Trend:
        """The trend with `value` as its newest reading."""
        self._window.append(value)
        self._ema = value if self._ema is None else self._ema + SMOOTHING * (value - self._ema)
        return Trend(
            ema=self._ema,
            rolling_variance=pvariance(self._window) if len(self._window) > 1 else None,
            readings=len(self._window),
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"ema": self._ema, "window": list(self._window)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ParameterError unless `state` is a state of a history."""
        entries = {"ema": lambda ema: ema is None or is_number(ema), "window": are_numbers}
        check_entries(state, "history", entries)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.check_state_dict(state)
        self._ema = state["ema"]
        self._window = deque(state["window"], maxlen=WINDOW)
