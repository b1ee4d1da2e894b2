"""From a reading to its diagnoses: which rules are asked, and in which order they answer."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.diagnosis import Diagnosis, Severity
from eigenbatch.monitor.rules import cloud as cloud_rules
from eigenbatch.monitor.rules import course, inputs, pairs, queue, softmax

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading

CLOUD_RULES: tuple[Callable[[Cloud, str], Diagnosis | None], ...] = (
    cloud_rules.collapsing,
    cloud_rules.dimensional_collapse,
    cloud_rules.mean_dominated,
)
READING_RULES: tuple[Callable[["Reading"], Diagnosis | None], ...] = (
    inputs.loss_mismatch,
    inputs.non_unit_input,
    inputs.half_precision_input,
    course.encoder_does_not_move,
    course.same_batch_repeated,
    pairs.identical_views,
    pairs.misaligned_pairs,
    pairs.repeated_ids,
    pairs.false_negatives,
    queue.queue_not_full,
    queue.queue_unlike_keys,
    queue.self_negatives,
    softmax.temperature_too_low,
    softmax.temperature_too_high,
    softmax.few_negatives,
    inputs.relu_at_the_end,
    inputs.one_dimension_dominates,
    pairs.task_solved,
    pairs.easy_batches,
    softmax.stuck_at_chance,
    softmax.modality_gap,
    softmax.alignment_saturated,
)
NAMES = (
    "not finite",
    "collapsing",
    "loss mismatch",
    "non-unit input",
    "half-precision input",
    "encoder does not move",
    "same batch repeated",
    "identical views",
    "misaligned pairs",
    "repeated ids",
    "false negatives",
    "queue not full",
    "queue unlike keys",
    "self-negatives",
    "temperature too low",
    "temperature too high",
    "few negatives",
    "ReLU at the end",
    "one dimension dominates",
    "task solved",
    "easy batches",
    "stuck at chance",
    "dimensional collapse",
    "mean-dominated",
    "modality gap",
    "alignment saturated",
    "healthy",
)
"""Every name a diagnosis can have, causes before symptoms."""

UNTRAINED = (
    "dimensional collapse",
    "mean-dominated",
    "false negatives",
    "queue not full",
    "misaligned pairs",
    "one dimension dominates",
    "stuck at chance",
)
"""What any encoder may show in its first steps."""

_SYMPTOMS = ("stuck at chance", "dimensional collapse", "mean-dominated")
_EXPLAINS = {
    "collapsing": (*_SYMPTOMS, "one dimension dominates", "false negatives", "identical views"),
    "dimensional collapse": ("false negatives", "mean-dominated", "one dimension dominates"),
    "loss mismatch": ("non-unit input", *_SYMPTOMS),
    "encoder does not move": (
        *_SYMPTOMS,
        "one dimension dominates",
        "task solved",
        "misaligned pairs",
        "false negatives",
    ),
    "same batch repeated": ("task solved", *_SYMPTOMS),
    "identical views": ("task solved",),
    "misaligned pairs": _SYMPTOMS,
    "queue unlike keys": ("task solved", *_SYMPTOMS),
    "temperature too low": ("task solved", "false negatives", *_SYMPTOMS),
    "temperature too high": (*_SYMPTOMS, "false negatives"),
    "ReLU at the end": ("mean-dominated", "one dimension dominates"),
    "few negatives": (*_SYMPTOMS, "one dimension dominates"),
}
"""Which symptoms a cause explains: beside a warned cause they are remarks."""

_PATIENCE = {"task solved": limit.SOLVED_LASTING}
_ORDER = ("critical", "warning", "info")


def diagnose(reading: "Reading", *, ignoring: Collection[str] = ()) -> tuple[Diagnosis, ...]:
    """All findings not named in `ignoring`, most severe first; `healthy` when there is none.

    Three things make a warning a remark ("info"): the first steps of a run, for what an untrained
    encoder shows; a single reading, inside a monitor; and a cause that explains it.
    """
    found = [one for one in findings(reading) if one.name not in ignoring]
    found = [replace(one, severity=_severity(one, reading)) for one in found]
    warned = {one.name for one in found if one.severity != "info"}
    explained = {symptom for name in warned for symptom in _EXPLAINS.get(name, ())}
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
    if (failure := inputs.not_finite(reading)) is not None:
        return [failure]
    found = [rule(reading) for rule in READING_RULES]
    return [one for one in found if one is not None] + _cloud_findings(reading)


def diagnose_cloud(cloud: Cloud) -> tuple[Diagnosis, ...]:
    """The findings that need embeddings only, no positives."""
    return _ordered([one for rule in CLOUD_RULES if (one := rule(cloud, "")) is not None])


def _cloud_findings(reading: "Reading") -> list[Diagnosis]:
    """Of two towers, the one that shows a finding is named; both if both do."""
    sides = {"": reading.cloud}
    if reading.towers is not None:
        sides = {"first tower: ": reading.towers.first, "second tower: ": reading.towers.second}
    found = []
    for rule in CLOUD_RULES:
        ones = [one for side, cloud in sides.items() if (one := rule(cloud, side)) is not None]
        if ones:
            evidence = "; ".join(one.evidence for one in ones)
            found.append(replace(ones[0], evidence=evidence))
    return found


def _severity(one: Diagnosis, reading: "Reading") -> Severity:
    first_steps = limit.MOMENTUM_STEPS if reading.queue is not None else limit.EARLY_STEPS
    early = reading.step is not None and reading.step < first_steps
    if early and one.name == "collapsing" and reading.course is not None:
        # Without normalisation layers an untrained encoder may look collapsed, but not for long.
        return "critical" if reading.course.streaks.get(one.name) else "info"
    if one.severity != "warning":
        return one.severity
    if early and one.name in UNTRAINED:
        return "info"
    if reading.course is None:
        return "warning"
    lasted = reading.course.streaks.get(one.name, 0) + 1
    return "warning" if lasted >= _PATIENCE.get(one.name, limit.LASTING) else "info"


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
