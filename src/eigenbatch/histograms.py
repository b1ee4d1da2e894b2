"""Histograms of cosines: how far positives stand apart from negatives."""

from dataclasses import dataclass

import torch

from eigenbatch.core.contrast import Contrast

SAMPLED = 1024
"""Anchors that stand for all of a larger file."""
BINS = 240
"""Over [-1, 1]; those without any cosine at either end are left out."""
ROWS = 512  # anchors at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarities:
    """How many positive and negative pairs have a cosine in each of equally wide bins."""

    edges: list[float]  # one more than bins
    positive: list[float]
    negative: list[float]
    anchors: int  # behind the negatives


def some_anchors(contrast: Contrast) -> Contrast:
    """The same keys with at most SAMPLED anchors, evenly spaced."""
    count = len(contrast.anchors)
    if count <= SAMPLED:
        return contrast
    chosen = torch.linspace(0, count - 1, SAMPLED).long()
    return Contrast(
        anchors=contrast.anchors[chosen],
        keys=contrast.keys,
        positive=contrast.positive[chosen],
        itself=None if contrast.itself is None else contrast.itself[chosen],
        first_negative=contrast.first_negative,
    )


def similarities(contrast: Contrast, some: Contrast) -> Similarities:
    """Cosines of all positives, and of the negatives of some anchors."""
    positive = (contrast.anchors * contrast.keys[contrast.positive]).sum(1).float()  # (n,)
    parts = []
    for start in range(0, len(some.anchors), ROWS):
        part = slice(start, start + ROWS)
        cosines = (some.anchors[part] @ some.keys.T).float()  # (b, m)
        others = torch.ones_like(cosines, dtype=torch.bool)
        others.scatter_(1, some.positive[part, None], False)
        if some.itself is not None:
            others.scatter_(1, some.itself[part, None], False)
        parts.append(cosines[others].histc(BINS, -1.0, 1.0 + 1e-5))
    fine = torch.stack(parts).sum(0)  # (bins,) over [-1, 1]
    return _shown(positive.histc(BINS, -1.0, 1.0 + 1e-5), fine, len(some.anchors))


def _shown(positive: torch.Tensor, negative: torch.Tensor, anchors: int) -> Similarities:
    """The part of the fine bins that holds anything."""
    used = (positive + negative).nonzero()[:, 0]
    first, last = int(used[0]), int(used[-1]) + 1
    edges = torch.linspace(-1.0, 1.0, len(positive) + 1)[first : last + 1]
    return Similarities(
        edges=edges.tolist(),
        positive=positive[first:last].tolist(),
        negative=negative[first:last].tolist(),
        anchors=anchors,
    )
