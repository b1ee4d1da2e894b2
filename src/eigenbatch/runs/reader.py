"""Read a run directory: what was set, what happened, and what is wrong with the files.

This is the one reader of metrics.jsonl; the report, comparisons and claims use it. It never raises
on a damaged file: what could not be used is listed in `problems`.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenbatch.errors import RunError
from eigenbatch.runs.directory import RunDirectory, read_object
from eigenbatch.runs.metrics import RECORDS, Clock, Metrics, Series, read_metrics
from eigenbatch.runs.record import check_regular, is_whole

ACCURACIES = ("knn", "mrr", "accuracy")
"""Metrics that a run may be judged by, the first that is present."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunRecord:
    """One run as read from disk.

    Args:
        folder: the run directory.
        config: settings as in the manifest; None if there is no readable manifest.
        origin: the rest of the manifest: device, commit, versions.
        problems: sentences about what is wrong with the files.
        finished: whether the run wrote its last line and no line before it is missing.
        metrics: every number by name, and what is not a number.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import read_run
        >>> with Recorder(tmp_path / "run", config={"lr": 0.1}) as run:
        ...     run.log(1, loss=0.5, knn=0.9)
        >>> record = read_run(tmp_path / "run")
        >>> record.settings, record.accuracy_name, record.final("loss"), record.finished
        ({'lr': 0.1}, 'knn', 0.5, True)
    """

    folder: Path
    config: dict[str, Any] | None
    origin: dict[str, Any]
    problems: tuple[str, ...]
    finished: bool
    metrics: Metrics

    @property
    def settings(self) -> dict[str, Any] | None:
        """The config as one level of dotted names, e.g. "method.tau"; None if it is unknown."""
        return None if self.config is None else flat(self.config)

    @property
    def series(self) -> dict[str, Series]:
        """Every number of the run over its steps."""
        return self.metrics.series

    @property
    def accuracy_name(self) -> str | None:
        """The metric the run is judged by: "knn", "mrr" or a user's "accuracy"."""
        return next((name for name in ACCURACIES if name in self.series), None)

    @property
    def accuracy(self) -> Series | None:
        """The metric the run is judged by over its steps."""
        return None if self.accuracy_name is None else self.series[self.accuracy_name]

    @property
    def untrained(self) -> float:
        """Accuracy before the first update, evaluated at step 0; NaN if it is unknown.

        It is also unknown where step 0 seems to be the first epoch: a loss was logged there, or
        evaluations without an epoch come at steps 0 and 1.
        """
        curve, losses = self.accuracy, self.series.get("loss")
        if curve is None or curve.step[0] != 0 or (losses is not None and losses.step[0] == 0):
            return math.nan
        if math.isnan(curve.epoch[0]) and 1 in curve.step[:2]:
            return math.nan
        return float(curve.value[0])

    @property
    def stopped(self) -> str | None:
        """Why the run ended early; None if it did not, or does not say."""
        reasons = [text for _, text in self.metrics.records["stopped"] if isinstance(text, str)]
        return reasons[-1] if reasons else None

    def final(self, name: str) -> float:
        """The last value of a metric; NaN if there is none."""
        series = self.series.get(name)
        return float(series.value[-1]) if series is not None else math.nan


def read_run(folder: Path, *, clock: Clock = "seconds") -> RunRecord:
    """Read a run directory; a missing manifest is no problem, a damaged one is.

    Args:
        folder: the run directory.
        clock: whether times are wall-clock or processor time.

    Returns:
        Settings, metrics and what is wrong with the files; damaged files raise nothing.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import read_run
        >>> with Recorder(tmp_path / "run") as run:
        ...     run.log(1, loss=0.5)
        >>> read_run(tmp_path / "run").series["loss"].value.tolist()
        [0.5]
    """
    directory = RunDirectory(Path(folder))
    content: dict[str, Any] = {}
    problems: list[str] = []
    if directory.manifest.exists():
        content, problem = read_object(directory.manifest)
        config = content.pop("config", None)
        if problem:
            problems.append(problem)
        elif not isinstance(config, dict):
            problems.append('manifest.json has no "config"')
    else:
        config = None
    metrics, troubles, whole = _read(directory.metrics, clock)
    return RunRecord(
        folder=directory.path,
        config=config if isinstance(config, dict) else None,
        origin=content,
        problems=(*problems, *troubles),
        finished=whole is True,
        metrics=metrics,
    )


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as one level of dotted names; the "kind" of a component is its own name.

    What is nested deeper than ten levels is left out: only a damaged manifest is.

    Args:
        config: settings as in a manifest.

    Returns:
        Values by dotted name.

    Examples:
        >>> from eigenbatch.runs import flat
        >>> flat({"method": {"kind": "moco", "tau": 0.2}, "seed": 0})
        {'method': 'moco', 'method.tau': 0.2, 'seed': 0}
    """
    return dict(_flat(config, "", 10))


def _flat(config: Mapping[str, Any], place: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        dotted = f"{place}.{name}" if place else str(name)
        if name == "kind" and place:
            yield place, value
        elif isinstance(value, dict) and value:
            yield from _flat(value, dotted, depth - 1) if depth else [(dotted, "nested too deeply")]
        elif isinstance(value, list):
            yield (
                dotted,
                ", ".join(
                    str(one) if not isinstance(one, (dict, list)) else "..." for one in value
                ),
            )
        else:
            yield dotted, value


def find_runs(paths: Sequence[Path], markers: Sequence[str] = ()) -> list[Path]:
    """Every run directory at or below the paths, each once, in natural order.

    Args:
        paths: run directories, folders of them, or metrics.jsonl files.
        markers: further file names that make a folder a run directory.

    Returns:
        The folders.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import find_runs
        >>> for seed in (10, 9):
        ...     with Recorder(tmp_path / f"seed-{seed}") as run:
        ...         run.log(1, loss=0.5)
        >>> [folder.name for folder in find_runs([tmp_path])]
        ['seed-9', 'seed-10']
    """
    wanted = {"manifest.json", "metrics.jsonl", *markers}
    found: dict[Path, None] = {}
    for path in paths:
        if path.name == "metrics.jsonl" and path.is_file():
            found[path.parent.resolve()] = None
            continue
        if not path.is_dir():
            raise RunError(f"{path} is not a folder: give run directories or folders of them")
        for folder, below, files in os.walk(path):
            below.sort(key=_natural)
            if not wanted.isdisjoint(files):
                found[Path(folder).resolve()] = None
    return list(found)


def _read(path: Path, clock: Clock) -> tuple[Metrics, list[str], bool | None]:
    """The metrics, sentences about what is wrong with them, and whether the record is whole."""
    try:
        check_regular(path)
        metrics, whole = read_metrics(path, clock=clock), is_whole(path)
    except (OSError, RunError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        nothing = Metrics({}, {name: [] for name in RECORDS}, (math.nan,) * 3, 0, (), False, 0)
        return nothing, [f"metrics.jsonl cannot be read: {reason}"], None
    problems = []
    if not metrics.lines:
        problems.append("metrics.jsonl is empty")
    if bad := len(metrics.unreadable):
        which = f"{bad} of {metrics.lines} lines" if bad > 1 else "one line"
        problems.append(
            f"{which} of metrics.jsonl could not be read, the first is line {metrics.unreadable[0]}"
        )
    if metrics.cut_off:
        problems.append("the last line of metrics.jsonl is half-written")
    if metrics.not_finite:
        problems.append(
            f"values left out because they are not finite: {metrics.not_finite} (did it diverge?)"
        )
    if whole is False:
        problems.append(
            "metrics.jsonl has lost or changed lines since the run finished: restore it from a "
            "copy, or train again"
        )
    return metrics, problems, whole


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts seed-10 after seed-9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
