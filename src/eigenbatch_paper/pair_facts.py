"""Rows of runs on pairs: how soon a policy reaches what Random reaches, and where it ends."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from eigenbatch.runs import PairedDifference, first_crossing, paired_difference
from eigenbatch_paper.claim import Row
from eigenbatch_paper.figures import POLICIES as COLOURS
from eigenbatch_paper.figures import tidy
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided, mean_at_least, no_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Groups = Mapping[str, Sequence[Row]]


def final(row: Row) -> float:
    """Mean reciprocal rank at the end."""
    return float(row["mrr"][-1])


def gain(treated: Sequence[Row], random: Sequence[Row]) -> PairedDifference:
    """Difference of the final MRR over the seeds, in their order."""
    return paired_difference([final(row) for row in treated], [final(row) for row in random])


def share(
    treated: Sequence[Row], random: Sequence[Row], axis: Literal["steps", "times"]
) -> PairedDifference:
    """Steps or processor time to the final MRR of Random with the same seed, as shares of its own.

    Selection and cache are part of the time. A run that never gets there makes the mean NaN.
    """
    shares = [
        first_crossing(one[axis], one["mrr"], final(other)) / other[axis][-1]
        for one, other in zip(treated, random, strict=True)
    ]
    return paired_difference(shares, [0.0] * len(shares))


def reaching(treated: Sequence[Row], random: Sequence[Row]) -> str:
    """How soon runs reach the final MRR of Random; in how many seeds, if not in all.

    Random itself is there before its end, because its curve is noisy and flat: that is said too.
    """
    steps, times = (share(treated, random, axis) for axis in ("steps", "times"))
    own = 100 * share(random, random, "steps").mean
    if isfinite(steps.mean):
        return (
            f"reach Random's final MRR after {interval(steps)} of its steps and {interval(times)} "
            f"of its processor time (Random itself first after {own:.0f} % of its steps)"
        )
    return f"reach Random's final MRR {_in_seeds(treated, random)}"


def after_steps(treated: Sequence[Row], random: Sequence[Row]) -> str:
    """The same in steps alone, where the runs are of different days: `after ... of its steps`."""
    steps = share(treated, random, "steps")
    if isfinite(steps.mean):
        return f"after {interval(steps)} of its steps"
    return _in_seeds(treated, random)


def _in_seeds(treated: Sequence[Row], random: Sequence[Row]) -> str:
    reached = sum(
        isfinite(first_crossing(one["steps"], one["mrr"], final(other)))
        for one, other in zip(treated, random, strict=True)
    )
    return f"in {reached} of {len(treated)} seeds"


def interval(difference: PairedDifference, unit: str = "%") -> str:
    """Mean and 95 % interval, if there is one, of a share or a difference, in hundredths."""
    low, mean, high = (100 * v for v in (difference.low, difference.mean, difference.high))
    sign = "+" if unit == "points" else ""
    ends = f" ({low:{sign}.1f} to {high:{sign}.1f})" if difference.enough else ""
    return f"{mean:{sign}.1f} {unit}{ends}"


def judged_auto(settings: Mapping[str, Sequence[Row]]) -> Verdict:
    """Auto against Random, and against the better of random and hard batches, in every setting."""
    main: dict[str, Finding | bool] = {}
    rest: dict[str, Finding | bool] = {}
    measured, notes = [], []
    for name, rows in settings.items():
        groups = grouped(rows, "selector")
        random = groups["random"]
        hard, auto = (gain(groups[policy], random) for policy in ("neighbours-4", "auto"))
        main[f"{name}: auto does not lose to random"] = no_loss(auto, within=0.003)
        rest[f"{name}: auto is within 0.5 points of the better"] = mean_at_least(
            auto, max(0.0, hard.mean) - 0.005
        )
        measured.append(
            f"{name}: neighbours-4 {interval(hard, 'points')}, auto {interval(auto, 'points')}"
        )
        end = fmean(map(final, random))
        miss, solved = (fmean(row[key] for row in random) for key in ("miss", "solved"))
        notes.append(
            f"{name}: Random ends at {end:.4f}; in the second half of its runs {1 - solved:.0%} of "
            f"positives do not beat all negatives, and the miss is {miss:.2f}; runs of auto "
            f"{reaching(groups['auto'], random)}"
        )
    return decided(main, rest, "; ".join(measured), "; ".join(notes) + ".")


def draw_curves(
    axes: "Axes", groups: Groups, title: str, over: Literal["steps", "times"] = "times"
) -> None:
    """Mean MRR of every policy over processor time or steps, and the level where Random ends."""
    for colour, (name, rows) in zip(COLOURS, groups.items(), strict=False):
        count = len(rows)
        times, heights = (
            [sum(values) / count for values in zip(*(row[key] for row in rows), strict=True)]
            for key in (over, "mrr")
        )
        axes.plot(times, heights, color=colour, label=name)
    level = sum(final(row) for row in groups["random"]) / len(groups["random"])
    axes.axhline(level, color=COLOURS[0], lw=0.8, ls=":")
    axes.set_ylim(level - 0.15, None)
    across = "steps" if over == "steps" else "processor seconds, all overheads included"
    tidy(axes, title, across, "mean reciprocal rank")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
