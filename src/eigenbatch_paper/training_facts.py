"""Rows of training runs, grouped, compared in pairs and judged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenbatch.runs import (
    PairedDifference,
    first_crossing,
    paired_difference,
)
from eigenbatch_paper.claim import Row
from eigenbatch_paper.figures import BLUE, FAINT, GREY, ORANGE, POLICIES, YELLOW
from eigenbatch_paper.tables import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Quantity = Callable[[Row], float]
LABELS = {
    "random": "Random", "p1": "P1 (most diverse)", "p2": "P2 (least diverse)",
    "p3": "P3 (balanced)", "p3-1.05-1.15": "P3 in [1.05, 1.15]",
    "greedy-16": "Greedy-16", "greedy-64": "Greedy-64", "greedy-256": "Greedy-256",
    "greedy-pool": "Greedy, whole pool", "recipe": "P3, then Greedy-64", "clustered": "Clustered",
    "blend": "Blend", "neighbours": "Neighbours (similar)",
}  # fmt: skip


def grouped(rows: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    """Rows by one setting (or a tuple of several), each group in the order of its seeds."""
    groups: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        values = tuple(row.get(name) for name in names)
        groups.setdefault(values[0] if len(values) == 1 else values, []).append(row)
    return groups


def accuracy(row: Row) -> float:
    """Final kNN accuracy."""
    return float(row["final_accuracy"])


def linear(row: Row) -> float:
    """Accuracy of the linear probe at the end."""
    return float(row["final"]["linear"])


def accuracy_area(row: Row) -> float:
    """AUAC: mean kNN accuracy over the first half of the epochs."""
    return float(row["accuracy_area"])


def loss_area(row: Row) -> float:
    """AULC: the mean loss of an epoch, summed over epochs."""
    return float(row["loss_area"])


def peak_sigma(row: Row) -> float:
    """The largest top eigenvalue of any reading of the run, that of the first step included."""
    return float(row["peak_sigma"])


def collapsed(row: Row) -> bool:
    """Sigma-hat above 0.99; the printed second flag is not used, see docs/paper-notes.md."""
    return bool(row["collapsed"])


TARGET = 67.5 / 69.0
"""Share of the final accuracy of P3 that times are measured to: 67.5 of 69.0 % in the paper."""
CIFAR_TARGET = 0.9
MOCO_TARGET = 70 / 74.2
"""Of the final accuracy of Random."""


def target_of(rows: Sequence[Row], share: float) -> float:
    """A share of the mean final accuracy of a policy that was named beforehand."""
    return share * mean(rows, accuracy)


@dataclass(frozen=True, slots=True)
class Until:
    """How long a run takes to an accuracy; its whole length if it does not get there."""

    target: float
    over: str  # the list of a row that it is read from

    def __call__(self, row: Row) -> float:
        """Its time or its epochs."""
        length: float = row[self.over][-1]
        return min(first_crossing(row[self.over], row["knn"], self.target), length)

    def reached(self, row: Row) -> bool:
        """Whether the run gets there."""
        return bool(max(row["knn"]) >= self.target)


def time_to(target: float) -> Until:
    """Processor seconds to an accuracy, selection and cache refresh included."""
    return Until(target, "times")


def epochs_to(target: float) -> Until:
    """Epochs to an accuracy."""
    return Until(target, "curve_epochs")


def unreached(rows: Sequence[Row], target: float) -> str:
    """The target and how many runs do not reach it, as a sentence."""
    count = sum(not time_to(target).reached(row) for row in rows)
    if not count:
        return f"Target {target:.3f} kNN accuracy."
    return (
        f"Target {target:.3f} kNN accuracy; {count} of {len(rows)} runs do not reach it and count "
        "with their whole time. A pair in which neither does says nothing about time."
    )


def at_least(text: str, rows: Sequence[Row], target: float) -> str:
    """A mean time or number of epochs: a lower bound if some runs do not reach the target."""
    bound = text != NONE and not all(map(time_to(target).reached, rows))
    return f"at least {text}" if bound else text


def mean(rows: Sequence[Row], quantity: Quantity) -> float:
    """Mean over seeds."""
    return float(np.mean([quantity(row) for row in rows]))


def gain(treated: Sequence[Row], baseline: Sequence[Row], quantity: Quantity) -> PairedDifference:
    """Paired difference of a quantity over the seeds both have."""
    pairs = paired(treated, baseline)
    return paired_difference([quantity(ours) for ours, _ in pairs],
                             [quantity(theirs) for _, theirs in pairs])  # fmt: skip


def saved(treated: Sequence[Row], baseline: Sequence[Row], quantity: Quantity) -> PairedDifference:
    """Relative saving 1 - treated / baseline: 0.15 is 15 % less.

    NaN if there is a pair of which neither run reaches the target of a time: two lengths of runs
    say nothing. If one of them does, the other's length is a bound in its favour.
    """
    shares = [_share_saved(ours, theirs, quantity) for ours, theirs in paired(treated, baseline)]
    return paired_difference(shares, [0.0] * len(shares))


def _share_saved(ours: Row, theirs: Row, quantity: Quantity) -> float:
    if isinstance(quantity, Until) and not (quantity.reached(ours) or quantity.reached(theirs)):
        return math.nan
    a, b = quantity(ours), quantity(theirs)
    return 1 - a / b if math.isfinite(a) and math.isfinite(b) and b > 0 else math.nan


def paired(treated: Sequence[Row], baseline: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Runs of the same seed, which both must have."""
    by_seed = {row["seed"]: row for row in baseline}
    return [(row, by_seed[row["seed"]]) for row in treated if row["seed"] in by_seed]


def percent(difference: PairedDifference, unit: str = "%") -> str:
    """A difference of shares, with its interval, e.g. "+1.2 % ± 0.8"; unit: "%" or "points"."""
    if not math.isfinite(difference.mean):
        return "not known, for lack of a time in some pair"
    half = 100 * difference.half_width
    text = f"{100 * difference.mean:+.1f} {unit}"
    return f"{text} ± {half:.1f}" if math.isfinite(half) else text


def listed(differences: Mapping[Any, PairedDifference], unit: str = "%") -> str:
    """Differences with their names."""
    return ", ".join(f"{name} {percent(one, unit)}" for name, one in differences.items())


def draw_differences(
    axes: "Axes", names: Sequence[str], differences: Sequence[PairedDifference], label: str
) -> None:
    """One line a policy: the paired difference to the baseline with its 95 % interval."""
    for place, one in enumerate(differences):
        colour = BLUE if one.significant else GREY
        half = one.half_width if math.isfinite(one.half_width) else 0.0
        if math.isfinite(one.mean):
            axes.errorbar(100 * one.mean, place, xerr=100 * half, fmt="o", color=colour, capsize=3)
        else:
            axes.text(0, place, " no value in some run", va="center", color=colour)
    axes.axvline(0, color=FAINT, lw=1)
    axes.set_yticks(range(len(names)), [LABELS.get(name, name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_gains(
    figure: "Figure", rows: Sequence[Row], names: Sequence[str], panels: Mapping[str, Quantity]
) -> None:
    """A panel for every quantity: what each policy gains over Random."""
    groups = grouped(rows, "selector")
    for axes, (label, quantity) in zip(
        figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True
    ):
        gains = [gain(groups[name], groups["random"], quantity) for name in names]
        draw_differences(axes, names, gains, f"{label} over Random, points")


def draw_band(axes: "Axes", row: Row, *, smoothing: float = 0.1) -> None:
    """The gradient of one run inside the printed and the certified band.

    Only the gradient is a moving average; the printed ceiling is never drawn below its floor.
    """
    steps, reading = row["read_at"], row["readings"]
    floor = reading["paper_lower"]
    ceiling = [max(pair) for pair in zip(reading["paper_upper"], floor, strict=True)]
    axes.fill_between(steps, floor, ceiling, color=YELLOW, alpha=0.15, lw=0)
    axes.plot(steps, floor, "k--", lw=1, label="printed floor")
    axes.plot(steps, ceiling, color="red", lw=1, label="printed ceiling")
    axes.fill_between(
        steps, reading["certified_lower"], reading["certified_upper"], color=BLUE, alpha=0.5, lw=0,
        label="certified band",
    )  # fmt: skip
    smooth, average = [], reading["gradient"][0]
    for value in reading["gradient"]:
        average += smoothing * (value - average)
        smooth.append(average)
    axes.plot(steps, smooth, color=ORANGE, lw=1.2, label="measured (moving average, 0.1)")
    axes.set(yscale="log", xlabel="step", ylabel="mean squared gradient")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def draw_mean(
    axes: "Axes",
    places: Sequence[Sequence[float]],
    heights: Sequence[Sequence[float]],
    colour: str,
    label: str | None = None,
) -> None:
    """A thick line for the mean of the seeds, a faint one for each."""
    for x, y in zip(places, heights, strict=True):
        axes.plot(x, y, color=colour, alpha=0.25, lw=0.7)
    axes.plot(places[0], np.mean(heights, axis=0), color=colour, lw=1.8, label=label)


def draw_curves(
    axes: "Axes", groups: Mapping[str, Sequence[Row]], *, over: str, label: str
) -> None:
    """Accuracy of every group over epochs or processor time: mean line, range of seeds shaded."""
    for colour, (name, rows) in zip(POLICIES, groups.items(), strict=False):
        heights = np.array([row["knn"] for row in rows])
        places = np.mean([row[over] for row in rows], axis=0)
        axes.plot(places, heights.mean(0), color=colour, label=LABELS.get(name, name))
        axes.fill_between(places, heights.min(0), heights.max(0), color=colour, alpha=0.12, lw=0)
    axes.set_xlabel(label)
    axes.set_ylabel("kNN accuracy")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
