"""Beyond the paper: what selection does to how often each image is seen."""

from typing import TYPE_CHECKING

from eigenbatch.experiments.claim import Chunk, Claim, Row, Scale, Verdict
from eigenbatch.experiments.statistics import PairedDifference
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
    percent,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODES = ("free", "stream", "epoch")


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Greedy-64 in each coverage mode."""
    return [
        chunk
        for mode in MODES
        for chunk in policies(scale, ("random", "greedy-64"), FEWER_SEEDS, coverage=mode)
    ]


def judge(rows: list[Row]) -> Verdict:
    """Greedy-64 against Random in the same mode."""
    gains = _gains(rows)
    return graded(
        {"Greedy-64 gains accuracy in some mode": any(better(d) for d in gains.values())},
        {"in every mode": all(better(d) for d in gains.values())},
        "accuracy of Greedy-64 over Random: "
        + ", ".join(f"{mode} {percent(d)}" for mode, d in gains.items()),
        "free: batches from any pool, images may be skipped; epoch: every image once an epoch; "
        "stream: every image soon. The paper does not say which it uses.",
    )


def _gains(rows: list[Row]) -> dict[str, PairedDifference]:
    groups = grouped(rows, "coverage", "selector")
    return {
        mode: gain(groups[mode, "greedy-64"], groups[mode, "random"], accuracy) for mode in MODES
    }


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains by mode."""
    axes = figure.subplots()
    gains = _gains(rows)
    label = "accuracy of Greedy-64 over Random, points"
    draw_differences(axes, list(gains), list(gains.values()), label)
    axes.set_title("By coverage mode; blue: significant at 95 %", fontsize=10)


CLAIM = Claim(
    name="coverage-modes",
    section="Beyond the paper (left open in Algorithm 1)",
    statement="Selection helps whether or not every image must be seen once an epoch.",
    printed="not in the paper",
    criterion="Greedy-64's accuracy is significantly above Random's in some coverage mode; and in "
    "all three.",
    size={s: size_text(s, "2 policies x 3 modes") for s in ("smoke", "small", "paper")},
    minutes=minutes({"smoke": 12, "small": 18, "paper": 18}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
