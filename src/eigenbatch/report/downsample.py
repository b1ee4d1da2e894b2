"""Fewer points that hide nothing: a bucket keeps its mean and both its extremes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigenbatch.runs.metrics import Floats

BUCKETS = 150


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A series as drawn: the mean of each bucket, between its lowest and highest value."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    rows: int  # before downsampling

    @property
    def reduced(self) -> bool:
        """Whether some point stands for several rows."""
        return len(self.x) < self.rows


def downsample(x: Floats, value: Floats, *, buckets: int = BUCKETS) -> Curve:
    """At most `buckets` points, equally wide along rising `x`; a short series stays as it is."""
    if len(x) <= buckets:
        return Curve(x, value, value, value, len(x))
    starts = bucket_starts(x, buckets)
    counts = np.diff(np.append(starts, len(x)))
    return Curve(
        np.add.reduceat(x, starts) / counts,
        np.add.reduceat(value, starts) / counts,
        np.minimum.reduceat(value, starts),
        np.maximum.reduceat(value, starts),
        len(x),
    )


def bucket_starts(x: Floats, buckets: int) -> NDArray[np.intp]:
    """Where each non-empty bucket begins in rising `x`."""
    edges = np.linspace(x[0], x[-1], buckets + 1)[:-1]
    return np.unique(np.searchsorted(x, edges))
