"""Beyond the paper: time to the baseline's own final accuracy, a question that came up later.

In the runs of "wall-clock" the curves part late: no time is saved to 90 % of the final accuracy,
but much to all of it. Who asks after looking fools himself, so this asks again, of other seeds.
"""

import math
from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import FAINT
from eigenbatch_paper.training_chunks import SEEDS, training_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided, effect, interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Greedy-64 with the seeds after those of the other claims."""
    return [
        training_chunk(scale, seed, selector=selector)
        for seed in range(SEEDS[scale], 2 * SEEDS[scale])
        for selector in ("random", "greedy-64")
    ]


def judge(rows: list[Row]) -> Verdict:
    """The interval of the mean curves, and the accuracy gained."""
    groups = facts.grouped(rows, "selector")
    greedy, random = groups["greedy-64"], groups["random"]
    low, share, high = facts.saved_to_plateau(greedy, random)
    gain = facts.gain(greedy, random, facts.accuracy)
    linear = facts.gain(greedy, random, facts.linear)
    text = f"{share:+.0%} ({low:+.0%} to {high:+.0%})" if math.isfinite(share) else "never there"
    return decided(
        {"Greedy-64 reaches Random's final accuracy sooner": interval(low, high)},
        {"Greedy-64 ends higher": effect(gain)},
        f"time saved to Random's final accuracy, on mean curves: {text}; accuracy "
        f"{facts.percent(gain, 'points')}; linear {facts.percent(linear, 'points')}",
        "The learning rate falls to zero at the end of either run: this is the time into a run of "
        "this length, not the length of a run that would do.",
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """Accuracy over time."""
    axes = figure.subplots()
    groups = facts.grouped(rows, "selector")
    facts.draw_curves(axes, groups, over="times", label="processor seconds")
    level = facts.mean(groups["random"], facts.accuracy)
    axes.axhline(level, color=FAINT, lw=1, ls=":")
    axes.set_title("Dotted: what Random has in the end (shaded: range of seeds)", fontsize=10)


CLAIM = training_claim(
    name="plateau-time",
    section="Beyond the paper",
    statement="Greedy-64 reaches the accuracy that Random ends with sooner than Random does.",
    printed="not in the paper",
    criterion="On mean curves over seeds that no other claim uses, the time saved to Random's "
    "final accuracy (mean of the last three evaluations) has a bootstrapped 95 % interval above "
    "zero; and Greedy-64's accuracy is significantly above Random's.",
    runs="2 policies, other seeds",
    chunks=chunks,
    timed=True,
    judge=judge,
    draw=draw,
)
