"""Alternating timing on a noisy machine: compare within a round, never across runs."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Seconds of every round, by name; round k of all names ran side by side."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Median seconds, for orientation only."""
        return statistics.median(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> str:
        """Median of the per-round ratios with the middle half in brackets."""
        pairs = zip(self.seconds[numerator], self.seconds[denominator], strict=True)
        ratios = sorted(a / b for a, b in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        return f"{_short(middle)}x ({_short(low)}-{_short(high)})"


def alternate(
    functions: dict[str, Callable[[], object]], *, rounds: int = 11, pause: float = 0.15
) -> Timings:
    """Time all functions once a round, after one untimed call each.

    pause: seconds before each call, in which threads of the one before stop spinning (OpenBLAS's
    do so for 2^28 cycles).
    """
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            time.sleep(pause)
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return Timings(seconds)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"
