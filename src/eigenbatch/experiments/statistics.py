"""Summaries of a run, and paired comparisons of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from eigenbatch.errors import ParameterError

TARGET_SHARE = 0.9
ENOUGH_PAIRS = 3
COLLAPSE_SIGMA = 0.99
COLLAPSE_ALIGNMENT = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one run amounted to. Times include selection, cache refresh and evaluation."""

    first_accuracy: float  # of the untrained encoder, where it was evaluated
    final_accuracy: float
    seconds: float
    seconds_to_target: float  # interpolated between evaluations; inf if never reached
    epochs_to_target: float  # likewise
    loss_area: float  # AULC: mean loss an epoch, summed over epochs
    accuracy_area: float  # AUAC: mean accuracy over evaluated epochs
    peak_sigma: float
    collapsed: bool  # sigma-hat > 0.99 or mean alignment > 0.98 in some reading
    selection_share: float  # of wall-clock time
    mean_rank: float  # R_eff of the batches, as cached


def summarise(
    metrics: Sequence[dict[str, Any]], *, target: float, accuracy: str = "knn"
) -> Summary:
    """Summary of a run's metrics lines; `target` is the accuracy that time is measured to."""
    curve = [line for line in metrics if accuracy in line and "finished" not in line]
    evaluated = [line for line in curve if line["step"]]
    losses = [line for line in metrics if "loss" in line]
    if not evaluated or not losses:
        raise ParameterError(f"no line has both {accuracy!r} and a loss: did the run begin?")
    heights = [line[accuracy] for line in curve]
    by_epoch: dict[int, list[float]] = {}
    for line in losses:
        by_epoch.setdefault(line["epoch"], []).append(number(line["loss"]))
    readings = [line for line in metrics if "spectral/sigma_hat" in line]
    seconds = metrics[-1]["seconds"]
    ranks = [line["sampler/participation_ratio"] for line in losses
             if "sampler/participation_ratio" in line]  # fmt: skip
    return Summary(
        first_accuracy=curve[0][accuracy],
        final_accuracy=evaluated[-1][accuracy],
        seconds=seconds,
        seconds_to_target=first_crossing([line["seconds"] for line in curve], heights, target),
        epochs_to_target=first_crossing([line["epoch"] for line in curve], heights, target),
        loss_area=sum(float(np.mean(values)) for values in by_epoch.values()),
        accuracy_area=float(np.mean([line[accuracy] for line in evaluated])),
        peak_sigma=max((line["spectral/sigma_hat"] for line in readings), default=math.nan),
        collapsed=any(
            line["spectral/sigma_hat"] > COLLAPSE_SIGMA
            or line["spectral/alignment"] > COLLAPSE_ALIGNMENT
            for line in readings
        ),
        selection_share=sum(line.get("sampler/seconds", 0.0) for line in losses) / seconds,
        mean_rank=float(np.mean(ranks)) if ranks else math.nan,
    )


def number(value: float | None) -> float:
    """A value of a metrics line; NaN where it was not finite."""
    return math.nan if value is None else value


def default_target(first: Sequence[float], final: Sequence[float]) -> float:
    """Where a baseline has 90 % of what it gains over its untrained encoder, mean over seeds."""
    start, end = float(np.mean(first)), float(np.mean(final))
    return start + TARGET_SHARE * (end - start)


def first_crossing(places: Sequence[float], heights: Sequence[float], target: float) -> float:
    """Where a curve first reaches `target`, linear between its points; inf if it never does.

    NaN if it begins there: nothing had to be learnt.
    """
    for i, height in enumerate(heights):
        if height < target:
            continue
        if i == 0:
            return math.nan
        share = (target - heights[i - 1]) / (height - heights[i - 1])
        return places[i - 1] + share * (places[i] - places[i - 1])
    return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Mean of treated - baseline over seeds, with its 95 % interval and paired t-test."""

    mean: float
    low: float
    high: float
    p_value: float
    pairs: int

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval."""
        return (self.high - self.low) / 2

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero, and there are enough pairs for one."""
        return self.enough and (self.low > 0 or self.high < 0)

    @property
    def enough(self) -> bool:
        """Whether pairs are enough for an interval: two that agree by chance prove nothing."""
        return self.pairs >= ENOUGH_PAIRS


def paired_difference(treated: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """Difference of two series measured with the same seeds; NaN interval with a single pair."""
    if len(treated) != len(baseline) or len(treated) == 0:
        raise ParameterError(
            f"a paired comparison needs as many values on both sides, "
            f"got {len(treated)} and {len(baseline)}"
        )
    difference = np.asarray(treated, dtype=float) - np.asarray(baseline, dtype=float)
    count, mean = len(difference), float(difference.mean())
    if count == 1 or not np.isfinite(difference).all():
        return PairedDifference(
            mean=mean, low=math.nan, high=math.nan, p_value=math.nan, pairs=count
        )
    error = float(difference.std(ddof=1)) / math.sqrt(count)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return PairedDifference(
        mean=mean, low=mean - half, high=mean + half, p_value=p_value, pairs=count
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFit:
    """Least-squares line: slope with the half-width of its 95 % interval, and R^2."""

    slope: float
    half_width: float
    r_squared: float


def line_fit(x: Sequence[float], y: Sequence[float]) -> LineFit:
    """Ordinary least squares of y on x; needs three points or more."""
    if len(x) != len(y) or len(x) < 3:
        raise ParameterError(
            f"a line with an interval needs 3 points or more, got {len(x)}, {len(y)}"
        )
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2)) * float(fit.stderr)
    return LineFit(slope=float(fit.slope), half_width=half, r_squared=float(fit.rvalue) ** 2)
