"""Fewer points and fewer lines that hide nothing: both extremes are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigenbatch.runs.metrics import Floats

BUCKETS = 150


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A series as drawn: a line between the lowest and the highest value.

    The line is the mean of each bucket, or the median of several runs.
    """

    x: Floats
    middle: Floats
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


def over_runs(curves: Sequence[Curve], *, points: int = BUCKETS) -> Curve:
    """The median of several runs, from the lowest to the highest of them, at common steps.

    Between its own points a run is read off a straight line; beyond them it does not count.
    """
    steps = np.unique(np.concatenate([curve.x for curve in curves]))
    if len(steps) > points:
        steps = np.linspace(steps[0], steps[-1], points)
        covered = [(steps >= curve.x[0]) & (steps <= curve.x[-1]) for curve in curves]
        steps = steps[np.any(covered, axis=0)]

    def table(name: str) -> Floats:
        return np.stack(
            [
                np.interp(steps, curve.x, getattr(curve, name), left=np.nan, right=np.nan)
                for curve in curves
            ]
        )  # (runs, points)

    return Curve(
        steps,
        np.nanmedian(table("middle"), axis=0),
        np.nanmin(table("low"), axis=0),
        np.nanmax(table("high"), axis=0),
        sum(curve.rows for curve in curves),
    )


def bucket_starts(x: Floats, buckets: int) -> NDArray[np.intp]:
    """Where each non-empty bucket begins in rising `x`."""
    edges = np.linspace(x[0], x[-1], buckets + 1)[:-1]
    return np.unique(np.searchsorted(x, edges))
