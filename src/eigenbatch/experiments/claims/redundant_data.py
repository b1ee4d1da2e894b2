"""Beyond the paper: redundant, long-tailed data, where diversity has its best chance."""

from typing import TYPE_CHECKING

from eigenbatch.experiments.claim import Chunk, Claim, Row, Scale, Verdict
from eigenbatch.experiments.training_chunks import (
    FEWER_SEEDS,
    compute,
    minutes,
    policies,
    size_text,
)
from eigenbatch.experiments.training_facts import (
    accuracy,
    better,
    draw_differences,
    gain,
    graded,
    grouped,
    linear,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("p3", "greedy-64", "greedy-pool", "clustered")


def chunks(scale: Scale) -> list[Chunk]:
    """Class frequencies 1 / rank, each image four times."""
    return policies(scale, ("random", *POLICIES), FEWER_SEEDS, copies=4)


def judge(rows: list[Row]) -> Verdict:
    """Accuracy on a balanced test set."""
    groups = grouped(rows, "selector")
    knn = {name: gain(groups[name], groups["random"], accuracy) for name in POLICIES}
    probe = {name: gain(groups[name], groups["random"], linear) for name in POLICIES}
    return graded(
        {"Greedy-64 gains accuracy": better(knn["greedy-64"])},
        {"and P3 does": better(knn["p3"])},
        "kNN accuracy against Random: " + ", ".join(f"{n} {percent(d)}" for n, d in knn.items())
        + "; linear: " + ", ".join(f"{n} {percent(d)}" for n, d in probe.items()),
        "The kNN and the probe use the long-tailed labels too, which limits all policies alike.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains over Random."""
    groups = grouped(rows, "selector")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, quantity, what in ((left, accuracy, "kNN"), (right, linear, "linear")):
        gains = [gain(groups[name], groups["random"], quantity) for name in POLICIES]
        draw_differences(axes, POLICIES, gains, f"{what} accuracy over Random, points")
    figure.suptitle("Long-tailed data, every image four times; blue: significant", fontsize=10)


CLAIM = Claim(
    name="redundant-data",
    section="Beyond the paper",
    statement="On redundant, long-tailed data diverse batches train better than random ones.",
    printed="not in the paper",
    criterion="Greedy-64's accuracy is significantly above Random's; and P3's is.",
    size={
        s: size_text(s, "5 policies, long-tailed, 4 copies") for s in ("smoke", "small", "paper")
    },
    minutes=minutes({"smoke": 10, "small": 15, "paper": 15}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
