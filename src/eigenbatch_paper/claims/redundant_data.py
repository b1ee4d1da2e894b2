"""Beyond the paper: redundant, long-tailed data, where diversity has its best chance."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim
from eigenbatch_paper.verdict import Verdict, decided, effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("p3", "greedy-64", "greedy-pool", "neighbours")

SIZES: dict[Scale, dict[str, int]] = {  # what the largest class has images for
    "small": {"train_images": 5120, "pool_size": 2560},
    "paper": {"train_images": 26_000},
}


def chunks(scale: Scale) -> list[Chunk]:
    """Class frequencies 1 / rank, each image four times."""
    changes = SIZES.get(scale, {})
    return policies(scale, ("random", *POLICIES), FEWER_SEEDS, copies=4, **changes)


def judge(rows: list[Row]) -> Verdict:
    """Accuracy on a balanced test set."""
    groups = facts.grouped(rows, "selector")
    knn = {name: facts.gain(groups[name], groups["random"], facts.accuracy) for name in POLICIES}
    probe = {name: facts.gain(groups[name], groups["random"], facts.linear) for name in POLICIES}
    return decided(
        {"Greedy-64 gains accuracy": effect(knn["greedy-64"])},
        {"and P3 does": effect(knn["p3"])},
        "kNN accuracy against Random: " + facts.listed(knn, "points")
        + "; linear: " + facts.listed(probe, "points"),
        "The kNN and the probe use the long-tailed labels too, which limits all policies alike.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains over Random."""
    facts.draw_gains(
        figure, rows, POLICIES, {"kNN accuracy": facts.accuracy, "linear accuracy": facts.linear}
    )
    figure.suptitle("Long-tailed data, every image four times; blue: significant", fontsize=10)


CLAIM = training_claim(
    name="redundant-data",
    section="Beyond the paper",
    statement="On redundant, long-tailed data diverse batches train better than random ones.",
    printed="not in the paper",
    criterion="Greedy-64's accuracy is significantly above Random's; and P3's is.",
    runs="5 policies, long-tailed, 4 copies",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
