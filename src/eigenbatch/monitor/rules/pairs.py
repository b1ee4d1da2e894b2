"""Findings about positives and negatives."""

import math
from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.parts import Placed
from eigenbatch.monitor.rule import SYMPTOMS, Answer, ReadingRule

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


@partial(ReadingRule, "identical views", place=80, explains=("task solved",))
def identical_views(reading: "Reading") -> Answer | None:
    """The two views of a sample are copies."""
    similarity = reading.softmax.positive_similarity
    if similarity <= limit.COPY_SIMILARITY or reading.cloud.sigma_hat > limit.COLLAPSED_SIGMA:
        return None
    return Answer(
        severity="warning",
        evidence=f"mean positive similarity {similarity:.5f} > {limit.COPY_SIMILARITY} although "
        f"the samples are spread (sigma-hat {reading.cloud.sigma_hat:.3f})",
        advice="Both views are the same input: check that augmentation is on and drawn separately "
        "for each view. Text: check that dropout is on (model.train()).",
    )


@partial(ReadingRule, "task solved", place=200, lasting=limit.SOLVED_LASTING)
def task_solved(reading: "Reading") -> Answer | None:
    """Every positive beats all negatives: nothing is left to learn, or it was too easy.

    Only in a run: embeddings of a trained model are expected to be solved. Two towers on good data
    solve random batches within some hundred steps; they are warned about if it took fewer, lasted
    ever since, and the first reading found few positives: a pretrained model, or one text with two
    dropouts, is solved from the start.
    """
    course, count = reading.course, reading.softmax.negatives
    early = reading.step is not None and reading.step < limit.EARLY_STEPS
    if course is None or early or not reading.negatives.is_solved(count):
        return None
    fast = course.solved_since is not None and course.solved_since <= limit.SOLVED_FAST
    trained = (course.found_at_first or 0.0) >= limit.TRAINED
    if reading.towers is not None and (trained or not fast):
        return None  # easy_batches says what to do
    return Answer(
        severity="warning",
        evidence=f"the positive beats all {count} negatives for "
        f"{reading.negatives.solved_share:.1%} of anchors (threshold {limit.SOLVED_SHARE:.0%} for "
        f"{limit.SOLVED_NEGATIVES} negatives or more); loss {reading.softmax.loss:.3f} of "
        f"{reading.softmax.chance_loss:.2f} at chance",
        advice="The encoder can tell samples apart too easily. Look at a few pairs: do both views "
        "share a mark, border, file artefact or length that survives augmentation (a shortcut)? "
        "Is the augmentation weak? Is the batch always the same? If none of these and the probes "
        "are good, the run has learnt what this task can teach.",
    )


@partial(ReadingRule, "easy batches", place=210, remark=True)
def easy_batches(reading: "Reading") -> Answer | None:
    """Random batches are easy, and harder ones would give larger gradients. A remark only."""
    early = reading.step is not None and reading.step < limit.EARLY_STEPS
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


def selection_pays(reading: "Reading") -> bool:
    """Whether negatives of a batch could be so much harder that gradients grow."""
    if reading.queue is not None:
        return False
    negatives = reading.negatives
    small = reading.softmax.miss <= limit.EASY_MISS
    if small and negatives.hard_force_ratio >= limit.HARDER_FORCE:
        return True
    blunt = negatives.solved_share >= limit.EASY_SHARE and not small
    return blunt and negatives.hard_force_ratio >= limit.LARGER_FORCE


def selection_outlook(reading: "Reading") -> str:
    """One sentence: would it pay to select which samples share a batch?"""
    miss, ratio = reading.softmax.miss, reading.negatives.hard_force_ratio
    if reading.queue is not None and reading.queue.length >= limit.LONG_QUEUE * reading.anchors:
        return "Most negatives come from the queue: batch composition matters little here."
    if reading.queue is not None:
        return f"Miss {miss:.2f}, with a short queue or hard negatives: selection is not judged."
    if selection_pays(reading) and miss > limit.EASY_MISS:
        return (
            f"Miss {miss:.2f}, yet {reading.negatives.solved_share:.0%} of positives beat all "
            "negatives: random batches are easy; batches of neighbours would raise the force about "
            f"{ratio:.1f}x."
        )
    if selection_pays(reading):
        return (
            f"Miss {miss:.3f}: random batches are easy; batches of neighbours would have a miss of "
            f"about {reading.negatives.hard_miss:.2f} and raise the force about {ratio:.0f}x."
        )
    if miss > limit.EASY_MISS:
        little = "matters little here" if miss > limit.HARD_MISS else "may matter little here"
        return f"Miss {miss:.2f}: batches are hard already, their composition {little}."
    return (
        f"Miss {miss:.3f}: neighbours would raise the force only {ratio:.1f}x, too little to pay."
    )


@partial(ReadingRule, "misaligned pairs", place=90, untrained=True, explains=(SYMPTOMS,))
def misaligned_pairs(reading: "Reading") -> Answer | None:
    """Some positives belong to other samples."""
    both = reading.towers is None and reading.queue is None  # views of a sample are anchors
    pairs = reading.anchors // 2 if both else reading.anchors
    placed = Placed(reading.negatives.misplaced_share, reading.negatives.found_share, pairs)
    if reading.course is not None:
        if reading.course.placed is None:
            return None
        placed = reading.course.placed
    share, found, pairs = placed
    ratio = limit.MISPLACED_RATIO
    hard = ratio * (1 - found - share)  # as many may rank low without a fault
    error = math.sqrt((share + ratio * hard) / pairs)
    if found < limit.FOUND_SOME or share <= max(limit.MISPLACED_SHARE, hard + 3 * error):
        return None
    wrong = (share - hard) / (0.5 - 0.4 * ratio)
    return Answer(
        severity="warning",
        evidence=f"{share:.1%} of positives are less similar than half of the anchor's negatives, "
        f"although {found:.0%} are among the nearest tenth; {hard:.1%} could be hard pairs",
        advice=f"About {min(1.0, wrong):.0%} of the pairs are wrong. Check the join of the two "
        "columns, shuffling of one side only, off-by-one files, and captions of other pictures.",
    )


@partial(ReadingRule, "false negatives", place=110, untrained=True)
def false_negatives(reading: "Reading") -> Answer | None:
    """Some negatives are further views of the anchor's own sample."""
    negatives, sigma = reading.negatives, reading.cloud.sigma_hat
    if negatives.copied_share > limit.COPIED_SHARE and sigma <= limit.COLLAPSED_SIGMA:
        return Answer(
            severity="warning",
            evidence=f"{negatives.copied_share:.1%} > {limit.COPIED_SHARE:.0%} of rows have an "
            "exact copy (cosine > 0.9999) among their negatives",
            advice="The same input is in the batch twice: look for blank or corrupt files, "
            "duplicates in the data set, and a sampler that draws with replacement.",
        )
    if (
        negatives.harder_share > limit.RESOLVED_HARDER_SHARE
        or negatives.near_duplicate_rate < limit.LOOK_ALIKE_RATE
        or negatives.near_duplicate_isolation < limit.LOOK_ALIKE_ISOLATION
    ):
        return None
    return Answer(
        severity="warning",
        evidence=f"{negatives.near_duplicate_rate:.0%} of anchors have a negative as similar as a "
        f"positive, and these stand apart from other hard negatives "
        f"({negatives.near_duplicate_isolation:.0%} >= {limit.LOOK_ALIKE_ISOLATION:.0%})",
        advice="Remove duplicates from the data set, keep repeats of a sample out of one batch "
        "(OnePerGroup), or treat them as positives.",
    )


@partial(ReadingRule, "repeated ids", place=100)
def repeated_ids(reading: "Reading") -> Answer | None:
    """A sample is in the batch more than once, and its copies are negatives of each other."""
    share = reading.negatives.repeated_id_share
    if share is None or share <= limit.REPEATED_ID_SHARE:
        return None
    return Answer(
        severity="warning",
        evidence=f"{share:.1%} > {limit.REPEATED_ID_SHARE:.0%} of rows have another row with the "
        "same id in the batch",
        advice="They are pushed apart although they belong together: keep one per id in a batch "
        "(OnePerGroup), or treat them as positives.",
    )
