"""What the runs show, in a few sentences at the top of the page."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from eigenbatch.report.groups import Group
from eigenbatch.report.paired import Pairing
from eigenbatch.report.runs import Run
from eigenbatch.runs.findings import SEVERITIES, Episode

MOST = 6
"""Groups that get a sentence each; more are summed up in one."""


def verdict(runs: Sequence[Run], groups: Sequence[Group], pairings: Sequence[Pairing]) -> list[str]:
    """Every comparison, then what other groups reached, then the untrained encoder."""
    paired = {number for one in pairings for number in (one.group, one.baseline)}
    members = {
        group.name: [runs[index] for index in group.runs]
        for number, group in enumerate(groups)
        if number not in paired
    }
    sentences = [_compared(one, runs, groups) for one in pairings]
    reached = [text for name, found in members.items() if (text := _reached(found, name))]
    sentences += reached if len(reached) <= MOST else [_summed_up(members)]
    untrained = untrained_accuracy(runs)
    if sentences and math.isfinite(untrained):
        sentences.append(f"Untrained: {_percent(untrained)}.")
    return sentences


def untrained_accuracy(runs: Sequence[Run]) -> float:
    """Mean accuracy before the first step; NaN if no run was evaluated then, or tasks differ."""
    first = [run for run in runs if math.isfinite(run.untrained)]
    tasks = {(run.measure, str(_data(run.settings or {}))) for run in first}
    return fmean(run.untrained for run in first) if len(tasks) == 1 else math.nan


def _data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the data: of a task, whatever else differs."""
    return {name: value for name, value in settings.items() if name.split(".")[0] == "data"}


def measure_of(runs: Sequence[Run]) -> str:
    """What the runs are judged by; "accuracy" if it is not the same for all."""
    found = {run.measure for run in runs if run.measure}
    return found.pop() if len(found) == 1 else "accuracy"


def worst(findings: Sequence[Episode]) -> Episode | None:
    """The most severe finding, the earliest of several."""
    return max(findings, key=lambda one: SEVERITIES.index(one.severity), default=None)


def _compared(pairing: Pairing, runs: Sequence[Run], groups: Sequence[Group]) -> str:
    name, baseline = groups[pairing.group].name, groups[pairing.baseline]
    gain = pairing.gain
    text = (
        f"{name}: {100 * gain.mean:+.1f} points against {baseline.name} "
        f"({measure_of(runs)} {_percent(pairing.level)}"
    )
    if not gain.enough:
        few = "1 paired seed is" if gain.pairs == 1 else f"{gain.pairs} paired seeds are"
        return f"{text}); {few} too few to tell."
    if not math.isfinite(gain.low):
        return f"{text}); some run has no accuracy."
    text += f"; 95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    if not gain.significant:
        return f"{text}: no difference shown."
    return f"{text}: {'better' if gain.mean > 0 else 'worse'}."


def _reached(runs: Sequence[Run], name: str) -> str:
    """What a group without a comparison reached, and its warnings; empty without an evaluation."""
    if not any(run.accuracy is not None for run in runs):
        return ""
    unfinished = sum(not run.finished for run in runs)
    doubt = f" ({unfinished} of {len(runs)} unfinished)" if unfinished else ""
    found = worst([episode for run in runs for episode in run.findings])
    warning = ""
    if found is not None and found.severity != "info":
        warning = f"; {found.severity} from step {found.first:.0f}: {found.name}"
    return f"{name}: {measure_of(runs)} {_percent(_mean_final(runs))}{doubt}{warning}."


def _summed_up(members: dict[str, list[Run]]) -> str:
    """The lowest and the highest of many groups."""
    means = {
        name: mean for name, runs in members.items() if math.isfinite(mean := _mean_final(runs))
    }
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    every = [run for runs in members.values() for run in runs]
    return (
        f"{len(means)} groups, {measure_of(every)} from {_percent(means[low])} ({low}) to "
        f"{_percent(means[high])} ({high})."
    )


def _mean_final(runs: Sequence[Run]) -> float:
    last = [float(run.accuracy.value[-1]) for run in runs if run.accuracy is not None]
    return fmean(last) if last else math.nan


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
