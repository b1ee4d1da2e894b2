"""What one run amounted to: one definition each, used by comparisons, the report and the claims.

| name | definition |
| --- | --- |
| final accuracy | the last evaluation (kNN accuracy, MRR, or a user's `accuracy`) |
| first accuracy | the evaluation at step 0: the untrained encoder; NaN if there was none |
| seconds | training time of the last line: loading, selection, steps, cache refresh and monitor; \
evaluation does not count |
| seconds / epochs to target | where the accuracy curve first reaches the target, linear between \
evaluations; inf if it never does, NaN if it begins there |
| AULC | mean training loss of each epoch, summed over epochs |
| AUAC | mean accuracy over the evaluated epochs after the first step, up to an epoch limit |
| peak sigma | largest sigma-hat of any reading and tower, the first reading included |
| collapsed | peak sigma > 0.99 |
| selection share | time spent choosing batches over `seconds` |
| mean rank | mean R_eff of the batches as cached |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eigenbatch.errors import RunError
from eigenbatch.runs.metrics import Floats, Series
from eigenbatch.runs.reader import RunRecord

TARGET_SHARE = 0.9
SIGMA = ("spectral/sigma_hat", "spectral/first_tower/sigma_hat")
COLLAPSE_SIGMA = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run in numbers, each defined once.

    Args:
        first_accuracy: the evaluation at step 0, of the untrained encoder; NaN if there was none.
        final_accuracy: the last evaluation: kNN accuracy, MRR, or a user's `accuracy`.
        seconds: training time, without evaluations.
        seconds_to_target: when the accuracy first reaches the target, linear between evaluations;
            inf: never, NaN: from the start.
        epochs_to_target: the same in epochs.
        loss_area: AULC, the mean training loss of each epoch, summed over epochs.
        accuracy_area: AUAC, the mean accuracy of the evaluations after the first step.
        peak_sigma: largest sigma-hat of any reading, of both towers if there are two.
        collapsed: peak_sigma > 0.99.
        selection_share: time spent choosing batches over `seconds`.
        mean_rank: mean R_eff of the batches as cached.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import read_run, summarise
        >>> with Recorder(tmp_path / "run") as run:
        ...     run.log(0, epoch=0, knn=0.5)
        ...     run.log(10, epoch=1, knn=0.9)
        >>> summary = summarise(read_run(tmp_path / "run"), target=0.7)
        >>> summary.first_accuracy, summary.final_accuracy, round(summary.epochs_to_target, 6)
        (0.5, 0.9, 0.5)
    """

    first_accuracy: float
    final_accuracy: float
    seconds: float
    seconds_to_target: float
    epochs_to_target: float
    loss_area: float
    accuracy_area: float
    peak_sigma: float
    collapsed: bool
    selection_share: float
    mean_rank: float


def summarise(
    run: RunRecord, *, target: float = math.inf, area_epochs: float | None = None
) -> Summary:
    """Summary of a run.

    Args:
        run: as read by `read_run`.
        target: the accuracy that time and epochs are measured to.
        area_epochs: AUAC covers the epochs up to this one; None: all.

    Returns:
        Every number of the run; NaN where the run did not record what it needs.

    Examples:
        >>> from eigenbatch import Recorder
        >>> from eigenbatch.runs import read_run, summarise
        >>> with Recorder(tmp_path / "run") as run:
        ...     run.log(1, knn=0.9)
        >>> summarise(read_run(tmp_path / "run")).final_accuracy
        0.9
    """
    curve, series = run.accuracy, run.series
    if curve is None:
        raise RunError(f"{run.folder} has no evaluation: nothing to summarise yet")
    seconds = run.metrics.end[2]
    selection = series.get("sampler/seconds")
    ranks = series.get("sampler/participation_ratio")
    peak_sigma = _peak_sigma(series)
    return Summary(
        first_accuracy=run.untrained,
        final_accuracy=float(curve.value[-1]),
        seconds=seconds,
        seconds_to_target=first_crossing(curve.seconds, curve.value, target),
        epochs_to_target=first_crossing(curve.epoch, curve.value, target),
        loss_area=_loss_area(series.get("loss")),
        accuracy_area=_accuracy_area(curve, area_epochs),
        peak_sigma=peak_sigma,
        collapsed=peak_sigma > COLLAPSE_SIGMA,
        selection_share=float(selection.value.sum()) / seconds if selection and seconds else 0.0,
        mean_rank=float(ranks.value.mean()) if ranks else math.nan,
    )


def default_target(first: Sequence[float], final: Sequence[float]) -> float:
    """Where a baseline has 90 % of what it gains over its untrained encoder, mean over seeds.

    Without an evaluation of the untrained encoder: 90 % of the final accuracy.

    Args:
        first: accuracy of the untrained encoder, one per seed.
        final: accuracy at the end, one per seed.

    Returns:
        The accuracy to reach.

    Examples:
        >>> from eigenbatch.runs import default_target
        >>> round(default_target([0.5, 0.5], [0.7, 0.9]), 6)
        0.77
    """
    start, end = float(np.mean(first)), float(np.mean(final))
    start = start if math.isfinite(start) else 0.0
    return start + TARGET_SHARE * (end - start)


def first_crossing(
    places: Sequence[float] | Floats, heights: Sequence[float] | Floats, target: float
) -> float:
    """Where a curve first reaches a target, linear between its points.

    Args:
        places: rising places of the points, e.g. seconds.
        heights: values there, e.g. accuracies.
        target: the value to reach.

    Returns:
        The place; inf if it is never reached, NaN if the curve begins there.

    Examples:
        >>> from eigenbatch.runs import first_crossing
        >>> first_crossing([0, 10, 20], [0.5, 0.5, 0.75], target=0.625)
        15.0
    """
    for i, height in enumerate(heights):
        if height < target:
            continue
        if i == 0:
            return math.nan
        share = (target - heights[i - 1]) / (height - heights[i - 1])
        return float(places[i - 1] + share * (places[i] - places[i - 1]))
    return math.inf


def _loss_area(losses: Series | None) -> float:
    if losses is None or not np.isfinite(losses.epoch).all():
        return math.nan
    epochs = np.floor(losses.epoch)
    return sum(float(losses.value[epochs == epoch].mean()) for epoch in np.unique(epochs))


def _accuracy_area(curve: Series, epochs: float | None) -> float:
    """Each evaluation once: the final probes may repeat the last one."""
    counted = (curve.step > 0) & np.append(np.diff(curve.step) != 0, True)
    if epochs is not None:
        counted &= curve.epoch <= epochs
    return float(curve.value[counted].mean()) if counted.any() else math.nan


def _peak_sigma(series: Mapping[str, Series]) -> float:
    return max(
        (float(series[name].value.max()) for name in SIGMA if name in series), default=math.nan
    )
