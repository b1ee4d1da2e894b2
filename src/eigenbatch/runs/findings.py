"""Findings over time: consecutive readings with the same finding become one episode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SEVERITIES = ("info", "warning", "critical")
MERGE_WITHIN = 0.01  # of the run: closer findings of one kind are drawn as one

Occurrences = list[tuple[int, dict[str, str]]]  # number of the reading, what it said


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One finding from its first to its last step, with what was said then."""

    name: str
    severity: str
    first: float
    last: float
    readings: int
    evidence: str
    last_evidence: str
    advice: str


def episodes(readings: Sequence[tuple[float, Any]]) -> tuple[Episode, ...]:
    """Episodes of (step, list of findings), the earliest first.

    Findings of one name and severity are joined if they were made in consecutive readings or
    within a hundredth of the run.
    """
    if not readings:
        return ()
    steps = [step for step, _ in readings]
    near = MERGE_WITHIN * (max(steps) - min(steps))
    seen: dict[tuple[str, str], Occurrences] = {}
    for number, (_, diagnoses) in enumerate(readings):
        for finding in _findings(diagnoses):
            seen.setdefault((finding["name"], finding["severity"]), []).append((number, finding))
    found = [
        _episode(steps, stretch)
        for occurrences in seen.values()
        for stretch in _stretches(steps, occurrences, near)
    ]
    return tuple(sorted(found, key=lambda episode: (episode.first, episode.name)))


def worth_saying(readings: Sequence[tuple[float, Any]]) -> list[Episode]:
    """The first episode of every finding of severity warning or higher, most severe first."""
    found: dict[str, Episode] = {}
    for one in sorted(episodes(readings), key=lambda one: -SEVERITIES.index(one.severity)):
        if one.severity != "info":
            found.setdefault(one.name, one)
    return list(found.values())


def _stretches(steps: list[float], occurrences: Occurrences, near: float) -> list[Occurrences]:
    stretches: list[Occurrences] = []
    for number, finding in occurrences:
        before = stretches[-1][-1][0] if stretches else None
        if before is not None and (number <= before + 1 or steps[number] - steps[before] <= near):
            stretches[-1].append((number, finding))
        else:
            stretches.append([(number, finding)])
    return stretches


def _episode(steps: list[float], stretch: Occurrences) -> Episode:
    (first, begun), (last, ended) = stretch[0], stretch[-1]
    return Episode(
        name=begun["name"],
        severity=begun["severity"],
        first=steps[first],
        last=steps[last],
        readings=len(stretch),
        evidence=begun["evidence"],
        last_evidence=ended["evidence"],
        advice=ended["advice"],
    )


def _findings(diagnoses: Any) -> list[dict[str, str]]:
    """Well-formed findings; whatever else the file holds is passed over."""
    if not isinstance(diagnoses, list):
        return []
    return [
        {key: str(finding.get(key, "")) for key in ("name", "severity", "evidence", "advice")}
        for finding in diagnoses
        if isinstance(finding, dict) and finding.get("severity") in SEVERITIES
    ]
