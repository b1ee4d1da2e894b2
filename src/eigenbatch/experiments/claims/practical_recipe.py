"""Paragraph "Practical recipe": warm up with a pool policy, then Greedy-64."""

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
    mean,
    percent,
    saved,
    time_to,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("random", "p1", "p3", "greedy-64")


def chunks(scale: Scale) -> list[Chunk]:
    """The schedule and each of its parts alone."""
    return policies(scale, ("recipe", *PARTS), FEWER_SEEDS)


def judge(rows: list[Row]) -> Verdict:
    """Time and accuracy against every part."""
    groups = grouped(rows, "selector")
    time = time_to(0.9 * mean(groups["p3"], accuracy))
    savings = {name: saved(groups["recipe"], groups[name], time) for name in PARTS}
    gains = {name: gain(groups["recipe"], groups[name], accuracy) for name in PARTS}
    return graded(
        {"the recipe is faster than Random": better(savings["random"])},
        {
            "it is faster than each part alone": all(better(d) for d in savings.values()),
            "it is as accurate": not any(d.significant and d.mean < 0 for d in gains.values()),
        },
        "time saved against: " + ", ".join(f"{n} {percent(d)}" for n, d in savings.items())
        + "; accuracy: " + ", ".join(f"{n} {percent(d)}" for n, d in gains.items()),
        "The printed switch at an isotropy gap of 5 % lies below what a batch can show: the "
        "schedule also switches when the rank has stopped growing.",
    )  # fmt: skip


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains over each part."""
    groups = grouped(rows, "selector")
    axes = figure.subplots()
    gains = [gain(groups["recipe"], groups[name], accuracy) for name in PARTS]
    draw_differences(axes, PARTS, gains, "accuracy of the recipe over this policy alone, points")
    axes.set_title("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = Claim(
    name="practical-recipe",
    section="Computational Efficiency, Practical recipe",
    statement="A warm-up with P1/P3 and a switch to Greedy-64 is the best of both.",
    printed="no figure given",
    criterion="The recipe saves time against Random significantly; and against each part, without "
    "losing accuracy.",
    size={s: size_text(s, "5 policies") for s in ("smoke", "small", "paper")},
    minutes=minutes({"smoke": 10, "small": 15, "paper": 15}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
