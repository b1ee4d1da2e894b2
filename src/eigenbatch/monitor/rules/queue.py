"""Findings about MoCo's queue."""

from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.monitor import thresholds as limit
from eigenbatch.monitor.rule import SYMPTOMS, Answer, ReadingRule

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading


@partial(ReadingRule, "self-negatives", place=140)
def self_negatives(reading: "Reading") -> Answer | None:
    """The queue still holds older keys of the anchors' own samples."""
    rate = None if reading.queue is None else reading.queue.self_negative_rate
    if rate is None or rate <= limit.SELF_NEGATIVE_RATE:
        return None
    return Answer(
        severity="warning",
        evidence=f"{rate:.1%} > {limit.SELF_NEGATIVE_RATE:.0%} of anchors have a key of their own "
        "sample in the queue",
        advice="The queue holds about as many keys as the data set has samples: make it shorter "
        "than half an epoch, or mask keys with the anchor's sample id.",
    )


@partial(ReadingRule, "queue not full", place=120, untrained=True)
def queue_not_full(reading: "Reading") -> Answer | None:
    """Some slots of the queue hold no key yet."""
    fill = None if reading.queue is None else reading.queue.fill
    if fill is None or fill >= 1:
        return None
    return Answer(
        severity="warning",
        evidence=f"queue fill {fill:.1%} < 100%",
        advice="Empty slots are random directions that any anchor beats. It passes once the queue "
        "is full; fill the queue before the first step, or pass only the filled part.",
    )


@partial(
    ReadingRule,
    "queue unlike keys",
    place=130,
    explains=(SYMPTOMS, "task solved", "one dimension dominates"),
)
def queue_unlike_keys(reading: "Reading") -> Answer | None:
    """The queue's keys are not distributed like the keys of this batch."""
    queue = reading.queue
    if queue is None or queue.likeness >= limit.QUEUE_LIKENESS or reading.anchors < 32:
        return None
    if queue.fill is not None and queue.fill < 1:
        return None  # another finding names the reason
    turnover = 2 * queue.length / reading.anchors  # steps until every slot was replaced twice
    if reading.step is not None and reading.step < max(turnover, limit.EARLY_STEPS):
        return None
    return Answer(
        severity="warning",
        evidence=f"cosine of the second moments of queue and current keys {queue.likeness:.2f} < "
        f"{limit.QUEUE_LIKENESS}",
        advice="Check that every step replaces the oldest keys by the new ones (dequeue and "
        "enqueue), that stored keys are normalised, and that the key encoder moves slowly "
        "(momentum 0.99 ... 0.999): old keys must come from nearly the same encoder. "
        "If these are hard negatives and no queue: they are other kinds of samples than positives.",
    )
