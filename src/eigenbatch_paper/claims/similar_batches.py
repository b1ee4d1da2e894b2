"""Beyond the paper: the opposite direction, batches of similar samples."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import policies, training_claim
from eigenbatch_paper.verdict import Verdict, decided, effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("neighbours", "p3", "greedy-64")


def chunks(scale: Scale) -> list[Chunk]:
    """Similar, balanced and diverse batches against Random."""
    return policies(scale, ("random", "p3", "greedy-64", "neighbours"))


def judge(rows: list[Row]) -> Verdict:
    """Which direction gains accuracy."""
    groups = facts.grouped(rows, "selector")
    knn = {name: facts.gain(groups[name], groups["random"], facts.accuracy) for name in POLICIES}
    probe = {name: facts.gain(groups[name], groups["random"], facts.linear) for name in POLICIES}
    against = facts.gain(groups["greedy-64"], groups["neighbours"], facts.accuracy)
    return decided(
        {"diverse batches beat similar ones": effect(against)},
        {"and beat Random": effect(knn["greedy-64"])},
        "kNN accuracy against Random: " + facts.listed(knn, "points")
        + "; linear: " + facts.listed(probe, "points"),
        "Similar batches have harder negatives and a higher loss; diverse ones an easier task.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains in both directions."""
    facts.draw_gains(
        figure, rows, POLICIES, {"kNN accuracy": facts.accuracy, "linear accuracy": facts.linear}
    )
    figure.suptitle("From similar (top) to diverse batches; blue: significant at 95 %", fontsize=10)


CLAIM = training_claim(
    name="similar-batches",
    section="Beyond the paper (its title: diversity is all you need)",
    statement="Diverse batches train better than similar ones.",
    printed="the title",
    criterion="Greedy-64's accuracy is significantly above that of neighbours; and above Random's.",
    runs="4 policies",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
