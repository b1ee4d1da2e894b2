"""Section "Effective Rank vs. Accuracy": accuracy stops growing at R_eff / C = 0.9."""

from typing import TYPE_CHECKING

import numpy as np

from eigenbatch.runs import bootstrap_interval
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import GREY
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.training_chunks import classes, policies, training_claim
from eigenbatch_paper.verdict import Finding, Verdict, decided, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p3", "greedy-64")
PLATEAU = 0.9


def chunks(scale: Scale) -> list[Chunk]:
    """The runs of the table of effective ranks."""
    if scale == "paper":
        return policies(scale, POLICIES, recipe="imagenet1k", epochs=200)
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Whether the plateau can be reached at all, and the slopes on both sides of it."""
    points = [point for row in rows for point in _points(row)]
    below = [point for point in points if point[0] < PLATEAU]
    above = [point for point in points if point[0] >= PLATEAU]
    reachable = min(row["dim"] / classes(row) for row in rows)
    return decided(
        {
            "R_eff can reach 0.9 of the number of classes": reachable >= PLATEAU,
            "accuracy grows with R_eff up to there": _slope(below),
        },
        {"some evaluation is beyond": bool(above)},
        f"R_eff / C at most {max(x for x, _ in points):.2f} (d / C = {reachable:.2f}); "
        f"{len(above)} of {len(points)} evaluations are beyond 0.9",
        "R_eff is the entropy rank of the batch embeddings beside each evaluation. It cannot "
        "exceed d: with the printed d = 256 and C = 1,000 the plateau is out of reach, and the "
        "printed 0.79 to 0.96 are impossible.",
    )


def _points(row: Row) -> list[tuple[float, float]]:
    """(R_eff / C, kNN accuracy) at every evaluation after the first epoch."""
    steps, ranks = np.array(row["read_at"]), np.array(row["readings"]["entropy_rank"])
    found = []
    for epoch, accuracy in zip(row["curve_epochs"], row["knn"], strict=True):
        if epoch > 0:
            nearest = int(np.abs(steps - epoch * row["steps_per_epoch"]).argmin())
            found.append((float(ranks[nearest]) / classes(row), float(accuracy)))
    return found


def _slope(points: list[tuple[float, float]]) -> Finding:
    """Whether accuracy and rank are positively correlated over the evaluations."""
    if len(points) < 3:
        return "open"
    x, y = zip(*points, strict=True)
    return interval(*bootstrap_interval(_correlation, x, y))


def _correlation(x: object, y: object) -> float:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def draw(rows: list[Row], figure: "Figure") -> None:
    """Every evaluation of every run."""
    axes = figure.subplots()
    groups = facts.grouped(rows, "selector")
    for colour, (name, runs) in zip(POLICY_COLOURS, groups.items(), strict=False):
        x, y = zip(*(point for row in runs for point in _points(row)), strict=True)
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
    criterion="The dimension allows R_eff / C = 0.9, and below it accuracy grows with R_eff over "
    "all evaluations; and some evaluation lies beyond.",
    runs="4 policies",
    paper_size="4 policies: ImageNet-1k, ResNet-50, n=4096, tau=0.1, 200 epochs",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
