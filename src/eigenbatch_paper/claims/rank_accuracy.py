"""Table "Effective rank vs. accuracy": does a higher rank mean a better probe?"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from eigenbatch.runs import bootstrap_interval
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale, Verdict
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.training_chunks import policies, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p3", "greedy-64")


def chunks(scale: Scale) -> list[Chunk]:
    """The table's four policies, paired by seed."""
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Correlation over final encoders, and over checkpoints within runs."""
    ranks, scores = [_rank(row) for row in rows], [facts.linear(row) for row in rows]
    low, value, high = _interval(ranks, scores)
    within = [_correlation(row["rankme"][1:], row["knn"][1:]) for row in rows]
    groups = facts.grouped(rows, "selector")
    means = {name: facts.mean(groups[name], _rank) for name in POLICIES}
    return facts.graded(
        {"rank and linear accuracy are positively correlated": low > 0},
        {"P3 has the highest rank": max(means, key=lambda name: means[name]) == "p3"},
        f"correlation over final encoders {value:+.2f} (95 % CI {low:+.2f} to {high:+.2f}); over "
        f"the checkpoints of a run {np.mean(within):+.2f} (RankMe of features and kNN); rank "
        + ", ".join(f"{name} {rank:.1f}" for name, rank in means.items()),
        "Rank grows while training goes on, and so does accuracy: within a run they go together "
        "whether or not one causes the other.",
    )


def _rank(row: Row) -> float:
    """RankMe of the encoder's features of all training images: no selector has a part in them."""
    return float(row["rankme"][-1])


def _interval(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Pearson's correlation with its bootstrapped 95 % interval."""
    low, high = bootstrap_interval(_correlation, x, y)
    return low, _correlation(x, y), high


def _correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's; zero if either side is constant."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def draw(rows: list[Row], figure: "Figure") -> None:
    """One dot a run."""
    axes = figure.subplots()
    for colour, (name, runs) in zip(
        POLICY_COLOURS, facts.grouped(rows, "selector").items(), strict=False
    ):
        axes.plot([_rank(r) for r in runs], [facts.linear(r) for r in runs], "o", color=colour,
                  label=facts.LABELS[name])  # fmt: skip
    axes.set(xlabel="effective rank of the features", ylabel="linear probe accuracy",
             title="One dot a training run")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="rank-accuracy",
    section="ImageNet-1k: Effective Rank vs. Accuracy, Table",
    statement="Policies with a higher effective rank of embeddings have a higher linear accuracy.",
    printed="rank 790 / 925 / 960 / 930, accuracy 69.8 / 71.1 / 71.4 / 71.0 "
    "(Random, P1, P3, Greedy-64)",
    criterion="The correlation of rank and linear accuracy over all runs is significantly positive "
    "(bootstrapped 95 % CI); and P3 has the highest mean rank.",
    runs="4 policies",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
