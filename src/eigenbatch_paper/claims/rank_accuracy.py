"""Table "Effective rank vs. accuracy": does a higher rank mean a better probe?"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from eigenbatch.runs import bootstrap_interval
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import GREY
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.tables import Table, mean_sem
from eigenbatch_paper.training_chunks import classes, policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p3", "greedy-64")
PRINTED = {
    "random": ("790 ± 6", "0.79", "69.8 ± 0.3"),
    "p1": ("925 ± 5", "0.93", "71.1 ± 0.3"),
    "p3": ("960 ± 4", "0.96", "71.4 ± 0.3"),
    "greedy-64": ("930 ± 5", "0.93", "71.0 ± 0.3"),
}
CORRELATION = 0.7  # over runs: what the printed means and standard errors amount to
PLATEAU = 0.9


def chunks(scale: Scale) -> list[Chunk]:
    """The table's four policies, paired by seed; ImageNet-1k for 200 epochs as printed."""
    if scale == "paper":
        return policies(scale, POLICIES, recipe="imagenet1k", epochs=200)
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Correlation over final encoders, and over checkpoints within runs."""
    ranks, scores = [_rank(row) for row in rows], [_linear(row) for row in rows]
    low, value, high = _interval(ranks, scores)
    features = _interval([float(row["rankme"][-1]) for row in rows], scores)
    within = [_correlation(row["rankme"][1:], row["knn"][1:]) for row in rows]
    groups = facts.grouped(rows, "selector")
    above = {
        name: facts.gain(groups["p3"], groups[name], _rank) for name in POLICIES if name != "p3"
    }
    means = {name: facts.mean(groups[name], _rank) for name in POLICIES}
    return decided(
        {"rank and linear accuracy are positively correlated": interval(low, high, CORRELATION)},
        {
            "P3 has the highest rank": all_of(effect(one) for one in above.values()),
            "P3's R_eff reaches 0.9 of the number of classes": facts.mean(groups["p3"], _share)
            >= PLATEAU,
        },
        f"correlation over final encoders {value:+.2f} (95 % CI {low:+.2f} to {high:+.2f}); rank "
        + ", ".join(f"{name} {rank:.1f}" for name, rank in means.items()),
        "The rank is the entropy form of the batch embeddings in the last epoch, as printed; a "
        "selector has a part in it. With RankMe of the features of all training images the "
        f"correlation is {features[1]:+.2f} ({features[0]:+.2f} to {features[2]:+.2f}); over the "
        f"checkpoints of a run {np.mean(within):+.2f}, where time changes both whether or not "
        "one causes the other. No rank can exceed the dimension of the embeddings: the printed 790 "
        "to 960 cannot be those of d = 256.",
    )


def _rank(row: Row) -> float:
    """Mean entropy rank of the batch embeddings over the last epoch."""
    ranks, steps = row["readings"]["entropy_rank"], row["read_at"]
    last = steps[-1] - row["steps_per_epoch"]
    return float(np.mean([rank for rank, step in zip(ranks, steps, strict=True) if step > last]))


def _share(row: Row) -> float:
    return _rank(row) / classes(row)


def _linear(row: Row) -> float:
    """The printed probe: SGD, 90 epochs at 0.03."""
    return float(row["final"]["linear_sgd"])


def table(rows: list[Row]) -> Table:
    """Table "Effective rank of embeddings and linear accuracy"."""
    groups = facts.grouped(rows, "selector")
    lines = []
    for name, printed in PRINTED.items():
        ours = (
            mean_sem(map(_rank, groups[name])),
            f"{facts.mean(groups[name], _share):.2f}",
            mean_sem(map(_linear, groups[name]), scale=100),
        )
        lines.append((facts.LABELS[name], tuple(zip(ours, printed, strict=True))))
    return Table(
        "Effective rank of the embeddings in the last epoch, and the linear probe.",
        ("Policy", "R_eff", "R_eff / classes", "Linear accuracy, %"),
        lines,
    )


def _interval(x: list[float], y: list[float]) -> tuple[float, float, float]:
    """Pearson's correlation with its bootstrapped 95 % interval."""
    low, high = bootstrap_interval(_correlation, x, y)
    return low, _correlation(x, y), high


def _correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's; zero if either side is constant."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) > 0 and np.ptp(b) > 0 else 0.0


def draw(rows: list[Row], figure: "Figure") -> None:
    """Mean and standard error of each policy, a dot a run, and the printed plateau."""
    axes = figure.subplots()
    for colour, (name, runs) in zip(
        POLICY_COLOURS, facts.grouped(rows, "selector").items(), strict=False
    ):
        x, y = [_share(r) for r in runs], [100 * _linear(r) for r in runs]
        axes.plot(x, y, ".", color=colour, alpha=0.4)
        axes.errorbar(np.mean(x), np.mean(y), xerr=_sem(x), yerr=_sem(y), fmt="o", color=colour,
                      capsize=3, label=facts.LABELS[name])  # fmt: skip
    axes.axvline(PLATEAU, color=GREY, ls="--", lw=1)
    axes.set(xlabel="R_eff of the embeddings / number of classes", ylabel="linear accuracy, %",
             title="Mean ± s.e.m. over seeds; dashed: the printed plateau at 0.9")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _sem(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


CLAIM = training_claim(
    name="rank-accuracy",
    section="ImageNet-1k: Effective Rank vs. Accuracy, Table",
    statement="Policies with a higher effective rank of embeddings have a higher linear accuracy.",
    printed="rank 790 / 925 / 960 / 930, accuracy 69.8 / 71.1 / 71.4 / 71.0 "
    "(Random, P1, P3, Greedy-64)",
    criterion="The correlation of rank and linear accuracy over all runs is positive (bootstrapped "
    "95 % CI beside zero and the 0.7 that the printed table amounts to); and P3 has the highest "
    "rank, at least 0.9 of the number of classes.",
    runs="4 policies",
    paper_size="4 policies: ImageNet-1k, ResNet-50, n=4096, tau=0.1, 200 epochs",
    chunks=chunks,
    judge=judge,
    draw=draw,
    table=table,
)
