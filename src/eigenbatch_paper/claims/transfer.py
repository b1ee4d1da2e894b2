"""Section "Robustness": frozen features on another data set."""

from typing import TYPE_CHECKING, Any

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale, Verdict
from eigenbatch_paper.training_chunks import policies, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chunks(scale: Scale) -> list[Chunk]:
    """Random and P3; digits are the other data set, which needs no download."""
    changes: dict[str, Any] = {} if scale == "small" else {"transfer": "digits"}
    return policies(scale, ("random", "p3", "greedy-64"), **changes)


def judge(rows: list[Row]) -> Verdict:
    """Linear probes on the other data set, and the paper's own on the training set's labels."""
    groups = facts.grouped(rows, "selector")
    p3 = facts.gain(groups["p3"], groups["random"], _transfer)
    greedy = facts.gain(groups["greedy-64"], groups["random"], _transfer)
    own = facts.gain(groups["p3"], groups["random"], _sgd)
    return facts.graded(
        {"P3 does not lose": p3.mean >= 0 or not p3.significant},
        {"P3 gains": facts.better(p3)},
        "linear accuracy on digits against Random: "
        f"P3 {facts.percent(p3, 'points')}, Greedy-64 {facts.percent(greedy, 'points')}; "
        f"on its own labels with the paper's SGD probe: P3 {facts.percent(own, 'points')}",
        "Digits stand in for Oxford Pets.",
    )


def _transfer(row: Row) -> float:
    return float(row["final"]["transfer_linear"])


def _sgd(row: Row) -> float:
    return float(row["final"]["linear_sgd"])


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains on the other data and on the own."""
    panels = {"linear accuracy on digits\n": _transfer, "on its own labels\n": _sgd}
    facts.draw_gains(figure, rows, ("p3", "greedy-64"), panels)
    figure.suptitle("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = training_claim(
    name="transfer",
    section="MoCo v2, Robustness: frozen-feature linear evaluation",
    statement="Features trained with P3 transfer at least as well as those trained with Random.",
    printed="+0.5 points on CIFAR-10, +0.3 on Oxford Pets",
    criterion="P3's linear accuracy on the other data set is not significantly below Random's; and "
    "is significantly above it.",
    runs="3 policies, probed on digits",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
