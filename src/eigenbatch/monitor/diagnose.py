"""From a reading to its findings: apply all rules, weigh the answers and order them."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.diagnosis import Diagnosis, Severity
from eigenbatch.monitor.rule import SYMPTOMS, CloudRule
from eigenbatch.monitor.rules import RULES
from eigenbatch.monitor.rules.inputs import not_finite

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading

HEALTHY = Diagnosis(
    name="healthy",
    severity="info",
    evidence="no threshold is crossed",
    advice="Nothing to do.",
)
NAMES = (*(rule.name for rule in RULES), HEALTHY.name)
"""Every name a finding can have, causes before symptoms."""

_BY_NAME = {rule.name: rule for rule in RULES}
_ORDER = ("critical", "warning", "info")


def diagnose(reading: "Reading", *, ignoring: Collection[str] = ()) -> tuple[Diagnosis, ...]:
    """All findings not named in `ignoring`, most severe first; `healthy` when there is none.

    Three things make a warning a remark ("info"): the first steps of a run, for what an untrained
    encoder shows; a single reading, inside a monitor; and a cause that explains it.
    """
    found = [one for one in findings(reading) if one.name not in ignoring]
    found = [replace(one, severity=_severity(one, reading)) for one in found]
    warned = {one.name for one in found if one.severity != "info"}
    explained = {symptom for name in warned for symptom in _explained_by(name)}
    return _ordered(
        [
            replace(one, severity="info")
            if one.name in explained and one.severity == "warning"
            else one
            for one in found
        ]
    )


def findings(reading: "Reading") -> list[Diagnosis]:
    """What the rules say about the reading, its place in the run left aside."""
    if (failure := not_finite(reading)) is not None:
        return [failure]
    found = [
        _of_clouds(rule, reading) if isinstance(rule, CloudRule) else rule(reading)
        for rule in RULES
    ]
    return [one for one in found if one is not None]


def lasting_names(reading: "Reading") -> set[str]:
    """Names of the findings to count: not what any untrained encoder shows in its first steps."""
    early = _is_early(reading)
    names = {one.name for one in findings(reading)}
    return {name for name in names if not (early and _BY_NAME[name].untrained)}


def diagnose_cloud(cloud: Cloud) -> tuple[Diagnosis, ...]:
    """The findings that need embeddings only, no positives."""
    found = [rule(cloud) for rule in RULES if isinstance(rule, CloudRule)]
    return _ordered([one for one in found if one is not None])


def _of_clouds(rule: CloudRule, reading: "Reading") -> Diagnosis | None:
    """Of two towers, the one that shows a finding is named; both if both do."""
    if reading.towers is None:
        return rule(reading.cloud)
    towers = {"first tower": reading.towers.first, "second tower": reading.towers.second}
    found = {side: one for side, cloud in towers.items() if (one := rule(cloud)) is not None}
    if not found:
        return None
    evidence = "; ".join(f"{side}: {one.evidence}" for side, one in found.items())
    return replace(next(iter(found.values())), evidence=evidence)


def _explained_by(name: str) -> set[str]:
    """Names of the findings that a cause explains."""
    explained = set(_BY_NAME[name].explains)
    if SYMPTOMS in explained:
        explained |= {rule.name for rule in RULES if rule.symptom}
    return explained


def _severity(one: Diagnosis, reading: "Reading") -> Severity:
    rule = _BY_NAME[one.name]
    course, early = reading.course, _is_early(reading)
    lasted = 1 if course is None else course.streaks.get(one.name, 0) + 1
    if early and one.name == "collapsing" and course is not None:
        # Without normalisation layers an untrained encoder may look collapsed, but not for long.
        return "critical" if lasted > 1 else "info"
    if one.severity != "warning":
        return one.severity
    if early and rule.untrained:
        return "info"
    return "warning" if course is None or lasted >= rule.lasting else "info"


def _is_early(reading: "Reading") -> bool:
    """Whether the encoder may still look untrained."""
    first_steps = limit.MOMENTUM_STEPS if reading.queue is not None else limit.EARLY_STEPS
    return reading.step is not None and reading.step < first_steps


def _ordered(found: list[Diagnosis]) -> tuple[Diagnosis, ...]:
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.severity))) or (HEALTHY,)
