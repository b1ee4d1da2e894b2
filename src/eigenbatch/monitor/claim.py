"""The user's loss against the measured one, and which common mistake explains a difference."""

from collections.abc import Iterator

import torch

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import InfoNCE, infonce
from eigenbatch.core.precision import accumulated
from eigenbatch.core.reference_loss import unmasked_loss
from eigenbatch.monitor.parts import Claim, Towers
from eigenbatch.monitor.ranks import Ranks

SAME = 0.002
"""Difference in nats below which two losses are the same: bfloat16 rounds by 0.001."""

CLOSER = 10
"""A mistake explains a loss if its value is so many times closer than the right one. Near chance
all of them nearly agree, and only this tells them apart."""


def check_claim(
    loss: float,
    contrast: Contrast,
    values: InfoNCE,
    measured: float,
    towers: Towers | None,
    ranks: Ranks,
) -> Claim:
    """Compare the user's loss, averaged over processes, with all losses the layout allows."""
    told, processes = ranks.sum(torch.tensor([loss, 1.0], dtype=torch.float64)).tolist()
    loss = told / processes
    allowed = [measured]
    if towers is not None:
        allowed += [towers.backward_loss, towers.symmetric_loss]
    closest = min(allowed, key=lambda one: abs(one - loss))
    difference, explanation = abs(closest - loss), ""
    if difference > SAME:
        near = min(difference / CLOSER, SAME * max(1.0, abs(loss)))
        mistakes = _mistakes(contrast, values, allowed, ranks)
        explanation = next((text for text, value in mistakes if abs(value - loss) <= near), "")
    return Claim(loss=loss, measured=closest, explanation=explanation)


def _mistakes(
    contrast: Contrast, values: InfoNCE, allowed: list[float], ranks: Ranks
) -> Iterator[tuple[str, float]]:
    """What each common mistake would make of the loss, cheap ones first."""
    for one in allowed:
        yield (
            "the sum over anchors: use the mean, or the learning rate grows with the batch",
            (one * len(contrast.anchors)),
        )
        yield "twice InfoNCE (two directions added up): take their mean", 2 * one
    tau = values.tau
    if contrast.itself is not None:
        positive = (contrast.anchors * values.positives).sum(1)
        unmasked = unmasked_loss(values.log_odds, positive, tau)
        yield (
            "the one without self-mask: fill the diagonal of the logits with -inf",
            _mean(unmasked, ranks),
        )
    for other, text in (
        (1 / tau, "the one with logits multiplied by tau: divide by tau"),
        (1.0, "the one at tau = 1: the loss does not use the temperature"),
        (2 * tau, f"the one at tau = {2 * tau:g}: monitor and loss have different temperatures"),
        (tau / 2, f"the one at tau = {tau / 2:g}: monitor and loss have different temperatures"),
    ):
        yield text, _mean(infonce(contrast, other).loss, ranks)
    if contrast.itself is not None and contrast.anchors is contrast.keys:
        first, second = contrast.anchors.chunk(2)
        cross = Contrast(
            anchors=first, keys=second, positive=torch.arange(len(first), device=first.device)
        )
        text = 'InfoNCE between the two views only: call the monitor with layout="cross"'
        yield text, _mean(infonce(cross, tau).loss, ranks)


def _mean(losses: torch.Tensor, ranks: Ranks) -> float:
    local = torch.stack([accumulated(losses).sum(), accumulated(losses).new_tensor(len(losses))])
    total, count = ranks.sum(local).tolist()
    return float(total / count)
