"""Findings about what the monitor was handed."""

from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.core.axes import random_dominance
from eigenbatch.core.precision import ZERO_ROW
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.rule import SYMPTOMS, Answer, ReadingRule

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


@partial(ReadingRule, "not finite", place=10)
def not_finite(reading: "Reading") -> Answer | None:
    """The batch cannot be read: NaN, infinity, rows of zeros, or an impossible temperature."""
    if reading.failure is None:
        return None
    advice = (
        "A batch with rows of zeros cannot be read. Leave out padding, and end the encoder with "
        "no ReLU. Of a queue pass the filled slots only (queue[:filled]), or begin with random "
        "unit rows in it, as MoCo does."
        if ZERO_ROW in reading.failure
        else "Stop the run: every later step is lost. Restart from the last good checkpoint with a "
        "lower learning rate, gradient clipping and the loss in float32; "
        "torch.autograd.set_detect_anomaly(True) names the operation."
    )
    return Answer(severity="critical", evidence=reading.failure, advice=advice)


@partial(ReadingRule, "loss mismatch", place=30, explains=(SYMPTOMS, "non-unit input"))
def loss_mismatch(reading: "Reading") -> Answer | None:
    """The user's loss is not InfoNCE of these embeddings at this tau."""
    claim = reading.claim
    if claim is None:
        return None
    difference = abs(claim.loss - claim.measured)
    tolerance = max(limit.LOSS_ROUNDING, limit.LOSS_TOLERANCE * claim.measured)
    if difference <= tolerance and not claim.explanation:
        return None
    advice = (
        f"Your loss is exactly {claim.explanation}."
        if claim.explanation
        else "Check in this order: the tau given to the monitor is the one in the loss; rows are "
        "normalised before the product; logits are divided by tau; an anchor is not its own "
        "negative; the layout is right (paired or cross); the loss is that of this batch, not "
        "divided for gradient accumulation. With several processes, gather all embeddings for the "
        "loss and use sync=True here, or neither."
    )
    return Answer(
        severity="warning",
        evidence=f"your loss {claim.loss:.4f}, InfoNCE of the embeddings at tau = "
        f"{reading.softmax.tau:g} is {claim.measured:.4f} (tolerance {limit.LOSS_TOLERANCE:.0%})",
        advice=advice,
    )


@partial(ReadingRule, "non-unit input", place=40)
def non_unit_input(reading: "Reading") -> Answer | None:
    """The embeddings were not normalised."""
    inputs = reading.inputs
    if inputs is None or _loss_agrees(reading):
        return None
    deviation = max(abs(inputs.shortest - 1), abs(inputs.longest - 1))
    if deviation <= limit.UNIT_TOLERANCE:
        return None
    return Answer(
        severity="warning",
        evidence=f"row norms {inputs.shortest:.3g} ... {inputs.longest:.3g}, expected 1 within "
        f"{limit.UNIT_TOLERANCE}; the reading is that of the normalised rows",
        advice="If the loss does not normalise either, logits grow with the norms and tau means "
        "nothing: use torch.nn.functional.normalize. If it does, pass what it sees, or pass "
        "loss= so that the monitor can check.",
    )


def _loss_agrees(reading: "Reading") -> bool:
    """Whether the user's own loss proves that it normalises: rows near 1 differ by little."""
    claim = reading.claim
    return claim is not None and abs(claim.loss - claim.measured) <= limit.LOSS_ROUNDING


@partial(ReadingRule, "half-precision input", place=50)
def half_precision_input(reading: "Reading") -> Answer | None:
    """The embeddings carry two or three digits."""
    inputs = reading.inputs
    if inputs is None or not inputs.half:
        return None
    error = inputs.resolution / reading.softmax.tau
    return Answer(
        severity="warning" if error > limit.LOGIT_ROUNDING else "info",
        evidence=f"{inputs.dtype}: rounding of a logit up to epsilon / tau = {error:.3f} "
        f"(threshold {limit.LOGIT_ROUNDING:g})",
        advice="Compute the embeddings' last layer and the loss in float32 (disable autocast "
        "around them)."
        if error > limit.LOGIT_ROUNDING
        else "Nothing to do at this temperature.",
    )


@partial(ReadingRule, "ReLU at the end", place=180, explains=("one dimension dominates",))
def relu_at_the_end(reading: "Reading") -> Answer | None:
    """No entry of any embedding is negative."""
    share = reading.axes.negative_share
    if share > limit.NO_NEGATIVE_ENTRIES:
        return None
    return Answer(
        severity="warning",
        evidence=f"{share:.2%} of the entries are negative (centred embeddings: about 50%)",
        advice="End the projection head with a linear layer: remove the last ReLU (or sigmoid, "
        "softmax). Non-negative embeddings use only a corner of the sphere.",
    )


@partial(ReadingRule, "one dimension dominates", place=190, untrained=True)
def one_dimension_dominates(reading: "Reading") -> Answer | None:
    """A single coordinate holds much of every embedding."""
    dimension, towers = reading.cloud.dimension, reading.towers
    clouds = (reading.cloud,) if towers is None else (towers.first, towers.second)
    by_chance = random_dominance(dimension, max(cloud.sigma_hat for cloud in clouds))
    least = max(limit.DOMINANCE, by_chance)
    if reading.axes.dominance <= least:
        return None
    share = reading.axes.dominance / dimension
    return Answer(
        severity="warning",
        evidence=f"one of {dimension} coordinates holds {share:.0%} of the squared length, "
        f"{reading.axes.dominance:.1f} > {least:.1f} times its equal share",
        advice="Standardise the input features and put BatchNorm or LayerNorm before the last "
        "linear layer: one unscaled feature or weight drives the similarity.",
    )
