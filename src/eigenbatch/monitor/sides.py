"""Which layout a contrast has, and which rows come from which encoder."""

import torch
from torch import Tensor

from eigenbatch.checks import check_type
from eigenbatch.core.band import QueueSample
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ShapeError


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
