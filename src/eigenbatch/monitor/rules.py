"""One small pure function per diagnosis: a finding, or None when there is nothing to say."""

from typing import TYPE_CHECKING

from eigenbatch.core.cloud import Cloud
from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


def collapsing(cloud: Cloud) -> Diagnosis | None:
    """All embeddings become one direction."""
    if cloud.sigma_hat <= limit.COLLAPSED_SIGMA:
        return None
    return Diagnosis(
        name="collapsing",
        severity="critical",
        evidence=f"sigma-hat {cloud.sigma_hat:.4f} > {limit.COLLAPSED_SIGMA}; "
        f"isotropic would be {1 / cloud.dimension:.4f}",
        advice="Lower the learning rate or warm it up, check for dead ReLUs and missing "
        "normalisation layers, and restart from a checkpoint before sigma-hat rose.",
    )


def dimensional_collapse(cloud: Cloud) -> Diagnosis | None:
    """The embeddings vary, but only in a few directions."""
    least = limit.RANK_SHARE * cloud.attainable_centred_rank
    if cloud.centred_entropy_rank >= least:
        return None
    return Diagnosis(
        name="dimensional collapse",
        severity="warning",
        evidence=f"centred entropy rank {cloud.centred_entropy_rank:.1f} < {least:.1f} "
        f"({limit.RANK_SHARE:.0%} of the attainable {cloud.attainable_centred_rank})",
        advice="Weaken augmentation, lower tau or enlarge the batch; put a projection head between "
        "the backbone and the loss, or whiten the embeddings.",
    )


def mean_dominated(cloud: Cloud) -> Diagnosis | None:
    """Most of every embedding is a vector they all share."""
    if cloud.mean_sqnorm <= limit.COMMON_SQNORM:
        return None
    return Diagnosis(
        name="mean-dominated",
        severity="warning",
        evidence=f"squared norm of the mean {cloud.mean_sqnorm:.3f} > {limit.COMMON_SQNORM}; it is "
        f"{cloud.mean_share:.0%} of sigma-hat {cloud.sigma_hat:.3f}",
        advice="The shared vector says nothing about samples and hides the spectrum: end the head "
        "with a linear layer or BatchNorm (no ReLU), or centre the embeddings. A very low tau also "
        "drives embeddings into such a cone.",
    )


def alignment_saturated(reading: "Reading") -> Diagnosis | None:
    """The softmax mean and the positive coincide: no force is left."""
    softmax = reading.softmax
    if softmax.alignment <= limit.SATURATED_ALIGNMENT:
        return None
    return Diagnosis(
        name="alignment saturated",
        severity="warning",
        evidence=f"alignment {softmax.alignment:.4f} > {limit.SATURATED_ALIGNMENT} "
        f"(miss {softmax.miss:.4f}, geometry {reading.gradient.geometry:.4f}: the smaller one "
        "is the reason)",
        advice="Small miss: make the task harder (stronger augmentation, harder negatives). "
        "Small geometry: negatives look like the positive, so treat it as a collapse.",
    )


def stuck_at_chance(reading: "Reading") -> Diagnosis | None:
    """The loss is no better than guessing."""
    softmax = reading.softmax
    if softmax.loss < limit.CHANCE_SHARE * softmax.chance_loss:
        return None
    return Diagnosis(
        name="stuck at chance",
        severity="warning",
        evidence=f"loss {softmax.loss:.3f} >= {limit.CHANCE_SHARE:.0%} of chance "
        f"log({softmax.negatives} + 1) = {softmax.chance_loss:.3f}",
        advice="Check that row i of both views is the same sample and that gradients reach the "
        "encoder; then raise the learning rate or lower tau.",
    )


def vanishing_gradient(reading: "Reading") -> Diagnosis | None:
    """Positives are solved."""
    softmax = reading.softmax
    if softmax.miss >= limit.SOLVED_MISS:
        return None
    return Diagnosis(
        name="vanishing gradient",
        severity="warning",
        evidence=f"miss {softmax.miss:.2e} < {limit.SOLVED_MISS}: positives are solved; force "
        f"(miss/tau)^2 {reading.gradient.force:.2e}, geometry {reading.gradient.geometry:.2f}",
        advice="Nothing is left to learn from this task: stronger augmentation, a larger batch or "
        "harder negatives bring the gradient back.",
    )


def identical_views(reading: "Reading") -> Diagnosis | None:
    """The two views of a sample are copies."""
    similarity = reading.softmax.positive_similarity
    if similarity <= limit.COPY_SIMILARITY or reading.cloud.sigma_hat > limit.COLLAPSED_SIGMA:
        return None
    return Diagnosis(
        name="identical views",
        severity="warning",
        evidence=f"mean positive similarity {similarity:.5f} > {limit.COPY_SIMILARITY} although "
        f"the cloud is spread (sigma-hat {reading.cloud.sigma_hat:.3f})",
        advice="Both views are the same input: check that augmentation is on and drawn "
        "separately for each view.",
    )


def temperature_too_low(reading: "Reading") -> Diagnosis | None:
    """Each anchor is pushed by one or two negatives only."""
    softmax = reading.softmax
    if softmax.negatives < limit.ENOUGH_NEGATIVES:
        return None
    if softmax.effective_negatives >= limit.FEW_NEGATIVES:
        return None
    return Diagnosis(
        name="temperature too low",
        severity="warning",
        evidence=f"effective negatives {softmax.effective_negatives:.2f} < {limit.FEW_NEGATIVES:g} "
        f"of {softmax.negatives} at tau = {softmax.tau:g}",
        advice="Raise tau until tens of negatives count (0.05 to 0.5 is usual); if your loss "
        "multiplies by a scale, tau is 1 / scale.",
    )


def temperature_too_high(reading: "Reading") -> Diagnosis | None:
    """The softmax is uniform and would stay so for perfect embeddings."""
    softmax = reading.softmax
    share = softmax.effective_negatives / softmax.negatives
    reachable = softmax.separated_loss / softmax.chance_loss
    if share <= limit.UNIFORM_SHARE or reachable <= limit.UNREACHABLE_SHARE:
        return None
    return Diagnosis(
        name="temperature too high",
        severity="warning",
        evidence=f"effective negatives {share:.1%} > {limit.UNIFORM_SHARE:.0%} of N-; at tau = "
        f"{softmax.tau:g} even perfect embeddings have {reachable:.0%} > "
        f"{limit.UNREACHABLE_SHARE:.0%} of the chance loss",
        advice="Lower tau (0.05 to 0.5 is usual); if your loss multiplies by a scale, tau is "
        "1 / scale.",
    )


def false_negatives(reading: "Reading") -> Diagnosis | None:
    """Some negatives are further views of the anchor's own sample."""
    negatives = reading.negatives
    if (
        negatives.harder_share > limit.RESOLVED_HARDER_SHARE
        or negatives.near_duplicate_rate < limit.LOOK_ALIKE_RATE
        or negatives.near_duplicate_isolation < limit.LOOK_ALIKE_ISOLATION
    ):
        return None
    return Diagnosis(
        name="false negatives",
        severity="warning",
        evidence=f"near-duplicate rate {negatives.near_duplicate_rate:.1%} >= "
        f"{limit.LOOK_ALIKE_RATE:.0%}, standing apart {negatives.near_duplicate_isolation:.0%} >= "
        f"{limit.LOOK_ALIKE_ISOLATION:.0%}, other negatives told apart (harder than the positive "
        f"{negatives.harder_share:.2%} <= {limit.RESOLVED_HARDER_SHARE:.0%})",
        advice="Remove duplicates from the data set, keep repeats of a sample out of one batch, or "
        "treat them as positives.",
    )


def self_negatives(reading: "Reading") -> Diagnosis | None:
    """The queue still holds older keys of the anchors' own samples."""
    rate = None if reading.queue is None else reading.queue.self_negative_rate
    if rate is None or rate <= limit.SELF_NEGATIVE_RATE:
        return None
    return Diagnosis(
        name="self-negatives",
        severity="warning",
        evidence=f"{rate:.1%} > {limit.SELF_NEGATIVE_RATE:.0%} of anchors have a key of their own "
        "sample in the queue",
        advice="Make the queue shorter than one epoch, or mask keys with the anchor's sample id.",
    )


def queue_not_full(reading: "Reading") -> Diagnosis | None:
    """Some slots of the queue hold no key yet."""
    fill = None if reading.queue is None else reading.queue.fill
    if fill is None or fill >= 1:
        return None
    return Diagnosis(
        name="queue not full",
        severity="warning",
        evidence=f"queue fill {fill:.1%} < 100%",
        advice="Until it is full, empty slots are random directions that any anchor beats: wait, "
        "fill the queue before the first step, or pass only the filled part.",
    )


def non_unit_input(reading: "Reading") -> Diagnosis | None:
    """The embeddings were not normalised."""
    inputs = reading.inputs
    if inputs is None:
        return None
    deviation = max(abs(inputs.shortest - 1), abs(inputs.longest - 1))
    if deviation <= limit.UNIT_TOLERANCE:
        return None
    return Diagnosis(
        name="non-unit input",
        severity="warning",
        evidence=f"row norms {inputs.shortest:.3g} ... {inputs.longest:.3g}, expected 1 within "
        f"{limit.UNIT_TOLERANCE}; the reading is that of the normalised rows",
        advice="If the loss does not normalise either, logits grow with the norms and tau means "
        "nothing: use torch.nn.functional.normalize. If it does, pass what it sees.",
    )


def half_precision_input(reading: "Reading") -> Diagnosis | None:
    """The embeddings carry two or three digits."""
    inputs = reading.inputs
    if inputs is None or not inputs.half:
        return None
    error = inputs.resolution / reading.softmax.tau
    return Diagnosis(
        name="half-precision input",
        severity="warning" if error > limit.LOGIT_ROUNDING else "info",
        evidence=f"{inputs.dtype}: rounding of a logit up to epsilon / tau = {error:.3f} "
        f"(threshold {limit.LOGIT_ROUNDING:g})",
        advice="Compute the embeddings' last layer and the loss in float32 (disable autocast "
        "around them).",
    )
