"""What a run remembers to judge its next reading: where it began, the last batch, open findings."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import Any

import torch
from torch import Tensor

from eigenbatch.checks import are_numbers, check_entries, is_count, is_dict, is_number
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.movement import (
    Sketch,
    half_sums,
    projected,
    remembered_rows,
    repetition,
    repetition_sums,
    sketch_of,
)
from eigenbatch.monitor.measure import sides
from eigenbatch.monitor.processes import Ranks, SingleProcess
from eigenbatch.monitor.reading import Course, Placed, Reading
from eigenbatch.monitor.rules import (
    EARLY_STEPS,
    FOUND_SOME,
    MISPLACED_READINGS,
    QUEUE_LIKENESS,
    STILL_ROWS,
    is_solved,
)

WINDOW = 8
"""Readings behind the mean places of positives, and over which a loss falls or not."""


SMOOTHING = 0.1
"""Weight of the newest reading in the moving average (the paper's alpha)."""

HISTORY = 50
"""Readings behind the rolling variance (the paper's Var_50 when every step is read)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Marks:
    """What is kept of one batch, over all processes."""

    sketches: dict[str, Sketch]
    repetition: float | None
    rows: Tensor  # (at most 256, k)


class RunMemory:
    """Bounded memory of one run: sketches of the first reading, 256 projected rows, counters."""

    def __init__(self) -> None:
        self._first: dict[str, Sketch] = {}
        self._moved: dict[str, float] = {}
        self._rows: Tensor | None = None
        self._streaks: dict[str, int] = {}
        self._placed: deque[Placed] = deque(maxlen=WINDOW)
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._solved_since: int | None = None
        self._found_at_first: float | None = None

    @torch.no_grad()
    def marks(self, contrast: Contrast, ranks: Ranks | None) -> Marks:
        """Compare the batch with the one before."""
        total = ranks or SingleProcess()
        views = {side: projected(rows) for side, rows in sides(contrast).items()}  # (n, k) each
        rows = next(iter(views.values()))
        repeated = None
        if self._rows is not None and self._rows.shape[1] == rows.shape[1]:
            sums = repetition_sums(rows, self._rows.to(rows.device))
            repeated = repetition(total.sum(sums), contrast.anchors.shape[1])
        return Marks(
            sketches={side: sketch_of(total.sum(half_sums(one))) for side, one in views.items()},
            repetition=repeated,
            rows=remembered_rows(rows),
        )

    def add(self, marks: Marks, reading: Reading, step: int) -> Course:
        """The course up to this reading, which becomes part of the memory."""
        if not is_solved(reading):
            self._solved_since = None
        elif self._solved_since is None:
            self._solved_since = step
        movement = {
            side: sketch.moved(self._first[side])
            for side, sketch in marks.sketches.items()
            if side in self._first
            and sketch.second.shape == self._first[side].second.shape
            and min(sketch.count, self._first[side].count) >= STILL_ROWS
        }
        small = any(sketch.count < STILL_ROWS for sketch in self._first.values())
        if (not self._first or small) and step < EARLY_STEPS:
            self._first = marks.sketches
        ready = reading.queue_likeness is None or reading.queue_likeness >= QUEUE_LIKENESS
        if self._found_at_first is None and step < EARLY_STEPS and ready:
            self._found_at_first = reading.found_share
        self._rows = marks.rows
        for side, moved in movement.items():
            self._moved[side] = max(moved, self._moved.get(side, 0.0))
        if step < EARLY_STEPS or reading.found_share < FOUND_SOME:
            self._placed.clear()  # before positives are found, all kinds are misplaced
        else:
            pairs = next(iter(marks.sketches.values())).count
            self._placed.append(Placed(reading.misplaced_share, reading.found_share, pairs))
        self._losses.append(min(reading.loss, reading.chance_loss))  # down to chance is no progress
        return Course(
            streaks=dict(self._streaks),
            movement=dict(self._moved),
            repetition=marks.repetition,
            placed=_mean_place(self._placed),
            loss_drop=_drop(list(self._losses)),
            solved_since=self._solved_since,
            found_at_first=self._found_at_first,
        )

    def count(self, names: set[str]) -> None:
        """Count the findings of a reading: how many readings in a row each has lasted."""
        self._streaks = {name: self._streaks.get(name, 0) + 1 for name in sorted(names)}

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; the rows of the last batch are left out."""
        first = {
            side: {"count": one.count, "noise": one.noise, "second": one.second.tolist()}
            for side, one in self._first.items()
        }
        return {
            "first": first,
            "moved": dict(self._moved),
            "streaks": dict(self._streaks),
            "placed": [number for one in self._placed for number in one],
            "losses": list(self._losses),
            "solved_since": self._solved_since,
            "found_at_first": self._found_at_first,
        }

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ParameterError unless `state` is a state of a run's memory."""
        entries = {
            "first": is_dict,
            "moved": _hold_numbers,
            "streaks": _are_counts,
            "placed": lambda value: are_numbers(value) and len(value) % 3 == 0,
            "losses": are_numbers,
            "solved_since": lambda value: value is None or is_count(value),
            "found_at_first": lambda value: value is None or is_number(value),
        }
        check_entries(state, "course", entries)
        for one in state["first"].values():
            sketch = {"count": is_count, "noise": is_number, "second": _is_square}
            check_entries(one, "sketch", sketch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.check_state_dict(state)
        self._first = {
            side: Sketch(
                count=one["count"],
                noise=one["noise"],
                second=torch.tensor(one["second"], dtype=torch.float64),
            )
            for side, one in state["first"].items()
        }
        self._moved = dict(state["moved"])
        self._streaks = dict(state["streaks"])
        placed = zip(*(state["placed"][i::3] for i in range(3)), strict=True)
        self._placed = deque((Placed(*one) for one in placed), maxlen=WINDOW)
        self._losses = deque(state["losses"], maxlen=WINDOW)
        self._solved_since = state["solved_since"]
        self._found_at_first = state["found_at_first"]
        self._rows = None


def _mean_place(readings: Sequence[Placed]) -> Placed | None:
    """Means over the readings; None while there are too few."""
    if len(readings) < MISPLACED_READINGS:
        return None
    misplaced, found, pairs = zip(*readings, strict=True)
    return Placed(fmean(misplaced), fmean(found), sum(pairs))


def _drop(losses: list[float]) -> float | None:
    """From the mean of the older half to that of the newer one; None while there are too few."""
    half = len(losses) // 2
    return fmean(losses[:half]) - fmean(losses[-half:]) if half >= 2 else None


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_count, value.values()))


def _hold_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def _is_square(value: object) -> bool:
    return isinstance(value, list) and all(
        are_numbers(row) and len(row) == len(value) for row in value
    )


class History:
    """Remembers the last readings of one number."""

    def __init__(self) -> None:
        self._ema: float | None = None
        self._window: deque[float] = deque(maxlen=HISTORY)

    def add(self, value: float) -> dict[str, Any]:
        """Moving average and rolling variance with `value` as the newest reading."""
        self._window.append(value)
        self._ema = value if self._ema is None else self._ema + SMOOTHING * (value - self._ema)
        return {
            "gradient_ema": self._ema,
            "gradient_rolling_variance": pvariance(self._window) if len(self._window) > 1 else None,
        }

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
        self._window = deque(state["window"], maxlen=HISTORY)
