"""What the runs show, in one or two sentences at the top of the page."""

import math
from collections.abc import Sequence
from statistics import fmean

from eigenbatch.report.groups import Group
from eigenbatch.report.paired import Pairing
from eigenbatch.report.runs import Run


def verdict(runs: Sequence[Run], groups: Sequence[Group], pairings: Sequence[Pairing]) -> list[str]:
    """Sentences about accuracy: every comparison, else every group; then the untrained encoder."""
    sentences = [_compared(one, groups) for one in pairings] or [
        text for group in groups if (text := _reached([runs[i] for i in group.runs], group.name))
    ]
    first = [
        float(run.accuracy.value[0])
        for run in runs
        if run.accuracy is not None and run.accuracy.step[0] == 0
    ]
    if sentences and first:
        sentences.append(f"Untrained: {_percent(fmean(first))}.")
    return sentences


def _compared(pairing: Pairing, groups: Sequence[Group]) -> str:
    name, baseline = groups[pairing.group].name, groups[pairing.baseline].name
    gain = pairing.gain
    text = f"{name}: {100 * gain.mean:+.1f} points against {baseline}"
    if not gain.enough:
        return f"{text}; {gain.pairs} paired seed{'s' * (gain.pairs > 1)} are too few to tell."
    interval = f"95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
    if not math.isfinite(gain.low):
        return f"{text}; some run has no accuracy."
    if not gain.significant:
        return f"{text} ({interval}): no difference shown."
    return f"{text} ({interval}): {'better' if gain.mean > 0 else 'worse'}."


def _reached(runs: Sequence[Run], name: str) -> str:
    """What a group without a baseline reached; empty without an evaluation."""
    last = [float(run.accuracy.value[-1]) for run in runs if run.accuracy is not None]
    if not last:
        return ""
    unfinished = sum(not run.finished for run in runs)
    doubt = f" ({unfinished} of {len(runs)} unfinished)" if unfinished else ""
    return f"{name}: {_percent(fmean(last))}{doubt}."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
