"""Selectors against a baseline, seed by seed, from finished runs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any

from eigenbatch.report.groups import SELECTOR, Group, is_baseline
from eigenbatch.report.runs import Run
from eigenbatch.runs.paired import PairedDifference, paired_difference
from eigenbatch.runs.summary import default_target, first_crossing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """One group against its baseline on the seeds that both have."""

    group: int
    baseline: int
    seeds: tuple[str, ...]
    level: float  # mean accuracy of the baseline on these seeds
    gains: tuple[float, ...]  # accuracy, by seed
    gain: PairedDifference
    target: float
    time_saved: PairedDifference  # relative: 0.15 is 15 % faster to the target


def pairings(runs: Sequence[Run], groups: Sequence[Group]) -> list[Pairing]:
    """All comparisons that the runs allow, each with a baseline."""
    comparable = [
        (_but_selector(group.settings), index)
        for index, group in enumerate(groups)
        if group.settings is not None and _selector(group) is not None
    ]
    found = []
    for _, members in groupby(sorted(comparable), key=lambda pair: pair[0]):
        indices = [index for _, index in members]
        firsts = {index: runs[groups[index].runs[0]] for index in indices}
        baseline = next((i for i in indices if is_baseline(firsts[i])), indices[0])
        for index in indices:
            if index != baseline:
                found.append(_pairing(runs, groups, index, baseline))
    return [pairing for pairing in found if pairing is not None]


def _pairing(
    runs: Sequence[Run], groups: Sequence[Group], index: int, baseline: int
) -> Pairing | None:
    treated, reference = _by_seed(runs, groups[index]), _by_seed(runs, groups[baseline])
    seeds = [
        seed
        for seed, run in reference.items()
        if seed in treated and treated[seed].measure == run.measure
    ]
    if not seeds:
        return None
    after = [_accuracies(treated[seed])[-1] for seed in seeds]
    before = [_accuracies(reference[seed])[-1] for seed in seeds]
    target = default_target([reference[seed].untrained for seed in seeds], before)
    saved = [_time_saved(treated[seed], reference[seed], target) for seed in seeds]
    return Pairing(
        group=index,
        baseline=baseline,
        seeds=tuple(seeds),
        level=fmean(before),
        gains=tuple(a - b for a, b in zip(after, before, strict=True)),
        gain=paired_difference(after, before),
        target=target,
        time_saved=paired_difference(saved, [0.0] * len(seeds)),
    )


def _by_seed(runs: Sequence[Run], group: Group) -> dict[str, Run]:
    """Finished and evaluated runs; of several with one seed, the first."""
    found: dict[str, Run] = {}
    for index in group.runs:
        run = runs[index]
        if run.finished and run.accuracy is not None and run.settings is not None:
            found.setdefault(json.dumps(run.settings.get("seed")), run)
    return found


def _time_saved(treated: Run, reference: Run, target: float) -> float:
    needed = _seconds_to(reference, target)
    return 1 - _seconds_to(treated, target) / needed if needed else math.nan


def _accuracies(run: Run) -> list[float]:
    assert run.accuracy is not None
    return [float(value) for value in run.accuracy.value]


def _seconds_to(run: Run, target: float) -> float:
    """When the accuracy was first reached; NaN if it never was."""
    series = run.accuracy
    assert series is not None
    found = first_crossing(series.seconds.tolist(), series.value.tolist(), target)
    return found if math.isfinite(found) else math.nan


def _but_selector(settings: dict[str, Any]) -> str:
    kept = {key: value for key, value in settings.items() if key not in SELECTOR}
    return json.dumps(kept, sort_keys=True)


def _selector(group: Group) -> Any:
    settings = group.settings or {}
    return next((settings[key] for key in SELECTOR if settings.get(key) is not None), None)
