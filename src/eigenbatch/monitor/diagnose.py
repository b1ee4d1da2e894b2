"""From a reading to its diagnoses: which rules are asked, and in which order they answer."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import rules
from eigenbatch.monitor.diagnosis import Diagnosis
from eigenbatch.monitor.thresholds import EARLY_STEPS

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading

T = TypeVar("T")

CLOUD_RULES = (rules.collapsing, rules.dimensional_collapse, rules.mean_dominated)
READING_RULES = (
    rules.non_unit_input,
    rules.half_precision_input,
    rules.identical_views,
    rules.temperature_too_low,
    rules.temperature_too_high,
    rules.false_negatives,
    rules.self_negatives,
    rules.queue_not_full,
    rules.alignment_saturated,
    rules.vanishing_gradient,
    rules.stuck_at_chance,
)
NAMES = (
    "collapsing",
    "dimensional collapse",
    "mean-dominated",
    "non-unit input",
    "half-precision input",
    "identical views",
    "temperature too low",
    "temperature too high",
    "false negatives",
    "self-negatives",
    "queue not full",
    "alignment saturated",
    "vanishing gradient",
    "stuck at chance",
    "healthy",
)
"""Every name a diagnosis can have, causes before symptoms."""

UNTRAINED = (
    "dimensional collapse",
    "mean-dominated",
    "false negatives",
    "queue not full",
    "stuck at chance",
)
"""What any encoder may show in its first steps."""

_ORDER = ("critical", "warning", "info")


def diagnose(reading: "Reading", *, ignoring: Collection[str] = ()) -> tuple[Diagnosis, ...]:
    """All findings not named in `ignoring`, most severe first; `healthy` when there is none.

    In the first steps of a run, findings that describe an untrained encoder are only "info".
    """
    found = _findings(CLOUD_RULES, reading.cloud) + _findings(READING_RULES, reading)
    found = [one for one in found if one.name not in ignoring]
    if reading.step is not None and reading.step < EARLY_STEPS:
        found = [replace(one, severity="info") if one.name in UNTRAINED else one for one in found]
    return _ordered(found)


def diagnose_cloud(cloud: Cloud) -> tuple[Diagnosis, ...]:
    """The findings that need embeddings only, no positives."""
    return _ordered(_findings(CLOUD_RULES, cloud))


def _findings(rules: tuple[Callable[[T], Diagnosis | None], ...], facts: T) -> list[Diagnosis]:
    return [found for rule in rules if (found := rule(facts)) is not None]


def _ordered(found: list[Diagnosis]) -> tuple[Diagnosis, ...]:
    if not found:
        return (
            Diagnosis(
                name="healthy",
                severity="info",
                evidence="no threshold is crossed",
                advice="Nothing to do.",
            ),
        )
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.severity)))
