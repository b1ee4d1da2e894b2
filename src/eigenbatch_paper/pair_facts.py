"""Rows of runs on pairs: how soon a policy reaches what Random reaches, and where it ends."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from eigenbatch.runs import PairedDifference, first_crossing, paired_difference
from eigenbatch_paper.claim import Row
from eigenbatch_paper.figures import POLICIES as COLOURS
from eigenbatch_paper.figures import tidy
from eigenbatch_paper.training_facts import grouped, paired

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Groups = Mapping[str, Sequence[Row]]


def final(row: Row) -> float:
    """Mean reciprocal rank at the end."""
    return float(row["mrr"][-1])


def gain(treated: Sequence[Row], random: Sequence[Row]) -> PairedDifference:
    """Difference of the final MRR over the seeds that both have."""
    pairs = paired(treated, random)
    return paired_difference([final(one) for one, _ in pairs], [final(other) for _, other in pairs])


def share(
    treated: Sequence[Row], random: Sequence[Row], axis: Literal["steps", "times"]
) -> PairedDifference:
    """Steps or processor time to the final MRR of Random with the same seed, as shares of its own.

    Selection and cache are part of the time. A run that never gets there makes the mean NaN.
    """
    shares = [
        first_crossing(one[axis], one["mrr"], final(other)) / other[axis][-1]
        for one, other in paired(treated, random)
    ]
    return paired_difference(shares, [0.0] * len(shares))


def gains(groups: Groups) -> str:
    """What every policy gains over Random, and where Random ends."""
    random = groups["random"]
    each = [
        f"{name} {interval(gain(rows, random), 'points')}"
        for name, rows in groups.items()
        if name != "random"
    ]
    return f"{', '.join(each)} (Random ends at {fmean(map(final, random)):.4f})"


def reaching(groups: Groups, policy: str = "neighbours") -> str:
    """How soon runs reach the final MRR of Random; in how many seeds, if not in all.

    Random itself is there before its end, because its curve is noisy and flat: that is said too.
    """
    treated, random = groups[policy], groups["random"]
    steps, times = (share(treated, random, axis) for axis in ("steps", "times"))
    own = 100 * share(random, random, "steps").mean
    if isfinite(steps.mean):
        return (
            f"reach Random's final MRR after {interval(steps)} of its steps and {interval(times)} "
            f"of its processor time (Random itself first after {own:.0f} % of its steps)"
        )
    reached = sum(
        isfinite(first_crossing(one["steps"], one["mrr"], final(other)))
        for one, other in paired(treated, random)
    )
    return f"reach Random's final MRR in {reached} of {len(treated)} seeds"


def interval(difference: PairedDifference, unit: str = "%") -> str:
    """Mean and 95 % interval, if there is one, of a share or a difference, in hundredths."""
    low, mean, high = (100 * v for v in (difference.low, difference.mean, difference.high))
    sign = "+" if unit == "points" else ""
    ends = f" ({low:{sign}.1f} to {high:{sign}.1f})" if difference.enough else ""
    return f"{mean:{sign}.1f} {unit}{ends}"


def draw_settings(rows: Sequence[Row], figure: "Figure") -> None:
    """Curves of every data set and batch size."""
    settings = grouped(rows, "data", "batch_size")
    columns = min(3, len(settings))
    lines = -(-len(settings) // columns)
    figure.set_size_inches(4 * columns, 3.4 * lines)
    panels = figure.subplots(lines, columns, squeeze=False).flat
    for axes, ((data, n), group) in zip(panels, settings.items(), strict=False):
        draw_curves(axes, grouped(group, "selector"), f"{data}, n = {n}")


def draw_curves(axes: "Axes", groups: Groups, title: str) -> None:
    """Mean MRR of every policy over processor time, and the level where Random ends."""
    for colour, (name, rows) in zip(COLOURS, groups.items(), strict=False):
        count = len(rows)
        times, heights = (
            [sum(values) / count for values in zip(*(row[key] for row in rows), strict=True)]
            for key in ("times", "mrr")
        )
        axes.plot(times, heights, color=colour, label=name)
    level = sum(final(row) for row in groups["random"]) / len(groups["random"])
    axes.axhline(level, color=COLOURS[0], lw=0.8, ls=":")
    axes.set_ylim(level - 0.15, None)
    tidy(axes, title, "processor seconds, all overheads included", "mean reciprocal rank")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
