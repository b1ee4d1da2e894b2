"""One picture of all settings: what batches of neighbours gain, against the miss of random ones.

    python -m eigenbatch_paper.law runs/reproduce/small law.png

Reads the finished claims that compare policies below a folder of `eigenbatch reproduce`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference, paired_difference
from eigenbatch_paper.claim import Row
from eigenbatch_paper.figures import BLUE, FAINT, ORANGE, tidy
from eigenbatch_paper.training_facts import grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"neighbours-4": BLUE, "greedy-64": ORANGE}
LABELS = {"neighbours-4": "neighbours-4 (similar)", "greedy-64": "greedy-64 (diverse)"}


APART = 0.25
"""Points between two labels."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The runs of one setting; `score` is what their claim compares."""

    name: str
    rows: Sequence[Row]
    score: Callable[[Row], float]
    miss: Callable[[Row], float]


@dataclass(frozen=True, slots=True)
class Point:
    """A policy in a setting: its paired gain over Random, and the miss of Random's batches."""

    setting: str
    policy: str
    miss: float
    gain: PairedDifference


def settings(folder: Path) -> list[Setting]:
    """Those of the claims that are found below `folder`."""
    found = []
    for n, rows in grouped(_rows(folder, "hard-batches"), "batch_size").items():
        found.append(Setting(f"translations, n = {n}", rows, _mrr, _miss))
    for tau, rows in grouped(_rows(folder, "miss-law"), "tau").items():
        found.append(Setting(f"translations, n = 64, tau = {tau}", rows, _mrr, _miss))
    for data, rows in grouped(_rows(folder, "guarded-batches"), "data").items():
        plain = [row for row in rows if not row.get("guard")]
        found.append(Setting(f"translations, {data}", plain, _mrr, _miss))
    if rows := _rows(folder, "caption-batches"):
        found.append(Setting("captions", rows, _mrr, _miss))
    if rows := _rows(folder, "similar-batches"):
        found.append(Setting("pictures", rows, _accuracy, _second_half))
    return found


def points(found: Sequence[Setting]) -> list[Point]:
    """Every policy with the seeds that Random has too; single seeds have no interval."""
    made = []
    for setting in found:
        groups = grouped(setting.rows, "selector")
        random = {row["seed"]: row for row in groups.pop("random", [])}
        misses = [miss for row in random.values() if isfinite(miss := setting.miss(row))]
        for policy in COLOURS:
            treated = [row for row in groups.get(policy, []) if row["seed"] in random]
            if treated and misses:
                gain = paired_difference(
                    [setting.score(row) for row in treated],
                    [setting.score(random[row["seed"]]) for row in treated],
                )
                made.append(Point(setting.name, policy, fmean(misses), gain))
    return made


def draw(made: Sequence[Point], figure: "Figure") -> None:
    """Gain in points over the miss, with 95 % intervals where there are enough seeds."""
    axes = figure.subplots()
    axes.axhline(0, color=FAINT, lw=0.8)
    for policy, colour in COLOURS.items():
        some = [point for point in made if point.policy == policy]
        for point in some:
            if point.gain.enough:
                ends = [100 * point.gain.low, 100 * point.gain.high]
                axes.plot([point.miss] * 2, ends, color=colour, lw=1.5)
        axes.plot(
            [point.miss for point in some],
            [100 * point.gain.mean for point in some],
            "o",
            color=colour,
            label=LABELS[policy],
        )
    height = float("inf")
    for point in sorted(made, key=lambda point: -point.gain.mean):
        if point.policy == "neighbours-4":
            height = min(100 * point.gain.mean, height - APART)
            axes.text(point.miss + 0.015, height, point.setting, fontsize=7, va="center")
    axes.set_xlim(0, 1)
    tidy(
        axes,
        "Similar batches pay where random ones are easy",
        "miss of random batches, second half of the run",
        "final score against Random, points",
    )
    axes.legend(frameon=False, fontsize=8)


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
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    draw(made, figure)
    figure.savefig(chosen.picture, dpi=150)
    print("| setting | policy | miss of Random | gain, points | seeds |")
    print("| --- | --- | --- | --- | --- |")
    for point in made:
        gain = point.gain
        ends = f" ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})" if gain.enough else ""
        print(
            f"| {point.setting} | {point.policy} | {point.miss:.2f} "
            f"| {100 * gain.mean:+.1f}{ends} | {gain.pairs} |"
        )


def _rows(folder: Path, claim: str) -> list[Row]:
    file = folder / claim / "rows.jsonl"
    if not file.is_file():
        return []
    return [row for line in file.read_text().splitlines() for row in json.loads(line)["rows"]]


def _mrr(row: Row) -> float:
    return float(row["mrr"][-1])


def _miss(row: Row) -> float:
    return float(row["miss"])


def _accuracy(row: Row) -> float:
    return float(row["final_accuracy"])


def _second_half(row: Row) -> float:
    values = row["readings"].get("miss") or [float("nan")]  # older records have none
    return fmean(values[len(values) // 2 :])


if __name__ == "__main__":
    main()
