"""Beyond the paper: the opposite direction, batches of similar samples."""

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

POLICIES = ("clustered", "blend", "p2", "greedy-64", "greedy-pool")


def chunks(scale: Scale) -> list[Chunk]:
    """Similar, mixed and diverse batches against Random."""
    return policies(scale, ("random", *POLICIES), FEWER_SEEDS)


def judge(rows: list[Row]) -> Verdict:
    """Which direction gains accuracy."""
    groups = grouped(rows, "selector")
    knn = {name: gain(groups[name], groups["random"], accuracy) for name in POLICIES}
    probe = {name: gain(groups[name], groups["random"], linear) for name in POLICIES}
    return graded(
        {"diverse batches beat similar ones": better(
            gain(groups["greedy-64"], groups["clustered"], accuracy))},
        {"and beat Random": better(knn["greedy-64"])},
        "kNN accuracy against Random: " + ", ".join(f"{n} {percent(d)}" for n, d in knn.items())
        + "; linear: " + ", ".join(f"{n} {percent(d)}" for n, d in probe.items()),
        "Similar batches have harder negatives and a higher loss; diverse ones an easier task.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains in both directions."""
    groups = grouped(rows, "selector")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, quantity, what in ((left, accuracy, "kNN"), (right, linear, "linear")):
        gains = [gain(groups[name], groups["random"], quantity) for name in POLICIES]
        draw_differences(axes, POLICIES, gains, f"{what} accuracy over Random, points")
    figure.suptitle("From similar (top) to diverse batches; blue: significant at 95 %", fontsize=10)


CLAIM = Claim(
    name="similar-batches",
    section="Beyond the paper (its title: diversity is all you need)",
    statement="Diverse batches train better than similar ones.",
    printed="the title",
    criterion="Greedy-64's accuracy is significantly above that of clustered batches; and above "
    "Random's.",
    size={s: size_text(s, "6 policies") for s in ("smoke", "small", "paper")},
    minutes=minutes({"smoke": 12, "small": 18, "paper": 18}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
