"""Section "Robustness": frozen features on another data set."""

from typing import TYPE_CHECKING, Any

from eigenbatch.experiments.claim import Chunk, Claim, Row, Scale, Verdict
from eigenbatch.experiments.training_chunks import (
    compute,
    minutes,
    policies,
    size_text,
)
from eigenbatch.experiments.training_facts import (
    better,
    draw_differences,
    gain,
    graded,
    grouped,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chunks(scale: Scale) -> list[Chunk]:
    """Random and P3; digits are the other data set, which needs no download."""
    changes: dict[str, Any] = {} if scale == "small" else {"transfer": "digits"}
    return policies(scale, ("random", "p3", "greedy-64"), **changes)


def judge(rows: list[Row]) -> Verdict:
    """Linear probes on the other data set, and the paper's own on the training set's labels."""
    groups = grouped(rows, "selector")
    p3 = gain(groups["p3"], groups["random"], _transfer)
    greedy = gain(groups["greedy-64"], groups["random"], _transfer)
    own = gain(groups["p3"], groups["random"], _sgd)
    return graded(
        {"P3 does not lose": p3.mean >= 0 or not p3.significant},
        {"P3 gains": better(p3)},
        f"linear accuracy on digits against Random: P3 {percent(p3)}, Greedy-64 {percent(greedy)}; "
        f"on its own labels with the paper's SGD probe: P3 {percent(own)}",
        "Digits stand in for Oxford Pets.",
    )


def _transfer(row: Row) -> float:
    return float(row["final"]["transfer_linear"])


def _sgd(row: Row) -> float:
    return float(row["final"]["linear_sgd"])


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains on the other data and on the own."""
    groups = grouped(rows, "selector")
    left, right = figure.subplots(1, 2, sharey=True)
    names = ("p3", "greedy-64")
    for axes, quantity, where in ((left, _transfer, "digits"), (right, _sgd, "its own labels")):
        gains = [gain(groups[name], groups["random"], quantity) for name in names]
        draw_differences(axes, names, gains, f"linear accuracy on {where}\nover Random, points")
    figure.suptitle("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = Claim(
    name="transfer",
    section="MoCo v2, Robustness: frozen-feature linear evaluation",
    statement="Features trained with P3 transfer at least as well as those trained with Random.",
    printed="+0.5 points on CIFAR-10, +0.3 on Oxford Pets",
    criterion="P3's linear accuracy on the other data set is not significantly below Random's; and "
    "is significantly above it.",
    size={s: size_text(s, "3 policies, probed on digits") for s in ("smoke", "small", "paper")},
    minutes=minutes({"smoke": 6, "small": 15, "paper": 15}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
