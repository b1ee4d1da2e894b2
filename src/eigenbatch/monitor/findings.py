"""From a reading to its findings: ask all rules, weigh the answers and order them."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.rules import (
    EARLY_STEPS,
    MOMENTUM_STEPS,
    RULES,
    SYMPTOMS,
    Rule,
    Severity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One named finding.

    Args:
        name: name of the finding, see docs/diagnosis.md.
        severity: "info", "warning" or "critical".
        evidence: the numbers behind it and their thresholds.
        advice: what to do.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.ones(64, 16)  # collapsed: every row is the same
        >>> [finding] = [
        ...     one
        ...     for one in SpectralMonitor(tau=0.1, every=1, quiet=True)(z, z).findings
        ...     if one.name == "collapsing"
        ... ]
        >>> finding.severity in ("info", "warning", "critical")
        True
    """

    name: str
    severity: Severity
    evidence: str
    advice: str


HEALTHY = Finding(
    name="healthy",
    severity="info",
    evidence="no threshold is crossed",
    advice="Nothing to do.",
)
NAMES = (*(rule.name for rule in RULES), HEALTHY.name)
"""Every name a finding can have, causes before symptoms."""

_BY_NAME = {rule.name: rule for rule in RULES}
_ORDER = ("critical", "warning", "info")


def diagnose(reading: Reading, *, ignoring: Collection[str] = ()) -> tuple[Finding, ...]:
    """All findings not named in `ignoring`, most severe first; `healthy` when there is none.

    Three things make a warning a remark ("info"): the first steps of a run, for what an untrained
    encoder shows; a single reading, inside a monitor; and a cause that explains it.
    """
    found = [one for one in _found(reading) if one.name not in ignoring]
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


def lasting_names(reading: Reading) -> set[str]:
    """Names of the findings to count: not what any untrained encoder shows in its first steps."""
    early = _is_early(reading)
    names = {one.name for one in reading.findings} - {HEALTHY.name}
    return {name for name in names if not (early and _BY_NAME[name].untrained)}


def diagnose_cloud(cloud: Cloud) -> tuple[Finding, ...]:
    """The findings that need embeddings only, no positives."""
    found = [_asked(rule, cloud) for rule in RULES if rule.clouds]
    return _ordered([one for one in found if one is not None])


def _found(reading: Reading) -> list[Finding]:
    """What the rules say about the reading, its place in the run left aside."""
    if reading.failure is not None:
        failure = _asked(_BY_NAME["not finite"], reading)
        return [] if failure is None else [failure]
    found = [_of_towers(rule, reading) if rule.clouds else _asked(rule, reading) for rule in RULES]
    return [one for one in found if one is not None]


def _asked(rule: Rule, subject: Cloud) -> Finding | None:
    answer = rule.check(subject)
    return None if answer is None else Finding(name=rule.name, **answer._asdict())


def _of_towers(rule: Rule, reading: Reading) -> Finding | None:
    """Of two towers, the one that shows a finding is named; both if both do."""
    if reading.first_tower is None:
        return _asked(rule, reading)
    towers = {"first tower": reading.first_tower, "second tower": reading}
    found = {side: one for side, cloud in towers.items() if (one := _asked(rule, cloud))}
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


def _severity(one: Finding, reading: Reading) -> Severity:
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


def _is_early(reading: Reading) -> bool:
    """Whether the encoder may still look untrained."""
    first_steps = MOMENTUM_STEPS if reading.queue_length is not None else EARLY_STEPS
    return reading.step is not None and reading.step < first_steps


def _ordered(found: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.severity))) or (HEALTHY,)
