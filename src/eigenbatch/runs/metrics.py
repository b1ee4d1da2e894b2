"""metrics.jsonl as columns: quick on whole files, forgiving about broken lines."""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Clock = Literal["seconds", "cpu_seconds"]

CHUNK = 1 << 18  # bytes parsed at once: fast, and little memory
PLACE = ("step", "epoch", "seconds", "cpu_seconds")
NUMBER = frozenset({int, float})  # not bool
RECORDS = ("eigenvalues", "findings", "stopped")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One finite number over a run, by rising step; epoch and seconds may be NaN.

    Args:
        step: (n,) steps.
        epoch: (n,) epochs.
        seconds: (n,) training time so far.
        value: (n,) the number.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import read_run
        >>> with Recorder(tmp_path / "run") as run:
        ...     run.log(1, loss=0.5)
        ...     run.log(2, loss=0.25)
        >>> loss = read_run(tmp_path / "run").series["loss"]
        >>> loss.step.tolist(), loss.value.tolist()
        ([1.0, 2.0], [0.5, 0.25])
    """

    step: Floats
    epoch: Floats
    seconds: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, eq=False)
class Metrics:
    """What a metrics file holds, and what of it could not be used.

    Args:
        series: numbers by name.
        records: (step, value) of what is not a number, by name.
        end: largest step, epoch and seconds; NaN if there is none.
        lines: number of lines.
        unreadable: numbers of the lines that are no JSON object, from 1.
        cut_off: whether the last line is still being written.
        not_finite: values that were left out because they are NaN or infinite.

    Examples:
        >>> from eigenbatch.runs import read_metrics
        >>> text = '{"step": 1, "loss": 0.5}' + chr(10) + "damaged" + chr(10)
        >>> _ = (tmp_path / "metrics.jsonl").write_text(text)
        >>> metrics = read_metrics(tmp_path / "metrics.jsonl")
        >>> metrics.lines, metrics.unreadable, list(metrics.series)
        (2, (2,), ['loss'])
    """

    series: dict[str, Series]
    records: dict[str, list[tuple[float, Any]]]
    end: tuple[float, float, float]
    lines: int
    unreadable: tuple[int, ...]
    cut_off: bool
    not_finite: int


def read_metrics(
    path: Path,
    *,
    numbers: Collection[str] | None = None,
    records: Collection[str] = RECORDS,
    clock: Clock = "seconds",
) -> Metrics:
    """Read the named numbers and records of a metrics file; every other key is ignored.

    Args:
        path: a metrics.jsonl.
        numbers: names to read; None: all.
        records: names of what is not a number.
        clock: what `Series.seconds` holds, wall-clock or processor time.

    Returns:
        Columns by name, and which lines are damaged.

    Examples:
        >>> from eigenbatch.runs import read_metrics
        >>> _ = (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}' + chr(10))
        >>> read_metrics(tmp_path / "metrics.jsonl").series["loss"].value.tolist()
        [0.5]
    """
    wanted = None if numbers is None else frozenset(numbers)
    return _Columns(wanted, frozenset(records), clock).read(path)


class _Columns:
    """Collects columns chunk by chunk."""

    def __init__(
        self, numbers: frozenset[str] | None, records: frozenset[str], clock: Clock
    ) -> None:
        self.place = ("step", "epoch", clock)
        self.numbers = numbers
        self.parts: dict[str, list[Floats]] = {}  # of (4, rows): step, epoch, seconds, value
        self.records: dict[str, list[tuple[float, Any]]] = {name: [] for name in records}
        self.end = np.full(3, np.nan)
        self.unreadable: list[int] = []
        self.not_finite = 0

    def read(self, path: Path) -> Metrics:
        lines, last = 0, b""
        with path.open("rb") as file:
            while chunk := file.readlines(CHUNK):
                last = chunk[-1]
                self._add(chunk, lines)
                lines += len(chunk)
        cut_off = bool(self.unreadable) and self.unreadable[-1] == lines and last[-1:] != b"\n"
        return Metrics(
            series={n: series for n, parts in self.parts.items() if (series := _joined(parts))},
            records=self.records,
            end=(float(self.end[0]), float(self.end[1]), float(self.end[2])),
            lines=lines,
            unreadable=tuple(self.unreadable[:-1] if cut_off else self.unreadable),
            cut_off=cut_off,
            not_finite=self.not_finite,
        )

    def _add(self, chunk: list[bytes], before: int) -> None:
        layouts: dict[tuple[str, ...], list[Iterable[Any]]] = defaultdict(list)
        for number, row in zip(count(before + 1), _parsed(chunk), strict=False):
            if row is None or type(row.get("step")) not in NUMBER:
                self.unreadable.append(number)
            else:
                layouts[tuple(row)].append(row.values())
        for names, rows in layouts.items():
            self._add_rows(dict(zip(names, zip(*rows, strict=True), strict=True)), len(rows))

    def _add_rows(self, columns: dict[str, tuple[Any, ...]], rows: int) -> None:
        nowhere = (None,) * rows
        place = np.stack([_floats(columns.get(name, nowhere)) for name in self.place])  # (3, rows)
        self.end = np.fmax(self.end, np.fmax.reduce(place, axis=1))
        for name in columns.keys() if self.numbers is None else self.numbers & columns.keys():
            if name in PLACE or (self.numbers is None and not _holds_numbers(columns[name])):
                continue
            values = _floats(columns[name])
            finite = np.isfinite(values) & np.isfinite(place[0])
            self.not_finite += rows - int(finite.sum())
            part = np.vstack([place, values[None]])[:, finite]
            self.parts.setdefault(name, []).append(part)
        for name in self.records.keys() & columns.keys():
            self.records[name] += zip(place[0].tolist(), columns[name], strict=True)


def _holds_numbers(column: Sequence[Any]) -> bool:
    return any(type(value) in NUMBER for value in column)


def _parsed(lines: Sequence[bytes]) -> Iterator[dict[str, Any] | None]:
    """Each line as an object; None where it is not one."""
    if all(line[:1] == b"{" and line[-2:] == b"}\n" for line in lines):
        try:
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and set(map(type, rows)) == {dict}:
                return iter(rows)
        except (ValueError, RecursionError):
            pass
    return map(_parsed_line, lines)


def _parsed_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _floats(column: Sequence[Any]) -> Floats:
    if NUMBER.issuperset(map(type, column)):
        try:
            values = np.array(column, dtype=float)
        except OverflowError:
            values = np.array([_number(value) for value in column])
    else:
        values = np.array([_number(value) for value in column])
    values[~np.isfinite(values)] = np.nan
    return values


def _number(value: Any) -> float:
    """A JSON number as a float; NaN for anything else."""
    if type(value) not in NUMBER:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _joined(parts: list[Floats]) -> Series:
    joined = np.concatenate(parts, axis=1)
    order = np.argsort(joined[0], kind="stable")
    return Series(*joined[:, order])
