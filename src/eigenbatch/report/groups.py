"""Which runs belong together: names, the settings that differ, runs that differ only in seed."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenbatch.report.runs import Run
from eigenbatch.runs.metrics import Floats

BASELINE = "random"
SELECTOR = ("batches.selector", "selector")
"""Settings that name the selector: ours, and that of `eigenbatch.compare`."""
LONGEST = 28
"""Letters of a value in a group's name; the rest is in the second line."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Runs that differ in nothing but their seed.

    The name has as many of the settings that differ as tell the groups apart; `details` has all.
    """

    name: str
    details: str
    runs: tuple[int, ...]  # positions in the list of runs
    settings: dict[str, Any] | None  # without the seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """Accuracy of a group along epochs or seconds, over the seeds that got there."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: NDArray[np.int_]


def names(folders: Sequence[Path]) -> list[str]:
    """Short names that tell folders apart: their paths below what they share."""
    if len(folders) == 1:
        return [folders[0].name]
    shared = os.path.commonpath(folders) if folders else ""
    return [os.path.relpath(folder, shared) for folder in folders]


def differing(runs: Sequence[Run]) -> list[str]:
    """Settings, other than the seed, that are not the same in all runs, as in the file."""
    known = [run.settings for run in runs if run.settings is not None]
    keys = dict.fromkeys(key for settings in known for key in settings)
    return [
        key
        for key in keys
        if key != "seed" and len({_canonical(settings.get(key)) for settings in known}) > 1
    ]


def group(runs: Sequence[Run], run_names: Sequence[str]) -> list[Group]:
    """Groups in the order of their first run, the baseline first.

    A run without settings is a group of its own, at the end.
    """
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        key = _canonical(_without_seed(run.settings)) if run.settings else f"alone {index}"
        members.setdefault(key, []).append(index)

    def rank(indices: list[int]) -> tuple[bool, bool]:
        first = runs[indices[0]]
        return not first.settings, not is_baseline(first)

    ordered = sorted(members.values(), key=rank)
    telling = sorted(differing(runs), key=lambda key: key not in SELECTOR)
    firsts = [runs[indices[0]] for indices in ordered]
    short = _short_names(firsts, [run_names[indices[0]] for indices in ordered], telling)
    return [
        Group(
            name=name,
            details=", ".join(f"{key}={value}" for key, value in _values(run, telling).items()),
            runs=tuple(indices),
            settings=_without_seed(run.settings),
        )
        for indices, run, name in zip(ordered, firsts, short, strict=True)
    ]


def is_baseline(run: Run) -> bool:
    """Whether others are compared with its selector: the first of a comparison, else random."""
    settings = run.settings or {}
    return any(settings.get(key) == run.origin.get("baseline", BASELINE) for key in SELECTOR)


def progress_by_epoch(runs: Sequence[Run]) -> Progress | None:
    """Accuracy after each evaluated epoch; None if there is none."""
    series = [run.accuracy for run in runs if run.accuracy is not None]
    epochs = np.unique(np.concatenate([one.epoch for one in series])) if series else np.array([])
    epochs = epochs[np.isfinite(epochs)]
    table = np.full((len(series), len(epochs)), np.nan)  # (seeds, epochs)
    for row, one in zip(table, series, strict=True):
        known = np.isfinite(one.epoch)
        row[np.searchsorted(epochs, one.epoch[known])] = one.value[known]
    return _over_seeds(epochs, table)


def progress_by_time(runs: Sequence[Run]) -> Progress | None:
    """Accuracy at each second at which a run was evaluated, once all have been; None if never.

    Between its evaluations a run is read off a straight line; a finished one keeps its last value.
    """
    timed = []
    for run in runs:
        series = run.accuracy
        if series is not None and np.isfinite(series.seconds).all():
            timed.append((series, run.finished))
    if not timed:
        return None
    seconds = np.unique(np.concatenate([series.seconds for series, _ in timed]))
    seconds = seconds[seconds >= max(series.seconds[0] for series, _ in timed)]
    table = np.stack(
        [
            np.interp(seconds, one.seconds, one.value, right=one.value[-1] if finished else np.nan)
            for one, finished in timed
        ]
    )  # (seeds, times)
    return _over_seeds(seconds, table)


def _over_seeds(x: Floats, table: Floats) -> Progress | None:
    seeds = np.isfinite(table).sum(axis=0)
    x, table, seeds = x[seeds > 0], table[:, seeds > 0], seeds[seeds > 0]
    if not len(x):
        return None
    return Progress(
        x=x,
        mean=np.nanmean(table, axis=0),
        low=np.nanmin(table, axis=0),
        high=np.nanmax(table, axis=0),
        seeds=seeds,
    )


def _short_names(
    runs: Sequence[Run], run_names: Sequence[str], telling: Sequence[str]
) -> list[str]:
    """Names of the fewest settings that tell all runs apart; else the names of the folders."""
    for count in range(1, len(telling) + 1):
        found = [
            " · ".join(_part(key, value) for key, value in _values(run, telling[:count]).items())
            if run.settings is not None
            else run_name
            for run, run_name in zip(runs, run_names, strict=True)
        ]
        if len(set(found)) == len(found) and all(found):
            return found
    return list(run_names)


def _values(run: Run, telling: Sequence[str]) -> dict[str, Any]:
    """Values of the settings that differ, as far as the run has them."""
    settings = run.settings or {}
    return {key: settings[key] for key in telling if settings.get(key) is not None}


def _part(key: str, value: Any) -> str:
    text = str(value)
    text = text if len(text) <= LONGEST else "…" + text[1 - LONGEST :]
    return text if key in SELECTOR else f"{key.rpartition('.')[2]}={text}"


def _without_seed(settings: dict[str, Any] | None) -> dict[str, Any] | None:
    if settings is None:
        return None
    return {key: value for key, value in settings.items() if key != "seed"}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
