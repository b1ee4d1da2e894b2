"""From a contrast to a reading: calls the core and puts its numbers in their places."""

import math
from typing import get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_type, described
from eigenbatch.core.band import BatchBand, Method, QueueSample, gradient_band
from eigenbatch.core.cloud import Cloud, cloud_of, compact
from eigenbatch.core.concentration import queue_ceiling, subgaussian_radius
from eigenbatch.core.contrast import Contrast, check_contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.moments import moments
from eigenbatch.core.precision import accumulated
from eigenbatch.core.prediction import outlook
from eigenbatch.core.reference_loss import chance_loss, separated_loss
from eigenbatch.core.similarity import SimilaritySums, similarity_sums
from eigenbatch.core.spectrum import spectrum
from eigenbatch.core.sums import AnchorSums, anchor_sums
from eigenbatch.errors import ArgumentTypeError, ShapeError
from eigenbatch.monitor.ranks import Ranks, SingleProcess, total_moments
from eigenbatch.monitor.reading import Gradient, Inputs, Negatives, Queue, Reading, Softmax


@torch.no_grad()
def read_batch(
    contrast: Contrast,
    tau: float | Tensor,
    *,
    method: Method = "certified",
    ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    inputs: Inputs | None = None,
    ranks: Ranks | None = None,
) -> Reading:
    """Everything one batch says; see `SpectralMonitor` for the arguments.

    The cloud is that of the keys: all rows of an NT-Xent batch, the keys of a cross batch, a random
    sample of a queue. Work is done in row blocks, memory stays linear in the batch.
    """
    check_contrast(contrast)
    check_choice(method, get_args(Method), "method")
    check_type(inputs, (Inputs, type(None)), "inputs")
    if ranks is not None and not hasattr(ranks, "concatenated"):
        raise ArgumentTypeError(f"ranks must be Ranks or None, got {described(ranks)}")
    _check_ids(contrast, ids, queue_ids)
    queued = is_queued(contrast)
    rows = _cloud_rows(contrast)
    facts = compact(rows) if ranks is None else total_moments(moments(rows), ranks)
    cloud_spectrum = spectrum(facts)
    ranks = ranks or SingleProcess()
    values = infonce(contrast, tau)
    sums = AnchorSums.from_vector(ranks.sum(anchor_sums(contrast, values).vector()))
    views = contrast.itself is not None  # the rows hold two views of every sample
    cloud = cloud_of(
        facts,
        cloud_spectrum,
        positive_squares=sums.squared_positive_similarity if views else None,
    )
    anchors, count, temperature = sums.anchors, contrast.negative_count, values.tau
    mean_positive = sums.positive_similarity / anchors
    mean_negative = sums.negative_similarity / anchors
    local = similarity_sums(contrast, mean_positive, mean_negative)
    similarity = SimilaritySums.from_vector(ranks.sum(local.vector()))
    queue = _queue(cloud, ids, queue_ids) if queued or method == "queue" else None
    sigma = queue.ceiling if queue else len(contrast.candidates) / count * cloud.sigma_hat
    force = sums.squared_miss / anchors / temperature**2
    measured = sums.squared_gradient / anchors
    return Reading(
        anchors=int(anchors),
        softmax=Softmax(
            tau=temperature,
            negatives=count,
            loss=sums.loss / anchors,
            chance_loss=chance_loss(count),
            separated_loss=separated_loss(count, temperature),
            miss=sums.miss / anchors,
            alignment=1 - sums.shortfall / anchors,
            positive_similarity=mean_positive,
            effective_negatives=sums.effective_negatives / anchors,
        ),
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
        negatives=_negatives(similarity, anchors),
        outlook=outlook(contrast, values, cloud_spectrum).gathered(ranks.concatenated),
        queue=queue if queued else None,
        inputs=inputs,
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


def is_queued(contrast: Contrast) -> bool:
    """Whether the keys hold more than the anchors' own positives."""
    return contrast.itself is None and len(contrast.keys) > len(contrast.anchors)


def _check_ids(contrast: Contrast, ids: Tensor | None, queue_ids: Tensor | None) -> None:
    """Raise unless the ids fit the layout."""
    if ids is None and queue_ids is None:
        return
    check_type(ids, (Tensor, type(None)), "ids")
    check_type(queue_ids, (Tensor, type(None)), "queue_ids")
    stored = len(contrast.keys) - len(contrast.anchors)
    if not is_queued(contrast):
        raise ShapeError("ids and queue_ids belong to a queue: use Contrast.queued")
    if ids is not None and ids.shape != (len(contrast.anchors),):
        raise ShapeError(f"ids must hold {len(contrast.anchors)} sample ids, got {ids.shape}")
    if queue_ids is not None and queue_ids.shape != (stored,):
        raise ShapeError(f"queue_ids must hold {stored} sample ids, got {queue_ids.shape}")


def _cloud_rows(contrast: Contrast) -> Tensor:
    """Rows behind the spectrum: this process's share of an NT-Xent batch, else the keys."""
    if contrast.itself is not None:
        return contrast.anchors
    candidates = contrast.candidates
    size = QueueSample().size
    if len(candidates) <= size:
        return candidates
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(candidates), generator=generator)[:size]
    return candidates[chosen.to(candidates.device)]


def _queue(cloud: Cloud, ids: Tensor | None, queue_ids: Tensor | None) -> Queue:
    """The paper's queue-aware sigma; empty slots have a negative id."""
    radius = subgaussian_radius(cloud.count, cloud.stable_rank)
    filled = None if queue_ids is None else queue_ids[queue_ids >= 0]
    rate = None
    if ids is not None and filled is not None:
        rate = torch.isin(ids, filled.to(ids.device)).float().mean().item()
    return Queue(
        sampled=cloud.count,
        sigma=cloud.sigma_hat,
        radius=radius,
        ceiling=queue_ceiling(cloud.sigma_hat, radius),
        fill=None if queue_ids is None or filled is None else len(filled) / len(queue_ids),
        self_negative_rate=rate,
    )


def _negatives(similarity: SimilaritySums, anchors: float) -> Negatives:
    alike = similarity.look_alike / similarity.nearly_alike if similarity.nearly_alike else 0.0
    return Negatives(
        uniformity=math.log(similarity.potential / similarity.pairs),
        harder_share=similarity.harder / similarity.pairs,
        near_duplicate_rate=similarity.anchors_with_look_alike / anchors,
        near_duplicate_isolation=alike,
    )


def _per_anchor_band(contrast: Contrast, tau: float, method: Method, ranks: Ranks) -> BatchBand:
    """The paper's band with its per-anchor spectra or its proxy, averaged over all processes."""
    band = gradient_band(contrast, tau, method=method)
    columns = (band.lower.sqrt(), band.measured, band.upper)
    total = ranks.sum(torch.stack([accumulated(column).sum() for column in columns]))
    count = ranks.sum(total.new_tensor(len(contrast.anchors)))
    shortfall, measured, upper = (total / count).tolist()
    return BatchBand(lower=shortfall**2, measured=measured, upper=upper)
