"""Which runs belong together: names, the settings that differ, runs that differ only in seed."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenbatch.report.metrics import Floats
from eigenbatch.report.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Runs that differ in nothing but their seed."""

    name: str
    runs: tuple[int, ...]  # positions in the list of runs
    settings: dict[str, Any] | None  # without the seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Progress:
    """Accuracy of a group after each evaluated epoch, over the seeds that got there."""

    epoch: Floats
    seconds: Floats  # mean over seeds
    mean: Floats
    low: Floats
    high: Floats
    seeds: list[int]


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
    """Groups in the order of their first run; a run without settings stays alone, at the end."""
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        key = _canonical(_without_seed(run.settings)) if run.settings else f"alone {index}"
        members.setdefault(key, []).append(index)
    ordered = sorted(members.values(), key=lambda indices: not runs[indices[0]].settings)
    telling = differing(runs)
    return [
        Group(
            name=_name(runs[indices[0]], run_names[indices[0]], telling),
            runs=tuple(indices),
            settings=_without_seed(runs[indices[0]].settings),
        )
        for indices in ordered
    ]


def progress(runs: Sequence[Run], accuracy: str = "knn") -> Progress | None:
    """How the accuracy of one group's runs went; None if none was evaluated."""
    by_epoch: dict[float, dict[int, tuple[float, float]]] = {}
    for index, run in enumerate(runs):
        series = run.evaluations.get(accuracy)
        if series is None:
            continue
        for epoch, seconds, value in zip(series.epoch, series.seconds, series.value, strict=True):
            if np.isfinite(epoch):
                by_epoch.setdefault(float(epoch), {}).setdefault(index, (seconds, value))
    if not by_epoch:
        return None
    epochs = sorted(by_epoch)
    points = [np.array(list(by_epoch[epoch].values())) for epoch in epochs]  # each (seeds, 2)
    return Progress(
        epoch=np.array(epochs),
        seconds=np.array([p[:, 0].mean() for p in points]),
        mean=np.array([p[:, 1].mean() for p in points]),
        low=np.array([p[:, 1].min() for p in points]),
        high=np.array([p[:, 1].max() for p in points]),
        seeds=[len(p) for p in points],
    )


def _name(run: Run, run_name: str, telling: Sequence[str]) -> str:
    if run.settings is None or not telling:
        return run_name
    values = {key: run.settings.get(key) for key in telling}
    selector = values.pop("selector", None)
    parts = [] if selector is None else [str(selector)]
    return " · ".join(parts + [f"{key}={value}" for key, value in values.items()])


def _without_seed(settings: dict[str, Any] | None) -> dict[str, Any] | None:
    if settings is None:
        return None
    return {key: value for key, value in settings.items() if key != "seed"}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
