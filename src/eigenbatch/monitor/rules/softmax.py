"""Findings about the loss and its temperature."""

from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.rule import SYMPTOMS, Answer, ReadingRule

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


_NEED_NEGATIVES = ("one dimension dominates", "misaligned pairs", "false negatives")


@partial(ReadingRule, "stuck at chance", place=220, untrained=True, symptom=True)
def stuck_at_chance(reading: "Reading") -> Answer | None:
    """The loss is hardly better than guessing."""
    softmax = reading.softmax
    if softmax.loss < limit.CHANCE_SHARE * softmax.chance_loss:
        return None
    drop = None if reading.course is None else reading.course.loss_drop
    if drop is not None and drop > limit.FALLING_SHARE * softmax.chance_loss:
        return None
    return Answer(
        severity="warning",
        evidence=f"loss {softmax.loss:.3f} >= {limit.CHANCE_SHARE:.0%} of chance "
        f"log({softmax.negatives} + 1) = {softmax.chance_loss:.3f}"
        + ("" if drop is None else ", and not falling"),
        advice="Check in this order: row i of both views is the same sample; gradients reach every "
        "encoder (no detach, no frozen tower, learning rate above 0); the learning rate is neither "
        "far too low nor far too high; tau is not above 0.5.",
    )


@partial(ReadingRule, "alignment saturated", place=260, remark=True)
def alignment_saturated(reading: "Reading") -> Answer | None:
    """The softmax mean and the positive coincide: little force is left. A remark only."""
    softmax = reading.softmax
    if softmax.alignment <= limit.SATURATED_ALIGNMENT:
        return None
    solved = softmax.miss < reading.gradient.geometry
    return Answer(
        severity="info",
        evidence=f"alignment {softmax.alignment:.4f} > {limit.SATURATED_ALIGNMENT} "
        f"(miss {softmax.miss:.4f}, geometry {reading.gradient.geometry:.4f})",
        advice="The positives are nearly solved, so gradients are small; expected late in a run."
        if solved
        else "The weighted negatives lie where the positive lies, so gradients are small: see the "
        "other findings for a collapse.",
    )


@partial(
    ReadingRule,
    "temperature too low",
    place=150,
    explains=(SYMPTOMS, "task solved", "false negatives"),
)
def temperature_too_low(reading: "Reading") -> Answer | None:
    """Each anchor is pushed by one or two negatives, or the embeddings have fled into a cone."""
    softmax, cloud = reading.softmax, reading.cloud
    if softmax.tau >= limit.LOW_TAU or softmax.negatives < limit.FEW_NEGATIVES:
        return None
    few = softmax.effective_negatives < limit.FEW_EFFECTIVE
    told_apart = reading.negatives.found_share >= limit.FOUND_SHARE
    cone = cloud.mean_sqnorm > limit.COMMON_SQNORM and told_apart
    if not few and not cone:
        return None
    evidence = f"tau = {softmax.tau:g} < {limit.LOW_TAU:g}; "
    if few:
        evidence += (
            f"effective negatives {softmax.effective_negatives:.2f} < {limit.FEW_EFFECTIVE:g} "
            f"of {softmax.negatives}"
        )
    else:
        evidence += (
            f"the embeddings lie in a narrow cone (squared mean {cloud.mean_sqnorm:.2f} > "
            f"{limit.COMMON_SQNORM})"
        )
    return Answer(
        severity="warning",
        evidence=evidence,
        advice="Raise tau to 0.05 ... 0.2. A learned scale: clamp it (scale = 1 / tau at most 30 "
        "for batches up to a few thousand) and give it a lower learning rate.",
    )


@partial(ReadingRule, "temperature too high", place=160, explains=(SYMPTOMS, "false negatives"))
def temperature_too_high(reading: "Reading") -> Answer | None:
    """The softmax is nearly uniform and would stay so for perfect embeddings."""
    softmax = reading.softmax
    share = softmax.effective_negatives / softmax.negatives
    lead = 1 / softmax.tau
    if share <= limit.UNIFORM_SHARE or lead >= limit.LEAD:
        return None
    return Answer(
        severity="warning",
        evidence=f"tau = {softmax.tau:g}: the logit of a perfect positive is only 1 / tau = "
        f"{lead:.2f} < {limit.LEAD:g} above that of an unrelated negative; effective negatives "
        f"{share:.0%} > {limit.UNIFORM_SHARE:.0%} of N-",
        advice="Lower tau to 0.05 ... 0.5. If your loss multiplies the similarities by a scale, "
        "tau is 1 / scale: check that logits are divided by tau, not multiplied.",
    )


@partial(ReadingRule, "few negatives", place=170, explains=(SYMPTOMS, *_NEED_NEGATIVES))
def few_negatives(reading: "Reading") -> Answer | None:
    """Too few negatives to learn from."""
    count = reading.softmax.negatives
    if count >= limit.FEW_NEGATIVES:
        return None
    return Answer(
        severity="warning",
        evidence=f"{count} negatives per anchor < {limit.FEW_NEGATIVES}",
        advice="Enlarge the batch, gather embeddings across devices, or use a queue (MoCo) or "
        "gradient caching. Accumulating gradients over micro-batches adds no negatives.",
    )


@partial(ReadingRule, "modality gap", place=250, remark=True)
def modality_gap(reading: "Reading") -> Answer | None:
    """The two towers occupy different regions. A remark: well trained models have it too."""
    towers = reading.towers
    if towers is None or towers.gap <= limit.MODALITY_GAP:
        return None
    return Answer(
        severity="info",
        evidence=f"squared distance of the towers' means {towers.gap:.2f} > {limit.MODALITY_GAP}",
        advice="Harmless for retrieval within one direction. For scores compared across towers, "
        "centre each tower's embeddings, or raise tau: a low tau keeps the gap open.",
    )
