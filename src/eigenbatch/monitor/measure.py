"""From a contrast to a reading: calls the core and puts its numbers in their places."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_type, described, real
from eigenbatch.core.bands import (
    BatchBand,
    Method,
    QueueSample,
    gradient_band,
    queue_ceiling,
    subgaussian_radius,
)
from eigenbatch.core.cloud import Axes, Cloud, axis_sums, cloud_of, compact
from eigenbatch.core.contrast import Contrast, accumulated, check_contrast
from eigenbatch.core.infonce import InfoNCE, chance_loss, infonce, unmasked_loss
from eigenbatch.core.movement import moment_cosine
from eigenbatch.core.prediction import outlook
from eigenbatch.core.spectrum import (
    Moments,
    Spectrum,
    leading_eigenvector,
    lifted,
    moments,
    smaller_gram,
    spectrum,
    spectrum_of,
)
from eigenbatch.core.sums import (
    AnchorSums,
    SimilaritySums,
    anchor_sums,
    copied_rows,
    similarity_sums,
)
from eigenbatch.errors import ArgumentTypeError, ShapeError
from eigenbatch.monitor.findings import diagnose
from eigenbatch.monitor.processes import Ranks, SingleProcess, total_moments
from eigenbatch.monitor.reading import Reading

LIKENESS_KEYS = 1024
"""Keys of a queue that are compared with those of the batch."""

CLOUD = tuple(one.name for one in fields(Cloud))

SAME = 0.002
"""Difference in nats below which two losses are the same: bfloat16 rounds by 0.001."""

CLOSER = 10
"""A mistake explains a loss if its value is so many times closer than the right one. Near chance
all of them nearly agree, and only this tells them apart."""


@torch.no_grad()
def read_batch(
    contrast: Contrast,
    tau: float | Tensor,
    *,
    method: Method = "certified",
    ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    inputs: dict[str, Any] | None = None,
    loss: float | None = None,
    ranks: Ranks | None = None,
) -> Reading:
    """Everything one batch says, without a monitor.

    The cloud is that of the keys: all rows of an NT-Xent batch, the keys of a cross batch, a random
    sample of a queue. Work is done in row blocks, memory stays linear in the batch.

    Args:
        contrast: the batch.
        tau: softmax temperature.
        method: band of the gradient, as in `gradient_band`.
        ids: (n,) sample ids of the anchors, to find repeats.
        queue_ids: (K,) sample ids of the queue; -1: an empty slot.
        inputs: `inputs_of(z1, z2)`: norms and precision before rows were normalised.
        loss: the loss of your own code, to be checked.
        ranks: the processes to sum over; None: this one.

    Returns:
        The reading; its findings are in `reading.findings`.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast
        >>> from eigenbatch.monitor import read_batch
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> [finding.name for finding in read_batch(Contrast.paired(*z), tau=0.2).findings]
        ['stuck at chance']
    """
    check_contrast(contrast)
    check_choice(method, get_args(Method), "method")
    check_type(inputs, (dict, type(None)), "inputs")
    if loss is not None:
        real(loss, "loss")
    if ranks is not None and not hasattr(ranks, "concatenated"):
        raise ArgumentTypeError(f"ranks must be Ranks or None, got {described(ranks)}")
    check_ids(contrast, ids, queue_ids)
    reading = measured(
        contrast, tau, method=method, ids=ids, queue_ids=queue_ids, loss=loss, ranks=ranks
    )
    reading = replace(reading, **(inputs or {}))
    return replace(reading, findings=diagnose(reading))


@torch.no_grad()
def measured(
    contrast: Contrast,
    tau: float | Tensor,
    *,
    method: Method,
    ids: Tensor | None,
    queue_ids: Tensor | None,
    loss: float | None,
    ranks: Ranks | None,
) -> Reading:
    """The reading without its findings."""
    values = infonce(contrast, tau)
    found = _Cloudy.of(contrast, ranks)
    ranks = ranks or SingleProcess()
    local = anchor_sums(contrast, values, eigenpairs=found.eigenpairs)
    sums = AnchorSums.from_vector(ranks.sum(local.vector()))
    views = contrast.itself is not None  # the rows hold two views of every sample
    cloud = cloud_of(
        found.facts,
        found.spectrum,
        positive_squares=sums.squared_positive_similarity if views else None,
        gram=found.gram,
    )
    anchors, count, temperature = sums.anchors, contrast.negative_count, values.tau
    queued = is_queued(contrast)
    queue = _queue(contrast, cloud, ids, queue_ids) if queued or method == "queue" else {}
    ceiling = queue.get("queue_sigma_ceiling")
    sigma = len(contrast.candidates) / count * cloud.sigma_hat if ceiling is None else ceiling
    force = sums.squared_miss / anchors / temperature**2
    gradient = sums.squared_gradient / anchors
    certified = sums.certified
    paper = (
        _per_anchor_band(contrast, temperature, method, ranks)
        if method in ("theorem", "proxy")
        else sums.paper_band(sigma, count, temperature)
    )
    variance = sums.variance_band(sigma, count, temperature)
    mean_loss = sums.loss / anchors
    towers = _towers(contrast, values, mean_loss) if is_cross(contrast) else {}
    told = {} if loss is None else _your_loss(loss, contrast, values, mean_loss, towers, ranks)
    return Reading(
        **{name: getattr(cloud, name) for name in CLOUD},
        anchors=int(anchors),
        tau=temperature,
        loss=mean_loss,
        chance_loss=chance_loss(count),
        miss=sums.miss / anchors,
        alignment=1 - sums.shortfall / anchors,
        positive_similarity=sums.positive_similarity / anchors,
        effective_negatives=sums.effective_negatives / anchors,
        negatives=count,
        gradient=certified.measured,
        gradient_force=force,
        gradient_geometry=gradient / force if force else 0.0,
        certified_lower=certified.lower,
        certified_upper=certified.upper,
        paper_lower=paper.lower,
        paper_upper=paper.upper,
        gradient_variance=variance.measured,
        gradient_variance_bound=variance.bound,
        gradient_rolling_variance_bound=variance.bound / max(1, int(anchors)),
        method=method,
        outlook=outlook(contrast, values, found.spectrum).gathered(ranks.concatenated),
        **_axes(contrast, ranks),
        **_negatives(values, sums, ids, queue_ids, ranks),
        **(queue if queued else {}),
        **towers,
        **told,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cloudy:
    """One eigendecomposition for the spectrum and the certified band."""

    facts: Tensor | Moments
    spectrum: Spectrum
    gram: Tensor | None = None
    eigenpairs: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, contrast: Contrast, ranks: Ranks | None) -> Self:
        rows = cloud_rows(contrast)
        if ranks is not None:
            total = total_moments(moments(rows), ranks)
            return cls(facts=total, spectrum=spectrum(total))
        facts = compact(rows)
        wide = accumulated(rows)
        gram = facts.second if isinstance(facts, Moments) else smaller_gram(wide)
        values = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)  # (r,)
        pairs = None
        if len(rows) == len(contrast.candidates):
            pairs = lifted(wide, values, leading_eigenvector(gram, values), 1)
        return cls(
            facts=facts,
            spectrum=spectrum_of(values, count=len(rows), dimension=rows.shape[1]),
            gram=gram,
            eigenpairs=pairs,
        )


def _axes(contrast: Contrast, ranks: Ranks) -> dict[str, Any]:
    """Of two towers, the worse value of each."""
    rows = [contrast.anchors] if contrast.itself is not None else list(sides(contrast).values())
    each = [Axes.from_sums(ranks.sum(axis_sums(one))) for one in rows]
    return {
        "axis_dominance": max(one.dominance for one in each),
        "negative_entries": min(one.negative_share for one in each),
    }


def _towers(contrast: Contrast, values: InfoNCE, forward: float) -> dict[str, Any]:
    back = accumulated(infonce(swapped(contrast), values.tau).loss).mean().item()
    first, second = (accumulated(rows).mean(0) for rows in (contrast.anchors, contrast.keys))
    return {
        "first_tower": cloud_of(sampled(contrast.anchors, QueueSample().size)),
        "backward_loss": back,
        "symmetric_loss": (forward + back) / 2,
        "modality_gap": (first - second).square().sum().item(),
    }


def inputs_of(*views: Tensor) -> dict[str, Any]:
    """How the embeddings were handed over; of several dtypes, the coarsest decides."""
    norms = torch.cat([torch.linalg.vector_norm(accumulated(z.detach()), dim=1) for z in views])
    coarsest = max((z.dtype for z in views), key=lambda dtype: torch.finfo(dtype).eps)
    return {
        "input_dtype": str(coarsest).removeprefix("torch."),
        "input_resolution": torch.finfo(coarsest).eps,
        "input_half": coarsest.itemsize < 4,
        "shortest_row": norms.min().item(),
        "longest_row": norms.max().item(),
    }


def _queue(
    contrast: Contrast, cloud: Cloud, ids: Tensor | None, queue_ids: Tensor | None
) -> dict[str, Any]:
    """The paper's queue-aware sigma; empty slots have a negative id."""
    radius = subgaussian_radius(cloud.count, cloud.stable_rank)
    filled = None if queue_ids is None else queue_ids[queue_ids >= 0]
    rate = None
    if ids is not None and filled is not None:
        rate = torch.isin(ids, filled.to(ids.device)).float().mean().item()
    stored = contrast.keys[len(contrast.anchors) :]
    keys = contrast.keys[contrast.positive]
    return {
        "queue_length": len(stored),
        "queue_sampled": cloud.count,
        "queue_sigma": cloud.sigma_hat,
        "queue_radius": radius,
        "queue_sigma_ceiling": queue_ceiling(cloud.sigma_hat, radius),
        "queue_fill": None if queue_ids is None or filled is None else len(filled) / len(queue_ids),
        "queue_likeness": moment_cosine(keys, sampled(stored, LIKENESS_KEYS)) if len(stored) else 1,
        "self_negative_rate": rate,
    }


def _negatives(
    values: InfoNCE,
    sums: AnchorSums,
    ids: Tensor | None,
    queue_ids: Tensor | None,
    ranks: Ranks,
) -> dict[str, Any]:
    contrast, anchors = values.contrast, sums.anchors
    mean_positive = sums.positive_similarity / anchors
    mean_negative = sums.negative_similarity / anchors
    alone, judged = None, anchors
    if ids is not None and queue_ids is not None:  # an older key of the own sample is no negative
        alone = ~torch.isin(ids, queue_ids.to(ids.device)).to(contrast.anchors.device)
        judged = float(alone.sum())
    local = similarity_sums(values, mean_positive, mean_negative, counted=alone)
    similarity = SimilaritySums.from_vector(ranks.sum(local.vector()))
    alike = similarity.look_alike / similarity.nearly_alike if similarity.nearly_alike else 0.0
    copied = similarity.copied
    if contrast.itself is None:  # copies are looked for within each encoder's own rows
        copied = max(copied_rows(rows) for rows in sides(contrast).values())
    return {
        "uniformity": math.log(similarity.potential / similarity.pairs),
        "harder_share": similarity.harder / similarity.pairs,
        "near_duplicate_rate": similarity.anchors_with_look_alike / anchors,
        "near_duplicate_isolation": alike,
        "solved_share": similarity.solved / judged if judged else 0.0,
        "found_share": similarity.found / anchors,
        "misplaced_share": similarity.misplaced / anchors,
        "copied_share": copied / anchors,
        "hard_miss": similarity.hard_miss / anchors,
        "hard_force_ratio": similarity.squared_hard_miss / max(sums.squared_miss, 1e-300),
        "repeated_id_share": None if ids is None else _repeated(ranks.concatenated(ids)),
    }


def _repeated(ids: Tensor) -> float:
    """Share of ids that are there more than once."""
    values = ids.sort().values
    alike = values[1:] == values[:-1]  # (n - 1,)
    repeated = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    repeated[1:] |= alike
    repeated[:-1] |= alike
    return repeated.float().mean().item()


def _per_anchor_band(contrast: Contrast, tau: float, method: Method, ranks: Ranks) -> BatchBand:
    """The paper's band with its per-anchor spectra or its proxy, averaged over all processes."""
    band = gradient_band(contrast, tau, method=method)
    columns = (band.lower.sqrt(), band.measured, band.upper)
    total = ranks.sum(torch.stack([accumulated(column).sum() for column in columns]))
    count = ranks.sum(total.new_tensor(len(contrast.anchors)))
    shortfall, measured, upper = (total / count).tolist()
    return BatchBand(lower=shortfall**2, measured=measured, upper=upper)


def is_queued(contrast: Contrast) -> bool:
    """Whether the keys hold more than the anchors' own positives."""
    return contrast.itself is None and len(contrast.keys) > len(contrast.anchors)


def is_cross(contrast: Contrast) -> bool:
    """Whether anchors and keys are two towers, one key for each anchor."""
    return contrast.itself is None and len(contrast.keys) == len(contrast.anchors)


def swapped(contrast: Contrast) -> Contrast:
    """A cross contrast in the other direction: keys look for anchors."""
    back = torch.empty_like(contrast.positive)
    back[contrast.positive] = torch.arange(len(back), device=back.device)
    return Contrast(anchors=contrast.keys, keys=contrast.anchors, positive=back)


def sides(contrast: Contrast) -> dict[str, Tensor]:
    """Rows of each encoder or view in this process, by name."""
    if contrast.itself is not None:
        first, second = contrast.anchors.tensor_split(2)
        return {"view 1": first, "view 2": second}
    names = ("queries", "keys") if is_queued(contrast) else ("first tower", "second tower")
    return dict(zip(names, (contrast.anchors, contrast.keys[contrast.positive]), strict=True))


def cloud_rows(contrast: Contrast) -> Tensor:
    """Rows behind the spectrum: this process's share of an NT-Xent batch, else the keys."""
    if contrast.itself is not None:
        return contrast.anchors
    return sampled(contrast.candidates, QueueSample().size)


def sampled(rows: Tensor, size: int) -> Tensor:
    """At most `size` of the rows, the same ones for the same number of rows."""
    if len(rows) <= size:
        return rows
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(rows), generator=generator)[:size]
    return rows[chosen.to(rows.device)]


def check_ids(contrast: Contrast, ids: Tensor | None, queue_ids: Tensor | None) -> None:
    """Raise unless the ids fit the layout: one for each pair, and one for each slot of a queue."""
    check_type(ids, (Tensor, type(None)), "ids")
    check_type(queue_ids, (Tensor, type(None)), "queue_ids")
    stored = len(contrast.keys) - len(contrast.anchors)
    pairs = len(contrast.anchors) // (1 if contrast.itself is None else 2)
    if queue_ids is not None and not is_queued(contrast):
        raise ShapeError("queue_ids belong to a queue: use Contrast.queued")
    if ids is not None and ids.shape != (pairs,):
        raise ShapeError(f"ids must hold {pairs} sample ids, got {tuple(ids.shape)}")
    if queue_ids is not None and queue_ids.shape != (stored,):
        raise ShapeError(f"queue_ids must hold {stored} sample ids, got {tuple(queue_ids.shape)}")


def _your_loss(
    loss: float,
    contrast: Contrast,
    values: InfoNCE,
    measured: float,
    towers: dict[str, Any],
    ranks: Ranks,
) -> dict[str, Any]:
    """Compare the user's loss, averaged over processes, with all losses the layout allows."""
    told, processes = ranks.sum(torch.tensor([loss, 1.0], dtype=torch.float64)).tolist()
    loss = told / processes
    allowed = [measured]
    if towers:
        allowed += [towers["backward_loss"], towers["symmetric_loss"]]
    closest = min(allowed, key=lambda one: abs(one - loss))
    difference, explanation = abs(closest - loss), ""
    if difference > SAME:
        near = min(difference / CLOSER, SAME * max(1.0, abs(loss)))
        mistakes = list(_mistakes(contrast, values, ranks))
        found = [text for text, value in mistakes if abs(value - loss) <= near]
        explanation = found[0] if len(found) == 1 else ""
    return {"your_loss": loss, "closest_loss": closest, "loss_explanation": explanation}


def _mistakes(contrast: Contrast, values: InfoNCE, ranks: Ranks) -> Iterator[tuple[str, float]]:
    """What each common mistake would make of the loss."""
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
