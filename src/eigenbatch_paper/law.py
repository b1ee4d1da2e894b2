"""One picture of all settings: what batches of neighbours gain, where random ones are how hard.

Hard means: some positives do not beat all negatives. The second panel has the miss, which also
depends on the temperature. Batches can be easy from memory alone: such settings lie below.

    python -m eigenbatch_paper.law runs/reproduce/small law.png

Reads the finished claims that compare policies below a folder of `eigenbatch reproduce`.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from eigenbatch.runs import PairedDifference, paired_difference
from eigenbatch_paper.claim import Row
from eigenbatch_paper.figures import BLUE, FAINT, ORANGE, tidy
from eigenbatch_paper.reproduce import kept_lines
from eigenbatch_paper.training_facts import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"neighbours": BLUE, "greedy-64": ORANGE}
LABELS = {"neighbours": "neighbours (similar)", "greedy-64": "greedy-64 (diverse)"}


APART = 0.28
"""Points between two numbers of settings, which stand in one column where many are close."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The runs of one setting; `score` is what their claim compares."""

    name: str
    rows: Sequence[Row]
    score: Callable[[Row], float]
    solved: Callable[[Row], float]
    miss: Callable[[Row], float]


@dataclass(frozen=True, slots=True)
class Point:
    """A policy in a setting: its paired gain over Random, and how hard Random's batches are."""

    setting: str
    policy: str
    unsolved: float  # positives that do not beat all negatives
    miss: float
    gain: PairedDifference


def settings(folder: Path) -> list[Setting]:
    """Those of the claims that are found below `folder`."""
    found = []
    for claim in ("planned-batches", "gap-rule"):
        for (data, n), rows in grouped(_rows(folder, claim), "data", "batch_size").items():
            found.append(Setting(f"{data}, n = {n}", rows, _mrr, _solved, _miss))
    for tau, rows in grouped(_rows(folder, "miss-law"), "tau").items():
        found.append(Setting(f"translations, n = 64, tau = {tau}", rows, _mrr, _solved, _miss))
    for data, rows in grouped(_rows(folder, "copied-pairs"), "data").items():
        found.append(Setting(f"translations, {data}", rows, _mrr, _solved, _miss))
    names = ("similar-batches", "wall-clock", "picture-batches")
    pictures = [row for name in names for row in _rows(folder, name)]
    once = {(row["data"], row["selector"], row["seed"]): row for row in pictures}
    for data, rows in grouped(list(once.values()), "data").items():
        name = "pictures, CIFAR-10" if data == "cifar10" else "pictures, 100 classes"
        found.append(Setting(name, rows, _accuracy, *_READINGS))
    return found


def points(found: Sequence[Setting]) -> list[Point]:
    """Every policy with the seeds that Random has too; single seeds have no interval."""
    made = []
    for setting in found:
        groups = grouped(setting.rows, "selector")
        random = {row["seed"]: row for row in groups.pop("random", [])}
        known = [row for row in random.values() if isfinite(setting.solved(row))]
        for policy in COLOURS:
            treated = [row for row in groups.get(policy, []) if row["seed"] in random]
            if treated and known:
                gain = paired_difference(
                    [setting.score(row) for row in treated],
                    [setting.score(random[row["seed"]]) for row in treated],
                )
                unsolved = 1 - fmean(map(setting.solved, known))
                miss = fmean(map(setting.miss, known))
                made.append(Point(setting.name, policy, unsolved, miss, gain))
    return made


def draw(made: Sequence[Point], figure: "Figure") -> None:
    """Gain in points over both measures of hardness, with 95 % intervals of enough seeds."""
    figure.set_size_inches(13, 4.6)
    beaten, missed = figure.subplots(1, 2, sharey=True)
    _draw_over(beaten, made, lambda point: point.unsolved)
    _draw_over(missed, made, lambda point: point.miss)
    similar = sorted((p for p in made if p.policy == "neighbours"), key=lambda p: -p.gain.mean)
    _number(beaten, [(point.unsolved, 100 * point.gain.mean) for point in similar], 0.03, 0.015)
    _number(missed, [(point.miss, 100 * point.gain.mean) for point in similar], 0.1, 0.14)
    names = "\n".join(f"{i}  {point.setting}" for i, point in enumerate(similar, 1))
    missed.text(1.03, 1, names, fontsize=8, va="top", transform=missed.transAxes, linespacing=1.5)
    beaten.set_xscale("function", functions=(_root, lambda x: x * np.abs(x)))
    beaten.set_xlim(-0.0005, 1.5 * max(point.unsolved for point in made))
    beaten.set_xticks([0, 0.01, 0.05, 0.1, 0.2, 0.5])
    tidy(
        beaten,
        "Similar batches pay where random ones are easy, but not from memory",
        "share of positives that do not beat all negatives, second half of the run",
        "final score against Random, points",
    )
    beaten.legend(frameon=False, fontsize=8)
    tidy(missed, "The same over the miss", "miss of random batches, second half of the run", "")


def _draw_over(axes: "Axes", made: Sequence[Point], place: Callable[[Point], float]) -> None:
    axes.axhline(0, color=FAINT, lw=0.8)
    for policy, colour in COLOURS.items():
        some = [point for point in made if point.policy == policy]
        for point in some:
            if point.gain.enough:
                ends = [100 * point.gain.low, 100 * point.gain.high]
                axes.plot([place(point)] * 2, ends, color=colour, lw=1.5)
        heights = [100 * point.gain.mean for point in some]
        axes.plot(list(map(place, some)), heights, "o", color=colour, label=LABELS[policy])


def _number(
    axes: "Axes", places: Sequence[tuple[float, float]], crowded: float, column: float
) -> None:
    """Number points from the top; left of `crowded` in a column, with lines to their points."""
    lowest = inf
    for number, (x, y) in enumerate(places, 1):
        if x < crowded:
            lowest = height = min(y, lowest - APART)
            line = {"arrowstyle": "-", "color": FAINT, "lw": 0.6, "relpos": (0, 0.5)}
            axes.annotate(
                str(number), (x, y), (column, height), fontsize=7, va="center", arrowprops=line
            )
        else:
            axes.annotate(str(number), (x, y), (5, 5), textcoords="offset points", fontsize=7)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the picture and print its table."""
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(
        prog="python -m eigenbatch_paper.law",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="such as runs/reproduce/small")
    parser.add_argument("picture", type=Path, help="where to write it, .png or .svg")
    chosen = parser.parse_args(arguments)
    made = points(settings(chosen.folder))
    if not made:
        parser.error(f"no runs that compare policies under {chosen.folder}")
    figure = Figure(layout="constrained")
    draw(made, figure)
    figure.savefig(chosen.picture, dpi=150)
    print("| setting | policy | beaten positives of Random | its miss | gain, points | seeds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for point in made:
        gain = point.gain
        ends = f" ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})" if gain.enough else ""
        print(
            f"| {point.setting} | {point.policy} | {point.unsolved:.1%} | {point.miss:.2f} "
            f"| {100 * gain.mean:+.1f}{ends} | {gain.pairs} |"
        )


def _root(x: np.ndarray) -> np.ndarray:
    """The square root, continued below zero for the margin of an axis."""
    root: np.ndarray = np.sign(x) * np.sqrt(np.abs(x))
    return root


def _rows(folder: Path, claim: str) -> list[Row]:
    lines = kept_lines(folder / claim / "rows.jsonl").values()
    return [row for line in lines for row in line["rows"]]


def _mrr(row: Row) -> float:
    return float(row["mrr"][-1])


def _miss(row: Row) -> float:
    return float(row["miss"])


def _accuracy(row: Row) -> float:
    return float(row["final_accuracy"])


def _solved(row: Row) -> float:
    return float(row.get("solved", "nan"))  # older records have none


def _second_half(name: str, row: Row) -> float:
    values = row["readings"].get(name) or [float("nan")]
    return fmean(values[len(values) // 2 :])


_READINGS = (partial(_second_half, "solved_share"), partial(_second_half, "miss"))


if __name__ == "__main__":
    main()
