"""Paragraph "Practical recipe": warm up with a pool policy, then Greedy-64."""

from typing import TYPE_CHECKING

from eigenbatch.experiments import training_facts as facts
from eigenbatch.experiments.claim import Chunk, Row, Scale, Verdict
from eigenbatch.experiments.training_chunks import FEWER_SEEDS, policies, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("random", "p1", "p3", "greedy-64")


def chunks(scale: Scale) -> list[Chunk]:
    """The schedule and each of its parts alone."""
    return policies(scale, ("recipe", *PARTS), FEWER_SEEDS)


def judge(rows: list[Row]) -> Verdict:
    """Time and accuracy against every part."""
    groups = facts.grouped(rows, "selector")
    time = facts.time_to(0.9 * facts.mean(groups["p3"], facts.accuracy))
    savings = {name: facts.saved(groups["recipe"], groups[name], time) for name in PARTS}
    gains = {name: facts.gain(groups["recipe"], groups[name], facts.accuracy) for name in PARTS}
    return facts.graded(
        {"the recipe is faster than Random": facts.better(savings["random"])},
        {
            "it is faster than each part alone": all(facts.better(d) for d in savings.values()),
            "it is as accurate": not any(d.significant and d.mean < 0 for d in gains.values()),
        },
        "time saved against: " + facts.listed(savings)
        + "; accuracy: " + facts.listed(gains),
        "The printed switch at an isotropy gap of 5 % lies below what a batch can show: the "
        "schedule also switches when the rank has stopped growing.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains over each part."""
    groups = facts.grouped(rows, "selector")
    axes = figure.subplots()
    gains = [facts.gain(groups["recipe"], groups[name], facts.accuracy) for name in PARTS]
    facts.draw_differences(
        axes, PARTS, gains, "accuracy of the recipe over this policy alone, points"
    )
    axes.set_title("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = training_claim(
    name="practical-recipe",
    section="Computational Efficiency, Practical recipe",
    statement="A warm-up with P1/P3 and a switch to Greedy-64 is the best of both.",
    printed="no figure given",
    criterion="The recipe saves time against Random significantly; and against each part, without "
    "losing accuracy.",
    runs="5 policies",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
