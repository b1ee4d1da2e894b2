"""From a contrast to a reading: calls the core and puts its numbers in their places."""

import math
from dataclasses import dataclass
from typing import Self, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_type, described, real
from eigenbatch.core.axes import Axes, axis_sums
from eigenbatch.core.band import BatchBand, Method, QueueSample, gradient_band
from eigenbatch.core.cloud import Cloud, cloud_of, compact
from eigenbatch.core.concentration import queue_ceiling, subgaussian_radius
from eigenbatch.core.contrast import Contrast, check_contrast
from eigenbatch.core.infonce import InfoNCE, infonce
from eigenbatch.core.moments import Moments, moments
from eigenbatch.core.movement import moment_cosine
from eigenbatch.core.precision import accumulated
from eigenbatch.core.prediction import outlook
from eigenbatch.core.reference_loss import chance_loss
from eigenbatch.core.similarity import SimilaritySums, copied_rows, similarity_sums
from eigenbatch.core.spectrum import (
    Spectrum,
    leading_eigenvector,
    lifted,
    smaller_gram,
    spectrum,
    spectrum_of,
)
from eigenbatch.core.sums import AnchorSums, anchor_sums
from eigenbatch.errors import ArgumentTypeError
from eigenbatch.monitor.claim import check_claim
from eigenbatch.monitor.parts import Gradient, Inputs, Negatives, Queue, Softmax, Towers
from eigenbatch.monitor.ranks import Ranks, SingleProcess, total_moments
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.sides import (
    check_ids,
    cloud_rows,
    is_cross,
    is_queued,
    sampled,
    sides,
    swapped,
)

LIKENESS_KEYS = 1024
"""Keys of a queue that are compared with those of the batch."""


@torch.no_grad()
def read_batch(
    contrast: Contrast,
    tau: float | Tensor,
    *,
    method: Method = "certified",
    ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    inputs: Inputs | None = None,
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
        inputs: norms and precision of the embeddings before they were normalised.
        loss: the loss of your own code, to be checked.
        ranks: the processes to sum over; None: this one.

    Returns:
        The reading; its findings are `reading.diagnoses`.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast
        >>> from eigenbatch.monitor import read_batch
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> [finding.name for finding in read_batch(Contrast.paired(*z), tau=0.2).diagnoses]
        ['stuck at chance']
    """
    check_contrast(contrast)
    check_choice(method, get_args(Method), "method")
    check_type(inputs, (Inputs, type(None)), "inputs")
    if loss is not None:
        real(loss, "loss")
    if ranks is not None and not hasattr(ranks, "concatenated"):
        raise ArgumentTypeError(f"ranks must be Ranks or None, got {described(ranks)}")
    check_ids(contrast, ids, queue_ids)
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
    queue = _queue(contrast, cloud, ids, queue_ids) if queued or method == "queue" else None
    sigma = queue.ceiling if queue else len(contrast.candidates) / count * cloud.sigma_hat
    force = sums.squared_miss / anchors / temperature**2
    measured = sums.squared_gradient / anchors
    towers = _towers(contrast, cloud, values, sums) if is_cross(contrast) else None
    return Reading(
        anchors=int(anchors),
        softmax=_softmax(sums, count, temperature),
        gradient=Gradient(
            force=force,
            geometry=measured / force if force else 0.0,
            certified=sums.certified,
            paper=_per_anchor_band(contrast, temperature, method, ranks)
            if method in ("theorem", "proxy")
            else sums.paper_band(sigma, count, temperature),
            method=method,
            variance=sums.variance_band(sigma, count, temperature),
        ),
        cloud=cloud,
        axes=_axes(contrast, ranks),
        negatives=_negatives(values, sums, ids, queue_ids, ranks),
        outlook=outlook(contrast, values, found.spectrum).gathered(ranks.concatenated),
        towers=towers,
        queue=queue if queued else None,
        inputs=inputs,
        claim=None
        if loss is None
        else check_claim(loss, contrast, values, sums.loss / anchors, towers, ranks),
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


def _softmax(sums: AnchorSums, count: int, tau: float) -> Softmax:
    anchors = sums.anchors
    return Softmax(
        tau=tau,
        negatives=count,
        loss=sums.loss / anchors,
        chance_loss=chance_loss(count),
        miss=sums.miss / anchors,
        alignment=1 - sums.shortfall / anchors,
        positive_similarity=sums.positive_similarity / anchors,
        effective_negatives=sums.effective_negatives / anchors,
    )


def _axes(contrast: Contrast, ranks: Ranks) -> Axes:
    """Of two towers, the worse value of each."""
    rows = [contrast.anchors] if contrast.itself is not None else list(sides(contrast).values())
    each = [Axes.from_sums(ranks.sum(axis_sums(one))) for one in rows]
    return Axes(
        dominance=max(one.dominance for one in each),
        negative_share=min(one.negative_share for one in each),
    )


def _towers(contrast: Contrast, cloud: Cloud, values: InfoNCE, sums: AnchorSums) -> Towers:
    back = infonce(swapped(contrast), values.tau).loss
    first, second = (accumulated(rows).mean(0) for rows in (contrast.anchors, contrast.keys))
    return Towers(
        first=cloud_of(sampled(contrast.anchors, QueueSample().size)),
        second=cloud,
        forward_loss=sums.loss / sums.anchors,
        backward_loss=accumulated(back).mean().item(),
        gap=(first - second).square().sum().item(),
    )


def inputs_of(*views: Tensor) -> Inputs:
    """How the embeddings were handed over; of several dtypes, the coarsest decides."""
    norms = torch.cat([torch.linalg.vector_norm(accumulated(z.detach()), dim=1) for z in views])
    coarsest = max((z.dtype for z in views), key=lambda dtype: torch.finfo(dtype).eps)
    return Inputs(
        dtype=str(coarsest).removeprefix("torch."),
        resolution=torch.finfo(coarsest).eps,
        half=coarsest.itemsize < 4,
        shortest=norms.min().item(),
        longest=norms.max().item(),
    )


def _queue(contrast: Contrast, cloud: Cloud, ids: Tensor | None, queue_ids: Tensor | None) -> Queue:
    """The paper's queue-aware sigma; empty slots have a negative id."""
    radius = subgaussian_radius(cloud.count, cloud.stable_rank)
    filled = None if queue_ids is None else queue_ids[queue_ids >= 0]
    rate = None
    if ids is not None and filled is not None:
        rate = torch.isin(ids, filled.to(ids.device)).float().mean().item()
    stored = contrast.keys[len(contrast.anchors) :]
    keys = contrast.keys[contrast.positive]
    return Queue(
        sampled=cloud.count,
        sigma=cloud.sigma_hat,
        radius=radius,
        ceiling=queue_ceiling(cloud.sigma_hat, radius),
        fill=None if queue_ids is None or filled is None else len(filled) / len(queue_ids),
        self_negative_rate=rate,
        likeness=moment_cosine(keys, sampled(stored, LIKENESS_KEYS)) if len(stored) else 1.0,
        length=len(stored),
    )


def _negatives(
    values: InfoNCE,
    sums: AnchorSums,
    ids: Tensor | None,
    queue_ids: Tensor | None,
    ranks: Ranks,
) -> Negatives:
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
    return Negatives(
        uniformity=math.log(similarity.potential / similarity.pairs),
        harder_share=similarity.harder / similarity.pairs,
        near_duplicate_rate=similarity.anchors_with_look_alike / anchors,
        near_duplicate_isolation=alike,
        solved_share=similarity.solved / judged if judged else 0.0,
        found_share=similarity.found / anchors,
        misplaced_share=similarity.misplaced / anchors,
        copied_share=copied / anchors,
        hard_miss=similarity.hard_miss / anchors,
        hard_force_ratio=similarity.squared_hard_miss / max(sums.squared_miss, 1e-300),
        repeated_id_share=None if ids is None else _repeated(ranks.concatenated(ids)),
    )


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
