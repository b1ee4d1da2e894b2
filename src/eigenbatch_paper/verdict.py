"""The one rule that turns what was measured into a verdict.

A criterion is a set of parts, the main ones and the rest. A part is a fact (true or false) or a
finding about an effect, read from its 95 % interval beside zero and the printed figure:

| interval | finding |
| --- | --- |
| excludes zero on the claimed side, holds the printed figure (or none is printed) | shown |
| excludes zero on the claimed side, but also the printed figure | of another size |
| holds zero and the printed figure (or none is printed) | open |
| holds zero and excludes the printed figure, or lies on the other side of zero | refuted |
| fewer than three pairs, or a run without a value | open |

A claim that two things are equal, or that nothing is lost, has a margin instead, and one about a
range of values that range:

| interval | finding |
| --- | --- |
| lies within the margin (for a loss: does not reach below it) | shown |
| lies beyond the margin | refuted |
| otherwise | open |

A criterion on a mean alone is shown or refuted by three pairs or more, and open with fewer. A fact
needs no interval: it is decided by the runs that there are.

| main parts | rest | verdict |
| --- | --- | --- |
| one is refuted | any | does not reproduce |
| none is refuted, one is open | any | inconclusive |
| all are shown | all are shown | reproduced |
| otherwise | | holds under stated conditions |
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from eigenbatch.runs import PairedDifference

Finding = Literal["shown", "of another size", "open", "refuted"]  # best first
Outcome = Literal[
    "reproduced", "holds under stated conditions", "inconclusive", "does not reproduce"
]
_ORDER: tuple[Finding, ...] = get_args(Finding)
_WORDS: dict[Finding, str] = {
    "refuted": "Not found",
    "open": "Open",
    "of another size": "Of another size than printed",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rows say about the claim."""

    outcome: Outcome
    measured: str  # the figure beside the printed one
    note: str = ""  # under which conditions, or the likely reason


def decided(
    main: Mapping[str, Finding | bool],
    rest: Mapping[str, Finding | bool],
    measured: str,
    note: str = "",
) -> Verdict:
    """Apply the rule; the note begins with the parts that are not shown."""
    found = {name: _finding(part) for name, part in {**main, **rest}.items()}
    worst = all_of(found[name] for name in main)
    outcome: Outcome = "holds under stated conditions"
    if worst == "refuted":
        outcome = "does not reproduce"
    elif worst == "open":
        outcome = "inconclusive"
    elif all(finding == "shown" for finding in found.values()):
        outcome = "reproduced"
    texts = [
        f"{words}: {'; '.join(names)}."
        for finding, words in _WORDS.items()
        if (names := [name for name, one in found.items() if one == finding])
    ]
    return Verdict(outcome, measured, " ".join([*texts, note]).strip())


def effect(difference: PairedDifference, printed: float | None = None) -> Finding:
    """A claimed effect, in the direction of the printed figure; without one, above zero."""
    return interval(*_ends(difference), printed)


def interval(low: float, high: float, printed: float | None = None) -> Finding:
    """The same of any 95 % interval."""
    if math.isnan(low) or math.isnan(high):
        return "open"
    agrees = printed is None or low <= printed <= high
    if low <= 0 <= high:
        return "open" if agrees else "refuted"
    if (low > 0) != (printed is None or printed > 0):
        return "refuted"
    return "shown" if agrees else "of another size"


def equal(difference: PairedDifference, *, within: float) -> Finding:
    """Claimed to be equal: shown if the interval lies within a margin, refuted if beyond it."""
    return inside(*_ends(difference), -within, within)


def inside(low: float, high: float, least: float, most: float) -> Finding:
    """Claimed to lie in a range: shown if all of a 95 % interval does, refuted if none of it."""
    if least <= low and high <= most:
        return "shown"
    return "refuted" if low > most or high < least else "open"  # NaN is open


def mean_at_least(difference: PairedDifference, level: float) -> Finding:
    """Claimed of the mean alone: NaN, as of a run that never gets there, is refuted."""
    if not difference.enough:
        return "open"
    return "shown" if difference.mean >= level else "refuted"


def mean_at_most(difference: PairedDifference, level: float) -> Finding:
    """The same of a mean that is claimed to be small."""
    if not difference.enough:
        return "open"
    return "shown" if difference.mean <= level else "refuted"


def no_loss(difference: PairedDifference, *, within: float) -> Finding:
    """Claimed not to be lower by more than a margin: shown if the interval is not, or refuted."""
    low, high = _ends(difference)
    if low >= -within:
        return "shown"
    return "refuted" if high < -within else "open"


def all_of(findings: Iterable[Finding | bool]) -> Finding:
    """The worst: a statement about several effects."""
    return max((_finding(one) for one in findings), key=_ORDER.index, default="shown")


def any_of(findings: Iterable[Finding | bool]) -> Finding:
    """The best: a statement about at least one of several."""
    return min((_finding(one) for one in findings), key=_ORDER.index, default="refuted")


def _finding(part: Finding | bool) -> Finding:
    if isinstance(part, bool):
        return "shown" if part else "refuted"
    return part


def _ends(difference: PairedDifference) -> tuple[float, float]:
    """The interval, unknown unless there are enough pairs for one."""
    return (difference.low, difference.high) if difference.enough else (math.nan, math.nan)
