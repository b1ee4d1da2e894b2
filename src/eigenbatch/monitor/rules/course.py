"""Findings that one batch cannot give: they compare a reading with those before."""

from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.rule import SYMPTOMS, Answer, ReadingRule

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


@partial(
    ReadingRule,
    "encoder does not move",
    place=60,
    explains=(
        SYMPTOMS,
        "one dimension dominates",
        "task solved",
        "misaligned pairs",
        "false negatives",
    ),
)
def encoder_does_not_move(reading: "Reading") -> Answer | None:
    """The embeddings have never left the distribution of the first reading.

    A remark where the run began with a trained encoder.
    """
    course, step = reading.course, reading.step
    if course is None or step is None or step < limit.EARLY_STEPS:
        return None
    still = {side: moved for side, moved in course.movement.items() if moved < limit.STILL}
    slow = reading.queue is not None and still.get("keys", 0.0) >= limit.MOMENTUM_STILL
    if slow or (reading.queue is not None and step < limit.MOMENTUM_STILL_STEPS):
        still.pop("keys", None)
    all_still = len(still) == len(course.movement)
    one_encoder = reading.towers is None and reading.queue is None
    if not still or (one_encoder and not all_still):
        return None
    sides = ", ".join(f"{side} {moved:.1f}" for side, moved in still.items())
    if all_still:
        advice = (
            "Nothing learns: check that the learning rate is above 0 (a long warm-up passes by "
            "itself), that the optimiser holds this model's parameters, and that no detach, "
            "no_grad or eval mode cuts the graph."
        )
    elif reading.queue is not None:
        advice = (
            "The key encoder is not updated: call the momentum update every step, with a momentum "
            "below 1 (0.99 ... 0.999)."
        )
    else:
        advice = (
            "One tower does not learn: check requires_grad, detach and its parameters in the "
            "optimiser. If you froze it on purpose (locked-image tuning), ignore this."
        )
    trained = (course.found_at_first or 0.0) >= limit.TRAINED
    if trained:
        advice = f"The run began with a trained encoder, so this may be right. {advice}"
    return Answer(
        severity="info" if trained else "warning",
        evidence="largest change of the embeddings since the first reading, in units of sampling "
        f"noise: {sides} < {limit.STILL:g} (1 = no change at all)",
        advice=advice,
    )


@partial(ReadingRule, "same batch repeated", place=70, explains=(SYMPTOMS, "task solved"))
def same_batch_repeated(reading: "Reading") -> Answer | None:
    """Row i of this batch is the same sample as row i of the reading before."""
    repetition = None if reading.course is None else reading.course.repetition
    if repetition is None or repetition <= limit.REPETITION:
        return None
    return Answer(
        severity="warning",
        evidence=f"row i resembles row i of the reading before: mean cosine {repetition:.2f} > "
        f"{limit.REPETITION} above that of unrelated rows",
        advice="The loader yields the same samples again: check shuffle=True, the sampler's "
        "set_epoch, a seed that is reset in every epoch, and a batch kept for debugging.",
    )
