"""Beyond the paper: what selection does to how often each image is seen."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, any_of, decided, effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODES = ("free", "stream", "epoch")


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Greedy-64 in each coverage mode."""
    return [
        chunk for mode in MODES for chunk in policies(scale, ("random", "greedy-64"), coverage=mode)
    ]


def judge(rows: list[Row]) -> Verdict:
    """Greedy-64 against Random in the same mode."""
    gains = _gains(rows)
    return decided(
        {"Greedy-64 gains accuracy in some mode": any_of(effect(d) for d in gains.values())},
        {"in every mode": all_of(effect(d) for d in gains.values())},
        "accuracy of Greedy-64 over Random: " + facts.listed(gains, "points"),
        "free: batches from any pool, images may be skipped; epoch: every image once an epoch; "
        "stream: every image soon. The paper does not say which it uses.",
    )


def _gains(rows: list[Row]) -> dict[str, PairedDifference]:
    groups = facts.grouped(rows, "coverage", "selector")
    return {
        mode: facts.gain(groups[mode, "greedy-64"], groups[mode, "random"], facts.accuracy)
        for mode in MODES
    }


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains by mode."""
    axes = figure.subplots()
    gains = _gains(rows)
    label = "accuracy of Greedy-64 over Random, points"
    facts.draw_differences(axes, list(gains), list(gains.values()), label)
    axes.set_title("By coverage mode; blue: significant at 95 %", fontsize=10)


CLAIM = training_claim(
    name="coverage-modes",
    section="Beyond the paper (left open in Algorithm 1)",
    statement="Selection helps whether or not every image must be seen once an epoch.",
    printed="not in the paper",
    criterion="Greedy-64's accuracy is significantly above Random's in some coverage mode; and in "
    "all three.",
    runs="2 policies x 3 modes",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
