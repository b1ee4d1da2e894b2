"""The findings, one rule each, in the order of causes: what is listed first explains what follows.

A threshold stands above the rule that uses it, with its reason; those of several rules come first.
Values in brackets were measured on 75 healthy runs (SimCLR, MoCo, two towers; batches of 8 to 512,
dimensions 32 to 1024, tau 0.05 to 0.5) and on runs broken on purpose. They are bars that healthy
runs of these kinds did not reach, not laws: docs/diagnosis.md lists what they cannot see.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from eigenbatch.core.cloud import Cloud, random_dominance
from eigenbatch.core.contrast import ZERO_ROW
from eigenbatch.monitor.reading import Placed, Reading

Severity = Literal["info", "warning", "critical"]
SYMPTOMS = "symptoms"
"""In `explains`: every rule marked as a symptom."""

COLLAPSED_SIGMA = 0.99
"""Paper: sigma-hat above this reliably preceded collapse."""

COMMON_SQNORM = 0.5
"""||zbar||^2 above this: more than half of an embedding's squared length is one shared vector. Good
runs begin like that and lose it slowly with small batches or a low tau: a remark only."""

FEW_NEGATIVES = 24
"""Fewer negatives than this leave little to learn from (a batch of 8: 14) and judge no tau and no
pairs."""

QUEUE_LIKENESS = 0.9
"""Cosine of the second moments of queue and keys: healthy at least 0.95, random 0.1 to 0.3, rarely
refreshed 0.8 to 0.88, key encoder without momentum 0.87 to 0.94."""

SOLVED_SHARE = 0.97
"""Anchors whose positive beats every negative: healthy at most 0.957, a shortcut 1.0."""

SOLVED_NEGATIVES = 256
"""Beating fewer negatives than this is easier: the share is then raised to the power 256 / N-."""

EASY_MISS = 0.3
HARDER_FORCE = 2.0
"""Below this miss, and where harder batches at least double the force, selection can pay."""

HARD_MISS = 0.5
"""Above it no setting gained where less than `EASY_SHARE` of the positives beat all negatives; code
search gained 1.3 points at a miss of 0.32."""

EASY_SHARE = 0.95
LARGER_FORCE = 1.2
"""So it can where this share of positives beats all negatives and the force still grows by this: a
large temperature makes the miss large, not the batch hard. Translations at tau 0.2 and 0.3: miss
0.56 and 0.81, share 1.0 and 0.99, force 2.0x and 1.3x, +2.5 points of MRR; at tau 0.5 force 1.08x,
+0.6. SimCLR on pictures: share 0.3 to 0.5, no policy changed the end."""

MISPLACED_READINGS = 3
"""Readings before that mean is trusted."""

FOUND_SOME = 0.3
"""Misplaced positives mean something once this many are found. If half of the pairs are wrong, 0.55
can be found at most."""

TRAINED = 0.8
"""Positives found at the first reading: untrained encoders at most 0.6, trained ones 0.84 to 1. A
trained one need not move: at a third of the rate, digits moved by 1.1 in 300 steps."""

LONG_QUEUE = 8
"""Batches in a queue from which on most negatives are its keys; hard negatives are fewer."""

STILL_ROWS = 64
"""Rows needed for that ratio to settle."""

MOMENTUM_STEPS = 300
"""A run with a momentum encoder learns more slowly: so many steps count as its first."""

LOSS_TOLERANCE = 0.02
LOSS_ROUNDING = 0.01
"""The user's loss may differ by 2 %, or by 0.01 nats (bfloat16: 0.001)."""

EARLY_STEPS = 100
"""Until this step a run may still look as any encoder looks before training."""

LASTING = 2
"""Readings in a row before a finding is a warning; a single batch may be odd."""


class Answer(NamedTuple):
    """What a check found: how bad it is, the numbers behind it and what to do."""

    severity: Severity
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One finding.

    Args:
        name: name of the finding.
        check: the answer, or None when there is nothing to say.
        clouds: it needs embeddings only, no positives, and is asked about each tower.
        untrained: any encoder may show it in its first steps; it is a remark then.
        symptom: a consequence that many causes have.
        explains: names of findings that are remarks beside this one; `SYMPTOMS` for all symptoms.
        lasting: readings in a row before it is a warning.
        remark: never a warning; it cannot stop a run.
    """

    name: str
    check: Callable[[Any], Answer | None]
    clouds: bool
    untrained: bool = False
    symptom: bool = False
    explains: tuple[str, ...] = ()
    lasting: int = LASTING
    remark: bool = False


RULES: list[Rule] = []
"""Every rule, causes before symptoms."""


def rule(name: str, **options: Any) -> Callable[[Callable[[Any], Answer | None]], Any]:
    """Add the function below to the table, under the name of its finding."""

    def add(check: Callable[[Any], Answer | None]) -> Any:
        clouds = "cloud" in check.__annotations__
        RULES.append(Rule(name=name, check=check, clouds=clouds, **options))
        return check

    return add


@rule("not finite")
def not_finite(reading: Reading) -> Answer | None:
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


@rule(
    "collapsing",
    explains=(
        "dimensional collapse",
        "one dimension dominates",
        "false negatives",
        "identical views",
    ),
)
def collapsing(cloud: Cloud) -> Answer | None:
    """All embeddings become one direction."""
    if cloud.sigma_hat <= COLLAPSED_SIGMA:
        return None
    return Answer(
        severity="critical",
        evidence=f"sigma-hat {cloud.sigma_hat:.4f} > {COLLAPSED_SIGMA}: all rows point "
        f"the same way (isotropic would be {1 / cloud.dimension:.4f})",
        advice="Stop the run. Restart from a checkpoint before sigma-hat rose, with a lower or "
        "warmed-up learning rate and less weight decay. If sigma-hat was this high from the first "
        "step, look for dead ReLUs, constant inputs or a missing normalisation layer.",
    )


@rule("loss mismatch", explains=(SYMPTOMS, "non-unit input"))
def loss_mismatch(reading: Reading) -> Answer | None:
    """The user's loss is not InfoNCE of these embeddings at this tau."""
    loss, closest = reading.your_loss, reading.closest_loss
    if loss is None or closest is None:
        return None
    difference = abs(loss - closest)
    tolerance = max(LOSS_ROUNDING, LOSS_TOLERANCE * closest)
    if difference <= tolerance and not reading.loss_explanation:
        return None
    advice = (
        f"Its value is that of {reading.loss_explanation}. One value is no proof: "
        "eigenbatch.check_loss(loss, tau) names the mistake without data."
        if reading.loss_explanation
        else "Let eigenbatch.check_loss(loss, tau) name the mistake. If the loss is right, check "
        "in this order: the tau given to the monitor is the one in the loss; rows are "
        "normalised before the product; logits are divided by tau; an anchor is not its own "
        "negative; the layout is right (paired or cross); the loss is that of this batch, not "
        "divided for gradient accumulation. With several processes, gather all embeddings for the "
        "loss and use sync=True here, or neither."
    )
    return Answer(
        severity="warning",
        evidence=f"your loss {loss:.4f}, InfoNCE of the embeddings at tau = "
        f"{reading.tau:g} is {closest:.4f} (tolerance {LOSS_TOLERANCE:.0%})",
        advice=advice,
    )


UNIT_TOLERANCE = 0.01
"""Row norms further from 1 than this were not normalised; half precision stays well inside."""


@rule("non-unit input")
def non_unit_input(reading: Reading) -> Answer | None:
    """The embeddings were not normalised."""
    if _loss_agrees(reading):
        return None
    deviation = max(abs(reading.shortest_row - 1), abs(reading.longest_row - 1))
    if deviation <= UNIT_TOLERANCE:
        return None
    return Answer(
        severity="warning",
        evidence=f"row norms {reading.shortest_row:.3g} ... {reading.longest_row:.3g}, expected 1 "
        f"within {UNIT_TOLERANCE}; the reading is that of the normalised rows",
        advice="If the loss does not normalise either, logits grow with the norms and tau means "
        "nothing: use torch.nn.functional.normalize. If it does, pass what it sees, or pass "
        "loss= so that the monitor can check.",
    )


LOGIT_ROUNDING = 0.3
"""Machine epsilon over tau. bfloat16 at 0.07 (0.11) did no harm in any measured run."""


@rule("half-precision input")
def half_precision_input(reading: Reading) -> Answer | None:
    """The embeddings carry two or three digits."""
    if not reading.input_half:
        return None
    error = reading.input_resolution / reading.tau
    return Answer(
        severity="warning" if error > LOGIT_ROUNDING else "info",
        evidence=f"{reading.input_dtype}: rounding of a logit up to epsilon / tau = {error:.3f} "
        f"(threshold {LOGIT_ROUNDING:g})",
        advice="Compute the embeddings' last layer and the loss in float32 (disable autocast "
        "around them)."
        if error > LOGIT_ROUNDING
        else "Nothing to do at this temperature.",
    )


STILL = 2.5
"""Movement since the first reading over sampling noise: 1 in expectation when nothing moves (0.2 to
2.2). It grows with the batch: healthy 3.2 to 6 from step 100 on with 64 pairs, 4 to 460 above."""


MOMENTUM_STILL = 2.0
MOMENTUM_STILL_STEPS = 1000
"""A momentum encoder is given so many steps to follow, and needs to move less: at 0.999 it was
measured at 1.5 to 2.7 after 300 steps."""


@rule(
    "encoder does not move",
    explains=(
        SYMPTOMS,
        "one dimension dominates",
        "task solved",
        "misaligned pairs",
        "false negatives",
    ),
)
def encoder_does_not_move(reading: Reading) -> Answer | None:
    """The embeddings have never left the distribution of the first reading.

    A remark where the run began with a trained encoder.
    """
    course, step = reading.course, reading.step
    if course is None or step is None or step < EARLY_STEPS:
        return None
    still = {side: moved for side, moved in course.movement.items() if moved < STILL}
    slow = reading.queue_length is not None and still.get("keys", 0.0) >= MOMENTUM_STILL
    if slow or (reading.queue_length is not None and step < MOMENTUM_STILL_STEPS):
        still.pop("keys", None)
    all_still = len(still) == len(course.movement)
    one_encoder = reading.first_tower is None and reading.queue_length is None
    if not still or (one_encoder and not all_still):
        return None
    sides = ", ".join(f"{side} {moved:.1f}" for side, moved in still.items())
    if all_still:
        advice = (
            "Nothing learns: check that the learning rate is above 0 (a long warm-up passes by "
            "itself), that the optimiser holds this model's parameters, and that no detach, "
            "no_grad or eval mode cuts the graph."
        )
    elif reading.queue_length is not None:
        advice = (
            "The key encoder is not updated: call the momentum update every step, with a momentum "
            "below 1 (0.99 ... 0.999)."
        )
    else:
        advice = (
            "One tower does not learn: check requires_grad, detach and its parameters in the "
            "optimiser. If you froze it on purpose (locked-image tuning), ignore this."
        )
    trained = (course.found_at_first or 0.0) >= TRAINED
    if trained:
        advice = f"The run began with a trained encoder, so this may be right. {advice}"
    one_tower = reading.first_tower is not None and not all_still  # often frozen on purpose
    return Answer(
        severity="info" if trained or one_tower else "warning",
        evidence="largest change of the embeddings since the first reading, in units of sampling "
        f"noise: {sides} < {STILL:g} (1 = no change at all)",
        advice=advice,
    )


REPETITION = 0.5
"""Likeness of row i to row i of the reading before: healthy at most 0.17, same batch 0.77."""


@rule("same batch repeated", explains=(SYMPTOMS, "task solved"))
def same_batch_repeated(reading: Reading) -> Answer | None:
    """Row i of this batch is the same sample as row i of the reading before."""
    repetition = None if reading.course is None else reading.course.repetition
    if repetition is None or repetition <= REPETITION:
        return None
    return Answer(
        severity="warning",
        evidence=f"row i resembles row i of the reading before: mean cosine {repetition:.2f} > "
        f"{REPETITION} above that of unrelated rows",
        advice="The loader yields the same samples again: check shuffle=True, the sampler's "
        "set_epoch, a seed that is reset in every epoch, and a batch kept for debugging.",
    )


COPY_SIMILARITY = 0.999
"""Positives above this mean cosine are copies: augmentation and dropout leave far more."""


@rule("identical views", explains=("task solved",))
def identical_views(reading: Reading) -> Answer | None:
    """The two views of a sample are copies."""
    similarity = reading.positive_similarity
    if similarity <= COPY_SIMILARITY or reading.sigma_hat > COLLAPSED_SIGMA:
        return None
    return Answer(
        severity="warning",
        evidence=f"mean positive similarity {similarity:.5f} > {COPY_SIMILARITY} although "
        f"the samples are spread (sigma-hat {reading.sigma_hat:.3f})",
        advice="Both views are the same input: check that augmentation is on and drawn separately "
        "for each view. Text: check that dropout is on (model.train()).",
    )


MISPLACED_SHARE = 0.03
"""Mean of the last readings: 10 % wrong pairs 0.05, 30 % 0.15."""


MISPLACED_RATIO = 0.3
"""Misplaced positives over those between the nearest tenth and the middle, without wrong pairs:
hard positives thin out, healthy at most 0.3, batches of neighbours 0.4. A share w of wrong pairs
ranks at random: misplaced = 0.5 w + hard, between = 0.4 w + hard / 0.3. Three standard errors are
left for chance: small batches hold few pairs."""


@rule("misaligned pairs", untrained=True, explains=(SYMPTOMS,))
def misaligned_pairs(reading: Reading) -> Answer | None:
    """Some positives belong to other samples."""
    both = (
        reading.first_tower is None and reading.queue_length is None
    )  # views of a sample are anchors
    pairs = reading.anchors // 2 if both else reading.anchors
    placed = Placed(reading.misplaced_share, reading.found_share, pairs)
    if reading.course is not None:
        if reading.course.placed is None:
            return None
        placed = reading.course.placed
    share, found, pairs = placed
    ratio = MISPLACED_RATIO
    hard = ratio * (1 - found - share)  # as many may rank low without a fault
    error = math.sqrt((share + ratio * hard) / pairs)
    if found < FOUND_SOME or share <= max(MISPLACED_SHARE, hard + 3 * error):
        return None
    wrong = (share - hard) / (0.5 - 0.4 * ratio)
    return Answer(
        severity="warning",
        evidence=f"{share:.1%} of positives are less similar than half of the anchor's negatives, "
        f"although {found:.0%} are among the nearest tenth; {hard:.1%} could be hard pairs",
        advice=f"About {min(1.0, wrong):.0%} of the pairs are wrong. Check the join of the two "
        "columns, shuffling of one side only, off-by-one files, and captions of other pictures.",
    )


REPEATED_ID_SHARE = 0.05
"""Rows whose sample id is in the batch more than once."""


@rule("repeated ids")
def repeated_ids(reading: Reading) -> Answer | None:
    """A sample is in the batch more than once, and its copies are negatives of each other."""
    share = reading.repeated_id_share
    if share is None or share <= REPEATED_ID_SHARE:
        return None
    return Answer(
        severity="warning",
        evidence=f"{share:.1%} > {REPEATED_ID_SHARE:.0%} of rows have another row with the "
        "same id in the batch",
        advice="They are pushed apart although they belong together: keep one per id in a batch "
        "(groups= of the sampler), or treat them as positives.",
    )


LOOK_ALIKE_RATE = 0.1
"""Anchors with a negative as similar as the mean positive. Alone it means nothing: the healthy
median is 77 %."""


LOOK_ALIKE_ISOLATION = 0.5
"""A tail of hard negatives thins out: few of those near the positives reach them (at most 0.48 in
healthy runs). Duplicates lie among the positives."""


RESOLVED_HARDER_SHARE = 0.05
"""Above this share of negatives beyond the positive, the run has not yet told samples apart and
look-alikes mean nothing."""


COPIED_SHARE = 0.05
"""Rows with an exact copy among their negatives: healthy 0, blank inputs 0.18."""


@rule("false negatives", untrained=True)
def false_negatives(reading: Reading) -> Answer | None:
    """Some negatives are further views of the anchor's own sample."""
    sigma = reading.sigma_hat
    if reading.copied_share > COPIED_SHARE and sigma <= COLLAPSED_SIGMA:
        return Answer(
            severity="warning",
            evidence=f"{reading.copied_share:.1%} > {COPIED_SHARE:.0%} of rows have an "
            "exact copy (cosine > 0.9999) among their negatives",
            advice="The same input is in the batch twice: look for blank or corrupt files, "
            "duplicates in the data set, and a sampler that draws with replacement.",
        )
    if (
        reading.harder_share > RESOLVED_HARDER_SHARE
        or reading.near_duplicate_rate < LOOK_ALIKE_RATE
        or reading.near_duplicate_isolation < LOOK_ALIKE_ISOLATION
    ):
        return None
    return Answer(
        severity="warning",
        evidence=f"{reading.near_duplicate_rate:.0%} of anchors have a negative as similar as a "
        f"positive, and these stand apart from other hard negatives "
        f"({reading.near_duplicate_isolation:.0%} >= {LOOK_ALIKE_ISOLATION:.0%})",
        advice="Remove duplicates from the data set, keep repeats of a sample out of one batch "
        "(groups= of the sampler), or treat them as positives.",
    )


@rule("queue not full", untrained=True)
def queue_not_full(reading: Reading) -> Answer | None:
    """Some slots of the queue hold no key yet."""
    fill = reading.queue_fill
    if fill is None or fill >= 1:
        return None
    return Answer(
        severity="warning",
        evidence=f"queue fill {fill:.1%} < 100%",
        advice="Empty slots are random directions that any anchor beats. It passes once the queue "
        "is full; fill the queue before the first step, or pass only the filled part.",
    )


@rule(
    "queue unlike keys",
    explains=(SYMPTOMS, "task solved", "one dimension dominates"),
)
def queue_unlike_keys(reading: Reading) -> Answer | None:
    """The queue's keys are not distributed like the keys of this batch."""
    likeness, length = reading.queue_likeness, reading.queue_length
    if likeness is None or length is None or likeness >= QUEUE_LIKENESS or reading.anchors < 32:
        return None
    if reading.queue_fill is not None and reading.queue_fill < 1:
        return None  # another finding names the reason
    turnover = 2 * length / reading.anchors  # steps until every slot was replaced twice
    if reading.step is not None and reading.step < max(turnover, EARLY_STEPS):
        return None
    return Answer(
        severity="warning",
        evidence=f"cosine of the second moments of queue and current keys {likeness:.2f} < "
        f"{QUEUE_LIKENESS}",
        advice="Check that every step replaces the oldest keys by the new ones (dequeue and "
        "enqueue), that stored keys are normalised, and that the key encoder moves slowly "
        "(momentum 0.99 ... 0.999): old keys must come from nearly the same encoder. "
        "If these are hard negatives and no queue: they are other kinds of samples than positives.",
    )


SELF_NEGATIVE_RATE = 0.5
"""Anchors with an older key of their own sample in the queue: up to 0.42 at the border of epochs,
where it does no harm; all of them when the queue is longer than the data."""


@rule("self-negatives")
def self_negatives(reading: Reading) -> Answer | None:
    """The queue still holds older keys of the anchors' own samples."""
    rate = reading.self_negative_rate
    if rate is None or rate <= SELF_NEGATIVE_RATE:
        return None
    return Answer(
        severity="warning",
        evidence=f"{rate:.1%} > {SELF_NEGATIVE_RATE:.0%} of anchors have a key of their own "
        "sample in the queue",
        advice="The queue holds about as many keys as the data set has samples: make it shorter "
        "than half an epoch, or mask keys with the anchor's sample id.",
    )


LOW_TAU = 0.03
"""Only below this temperature are few effective negatives a fault: at 0.05, the default of sentence
losses, healthy runs have 1.7 to 2.9."""


FEW_EFFECTIVE = 3.0
"""Mean effective negatives below this: an anchor is pushed by one or two others only."""


FOUND_SHARE = 0.5
"""Once most positives rank among the top tenth, the run tells samples apart."""


@rule(
    "temperature too low",
    explains=(SYMPTOMS, "task solved", "false negatives"),
)
def temperature_too_low(reading: Reading) -> Answer | None:
    """Each anchor is pushed by one or two negatives, or the embeddings have fled into a cone."""
    if reading.tau >= LOW_TAU or reading.negatives < FEW_NEGATIVES:
        return None
    few = reading.effective_negatives < FEW_EFFECTIVE
    told_apart = reading.found_share >= FOUND_SHARE
    cone = reading.mean_sqnorm > COMMON_SQNORM and told_apart
    if not few and not cone:
        return None
    evidence = f"tau = {reading.tau:g} < {LOW_TAU:g}; "
    if few:
        evidence += (
            f"effective negatives {reading.effective_negatives:.2f} < {FEW_EFFECTIVE:g} "
            f"of {reading.negatives}"
        )
    else:
        evidence += (
            f"the embeddings lie in a narrow cone (squared mean {reading.mean_sqnorm:.2f} > "
            f"{COMMON_SQNORM})"
        )
    return Answer(
        severity="warning",
        evidence=evidence,
        advice="Raise tau to 0.05 ... 0.2. A learned scale: clamp it (scale = 1 / tau at most 30 "
        "for batches up to a few thousand) and give it a lower learning rate.",
    )


UNIFORM_SHARE = 0.7
"""Effective negatives above this share of N-: the softmax hardly prefers any (healthy at most 0.62,
tau = 1 or 2 from 0.74)."""


LEAD = 1.1
"""1 / tau, the lead of a perfect positive's logit over that of an orthogonal negative. Below log 3
a negative at a right angle keeps more than a third of the positive's weight, whatever the encoder
does and however many there are (tau above 0.91; 0.5 is in use)."""


@rule("temperature too high", explains=(SYMPTOMS, "false negatives"))
def temperature_too_high(reading: Reading) -> Answer | None:
    """The softmax is nearly uniform and would stay so for perfect embeddings."""
    share = reading.effective_negatives / reading.negatives
    lead = 1 / reading.tau
    if share <= UNIFORM_SHARE or lead >= LEAD:
        return None
    return Answer(
        severity="warning",
        evidence=f"tau = {reading.tau:g}: the logit of a perfect positive is only 1 / tau = "
        f"{lead:.2f} < {LEAD:g} above that of an unrelated negative; effective negatives "
        f"{share:.0%} > {UNIFORM_SHARE:.0%} of N-",
        advice="Lower tau to 0.05 ... 0.5. If your loss multiplies the similarities by a scale, "
        "tau is 1 / scale: check that logits are divided by tau, not multiplied.",
    )


_NEED_NEGATIVES = ("one dimension dominates", "misaligned pairs", "false negatives")


@rule("few negatives", explains=(SYMPTOMS, *_NEED_NEGATIVES))
def few_negatives(reading: Reading) -> Answer | None:
    """Too few negatives to learn from."""
    count = reading.negatives
    if count >= FEW_NEGATIVES:
        return None
    return Answer(
        severity="warning",
        evidence=f"{count} negatives per anchor < {FEW_NEGATIVES}",
        advice="Enlarge the batch, gather embeddings across devices, or use a queue (MoCo) or "
        "gradient caching. Accumulating gradients over micro-batches adds no negatives.",
    )


NO_NEGATIVE_ENTRIES = 0.001
"""Share of negative entries: healthy 0.42 to 0.52, after a ReLU 0."""


@rule("ReLU at the end", explains=("one dimension dominates",))
def relu_at_the_end(reading: Reading) -> Answer | None:
    """No entry of any embedding is negative."""
    share = reading.negative_entries
    if share > NO_NEGATIVE_ENTRIES:
        return None
    return Answer(
        severity="warning",
        evidence=f"{share:.2%} of the entries are negative (centred embeddings: about 50%)",
        advice="End the projection head with a linear layer: remove the last ReLU (or sigmoid, "
        "softmax). Non-negative embeddings use only a corner of the sphere.",
    )


DOMINANCE = 6.0
"""d max E[z_k^2]: healthy at most 3.8, one dominating coordinate 12 to 20. More is needed where the
leading direction is strong, see `random_dominance`."""


@rule("one dimension dominates", untrained=True)
def one_dimension_dominates(reading: Reading) -> Answer | None:
    """A single coordinate holds much of every embedding."""
    dimension, first = reading.dimension, reading.first_tower
    sigma = reading.sigma_hat if first is None else max(reading.sigma_hat, first.sigma_hat)
    by_chance = random_dominance(dimension, sigma)
    least = max(DOMINANCE, by_chance)
    if reading.axis_dominance <= least:
        return None
    share = reading.axis_dominance / dimension
    return Answer(
        severity="warning",
        evidence=f"one of {dimension} coordinates holds {share:.0%} of the squared length, "
        f"{reading.axis_dominance:.1f} > {least:.1f} times its equal share",
        advice="Standardise the input features and put BatchNorm or LayerNorm before the last "
        "linear layer: one unscaled feature or weight drives the similarity.",
    )


SOLVED_FAST = 110
"""Two towers that solve the task by this step found a shortcut (1.0 from step 25 on). Healthy ones
take 150 steps and more: word bags on translations at 2e-3, a high rate, 0.81 of anchors at step 57
and 0.94 at step 113."""


SOLVED_LASTING = 3
"""The same for "task solved"."""


@rule("task solved", lasting=SOLVED_LASTING)
def task_solved(reading: Reading) -> Answer | None:
    """Every positive beats all negatives: nothing is left to learn, or it was too easy.

    Only in a run: embeddings of a trained model are expected to be solved. Two towers on good data
    solve random batches within some hundred steps; they are warned about if it took fewer, lasted
    ever since, and the first reading found few positives: a pretrained model, or one text with two
    dropouts, is solved from the start.
    """
    course, count = reading.course, reading.negatives
    early = reading.step is not None and reading.step < EARLY_STEPS
    if course is None or early or not is_solved(reading):
        return None
    fast = course.solved_since is not None and course.solved_since <= SOLVED_FAST
    trained = (course.found_at_first or 0.0) >= TRAINED
    if reading.first_tower is not None and (trained or not fast):
        return None  # easy_batches says what to do
    return Answer(
        severity="warning",
        evidence=f"the positive beats all {count} negatives for "
        f"{reading.solved_share:.1%} of anchors (threshold {SOLVED_SHARE:.0%} for "
        f"{SOLVED_NEGATIVES} negatives or more); loss {reading.loss:.3f} of "
        f"{reading.chance_loss:.2f} at chance",
        advice="The encoder can tell samples apart too easily. Look at a few pairs: do both views "
        "share a mark, border, file artefact or length that survives augmentation (a shortcut)? "
        "Is the augmentation weak? Is the batch always the same? If none of these and the probes "
        "are good, the run has learnt what this task can teach.",
    )


@rule("easy batches", remark=True)
def easy_batches(reading: Reading) -> Answer | None:
    """Random batches are easy, and harder ones would give larger gradients. A remark only."""
    early = reading.step is not None and reading.step < EARLY_STEPS
    if early or not selection_pays(reading):
        return None
    return Answer(
        severity="info",
        evidence=selection_outlook(reading),
        advice="Select hard batches: SpectralBatchSampler(cache, batch_size, Neighbours()) or "
        "Auto(tau). First read a batch of held-out pairs: if it is hard, these are memorised, and "
        "hard batches lose. If positives are not meant to be this easy, look for a shortcut that "
        "both sides of a pair share.",
    )


CHANCE_SHARE = 0.85
"""Loss over log(N- + 1). Healthy runs stay below 0.81, a frozen tower at 0.86, no learning 0.9."""


FALLING_SHARE = 0.02
"""A loss whose mean over the last four readings is this share of chance below that of the four
before is falling: a single loss varies by 0.01 to 0.015, hence this difference by less than 0.01.
A momentum encoder of 0.999 falls by 0.04."""


@rule("stuck at chance", untrained=True, symptom=True)
def stuck_at_chance(reading: Reading) -> Answer | None:
    """The loss is hardly better than guessing."""
    if reading.loss < CHANCE_SHARE * reading.chance_loss:
        return None
    drop = None if reading.course is None else reading.course.loss_drop
    if drop is not None and drop > FALLING_SHARE * reading.chance_loss:
        return None
    return Answer(
        severity="warning",
        evidence=f"loss {reading.loss:.3f} >= {CHANCE_SHARE:.0%} of chance "
        f"log({reading.negatives} + 1) = {reading.chance_loss:.3f}"
        + ("" if drop is None else ", and not falling"),
        advice="Check in this order: row i of both views is the same sample; gradients reach every "
        "encoder (no detach, no frozen tower, learning rate above 0); the learning rate is neither "
        "far too low nor far too high; tau is not above 0.5.",
    )


RANK = 5.0
RANK_SHARE = 0.25
"""Centred entropy rank below the smaller of 5 and 25 % of the attainable. Healthy embeddings use 7
to 25 directions whatever their dimension is (lowest single reading 4.9); collapsed ones 1 to 4."""


COLLAPSE_LASTING = 4
"""The same for "dimensional collapse": batches of neighbours lie in few directions too, now these
and then others, while a collapsed encoder has a low rank in every batch."""


@rule(
    "dimensional collapse",
    untrained=True,
    symptom=True,
    lasting=COLLAPSE_LASTING,
    explains=("false negatives", "one dimension dominates"),
)
def dimensional_collapse(cloud: Cloud) -> Answer | None:
    """The embeddings vary, but only in a few directions."""
    least = min(RANK, RANK_SHARE * cloud.attainable_centred_rank)
    if cloud.centred_entropy_rank >= least:
        return None
    return Answer(
        severity="warning",
        evidence=f"centred entropy rank {cloud.centred_entropy_rank:.1f} < {least:.1f}: the "
        f"embeddings vary in about {max(1, round(cloud.centred_entropy_rank))} of "
        f"{cloud.dimension} directions",
        advice="Look for a bottleneck (a narrow layer, a rank-limited head), a learning rate or "
        "weight decay that is far too high, and inputs that hardly differ. Rank that was lost "
        "during the run does not come back: restart from an earlier checkpoint.",
    )


@rule("mean-dominated", remark=True)
def mean_dominated(cloud: Cloud) -> Answer | None:
    """Most of every embedding is a vector they all share. A remark only."""
    if cloud.mean_sqnorm <= COMMON_SQNORM:
        return None
    return Answer(
        severity="info",
        evidence=f"squared norm of the mean {cloud.mean_sqnorm:.3f} > {COMMON_SQNORM}: "
        "most of every embedding is one shared vector",
        advice="Untrained encoders are like this; small batches, batches of similar samples and a "
        "low tau keep it for longer. Harmless while the loss falls. To compare embeddings, "
        "subtract their mean first.",
    )


MODALITY_GAP = 0.5
"""Squared distance of the towers' means. Common in well trained models too: a remark only."""


@rule("modality gap", remark=True)
def modality_gap(reading: Reading) -> Answer | None:
    """The two towers occupy different regions. A remark: well trained models have it too."""
    gap = reading.modality_gap
    if gap is None or gap <= MODALITY_GAP:
        return None
    return Answer(
        severity="info",
        evidence=f"squared distance of the towers' means {gap:.2f} > {MODALITY_GAP}",
        advice="Harmless for retrieval within one direction. For scores compared across towers, "
        "centre each tower's embeddings, or raise tau: a low tau keeps the gap open.",
    )


SATURATED_ALIGNMENT = 0.98
"""Paper: mean alignment above this is flagged; the floor (1 - rho)^2 / tau^2 is then gone."""


@rule("alignment saturated", remark=True)
def alignment_saturated(reading: Reading) -> Answer | None:
    """The softmax mean and the positive coincide: little force is left. A remark only."""
    if reading.alignment <= SATURATED_ALIGNMENT:
        return None
    solved = reading.miss < reading.gradient_geometry
    return Answer(
        severity="info",
        evidence=f"alignment {reading.alignment:.4f} > {SATURATED_ALIGNMENT} "
        f"(miss {reading.miss:.4f}, geometry {reading.gradient_geometry:.4f})",
        advice="The positives are nearly solved, so gradients are small; expected late in a run."
        if solved
        else "The weighted negatives lie where the positive lies, so gradients are small: see the "
        "other findings for a collapse.",
    )


def _loss_agrees(reading: Reading) -> bool:
    """Whether the user's own loss proves that it normalises: rows near 1 differ by little."""
    loss, closest = reading.your_loss, reading.closest_loss
    return loss is not None and closest is not None and abs(loss - closest) <= LOSS_ROUNDING


def selection_pays(reading: Reading) -> bool:
    """Whether negatives of a batch could be so much harder that gradients grow."""
    if reading.queue_length is not None:
        return False
    small = reading.miss <= EASY_MISS
    if small and reading.hard_force_ratio >= HARDER_FORCE:
        return True
    blunt = reading.solved_share >= EASY_SHARE and not small
    return blunt and reading.hard_force_ratio >= LARGER_FORCE


def selection_outlook(reading: Reading) -> str:
    """One sentence: would it pay to select which samples share a batch?"""
    miss, ratio = reading.miss, reading.hard_force_ratio
    if reading.queue_length is not None and reading.queue_length >= LONG_QUEUE * reading.anchors:
        return "Most negatives come from the queue: batch composition matters little here."
    if reading.queue_length is not None:
        return f"Miss {miss:.2f}, with a short queue or hard negatives: selection is not judged."
    if selection_pays(reading) and miss > EASY_MISS:
        return (
            f"Miss {miss:.2f}, yet {reading.solved_share:.0%} of positives beat all "
            "negatives: random batches are easy; batches of neighbours would raise the force about "
            f"{ratio:.1f}x."
        )
    if selection_pays(reading):
        return (
            f"Miss {miss:.3f}: random batches are easy; batches of neighbours would have a miss of "
            f"about {reading.hard_miss:.2f} and raise the force about {ratio:.0f}x."
        )
    if miss > EASY_MISS:
        little = "matters little here" if miss > HARD_MISS else "may matter little here"
        return f"Miss {miss:.2f}: batches are hard already, their composition {little}."
    return (
        f"Miss {miss:.3f}: neighbours would raise the force only {ratio:.1f}x, too little to pay."
    )


def is_solved(reading: Reading) -> bool:
    """Whether nearly all positives beat every negative.

    Beating fewer negatives is easier: the share is raised to the power of the missing ones.
    """
    count = reading.negatives
    share: float = reading.solved_share ** max(1.0, SOLVED_NEGATIVES / max(count, 1))
    return count >= FEW_NEGATIVES and share > SOLVED_SHARE
