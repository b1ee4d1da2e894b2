"""Section "Effective Rank vs. Accuracy": accuracy stops growing at R_eff / C = 0.9."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eigenbatch.runs import bootstrap_interval
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import GREY
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.training_chunks import classes, policies, training_claim
from eigenbatch_paper.verdict import Verdict, decided, inside, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p3", "greedy-64")
PLATEAU = 0.9
FLAT = 0.3  # a correlation between it and its negative is none


def chunks(scale: Scale) -> list[Chunk]:
    """The runs of the table of effective ranks."""
    if scale == "paper":
        return policies(scale, POLICIES, recipe="imagenet1k", epochs=200)
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Whether the plateau can be reached at all, and how accuracy grows on both sides of it."""
    points = [point for row in rows for point in _points(row)]
    beyond = sum(point.rank >= PLATEAU for point in points)
    below, above = (_growth(rows, above=side) for side in (False, True))
    reachable = min(row["dim"] / classes(row) for row in rows)
    return decided(
        {
            "R_eff can reach 0.9 of the number of classes": reachable >= PLATEAU,
            "accuracy grows with R_eff up to there": interval(*below),
            "it does not grow beyond": inside(*above, -FLAT, FLAT),
        },
        {},
        f"R_eff / C at most {max(point.rank for point in points):.2f} (d / C = {reachable:.2f}); "
        f"{beyond} of {len(points)} evaluations are beyond 0.9; correlation of runs at the same "
        f"epoch {below[0]:.2f} to {below[1]:.2f} below it (95 %)",
        "Both grow with time, so that only runs at the same epoch are compared. R_eff is the "
        "entropy rank of the batch embeddings beside each evaluation. It cannot exceed d: with the "
        "printed d = 256 and C = 1,000 the plateau is out of reach, and the printed 0.79 to 0.96 "
        "are impossible.",
    )


class _Point(NamedTuple):
    epoch: float
    rank: float  # R_eff / C
    accuracy: float


def _points(row: Row) -> list[_Point]:
    """Every evaluation after the first epoch."""
    steps, ranks = np.array(row["read_at"]), np.array(row["readings"]["entropy_rank"])
    found = []
    for epoch, accuracy in zip(row["curve_epochs"], row["knn"], strict=True):
        if epoch > 0:
            nearest = int(np.abs(steps - epoch * row["steps_per_epoch"]).argmin())
            found.append(_Point(epoch, float(ranks[nearest]) / classes(row), float(accuracy)))
    return found


def _growth(rows: list[Row], *, above: bool) -> tuple[float, float]:
    """95 % interval of the correlation of rank and accuracy on one side of the plateau.

    Runs are resampled, not evaluations. NaN if fewer than three runs have evaluations there.
    """
    runs = [[p for p in _points(row) if (p.rank >= PLATEAU) == above] for row in rows]
    runs = [points for points in runs if points]
    if len(runs) < 3:
        return math.nan, math.nan
    return bootstrap_interval(_correlation, runs)


def _correlation(runs: Sequence[Sequence[_Point]]) -> float:
    """Correlation of what is left of rank and accuracy without the means of each epoch."""
    by_epoch: dict[float, list[_Point]] = {}
    for point in (point for points in runs for point in points):
        by_epoch.setdefault(point.epoch, []).append(point)
    rests = [
        np.array([(p.rank, p.accuracy) for p in points]) - np.mean([p[1:] for p in points], axis=0)
        for points in by_epoch.values()
    ]
    x, y = np.concatenate(rests).T
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def draw(rows: list[Row], figure: "Figure") -> None:
    """Every evaluation of every run."""
    axes = figure.subplots()
    groups = facts.grouped(rows, "selector")
    for colour, (name, runs) in zip(POLICY_COLOURS, groups.items(), strict=False):
        _, x, y = zip(*(point for row in runs for point in _points(row)), strict=True)
        axes.plot(x, y, ".", color=colour, label=facts.LABELS[name])
    axes.axvline(PLATEAU, color=GREY, ls="--", lw=1)
    axes.set(xlabel="R_eff of the embeddings / number of classes", ylabel="kNN accuracy",
             title="One dot per evaluation; dashed: the printed plateau")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="rank-plateau",
    section="ImageNet-1k: Effective Rank vs. Accuracy, Figure",
    statement="Accuracy grows with R_eff and levels off once R_eff / C is about 0.9.",
    printed="plateau at R_eff / C of 0.9 or more",
    criterion="The dimension allows R_eff / C = 0.9; over runs at the same epoch accuracy is "
    "correlated with R_eff below it, and by at most 0.3 either way beyond it.",
    runs="4 policies",
    paper_size="4 policies: ImageNet-1k, ResNet-50, n=4096, tau=0.1, 200 epochs",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
