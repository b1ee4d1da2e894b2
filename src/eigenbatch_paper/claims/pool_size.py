"""Figure "Diminishing returns with pool size": P3 from pools of 1, 4 and 10 batches."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from eigenbatch.runs import bootstrap_interval
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import BLUE, SKY
from eigenbatch_paper.training_chunks import batch_size, policies, training_claim
from eigenbatch_paper.verdict import Verdict, decided, effect, inside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.6


def chunks(scale: Scale) -> list[Chunk]:
    """A pool of one batch is uniform sampling; then 4 and 10 batches."""
    batch = batch_size(scale)
    return policies(scale, ("random",)) + [
        chunk for times in (4, 10) for chunk in policies(scale, ("p3",), pool_size=times * batch)
    ]


def judge(rows: list[Row]) -> Verdict:
    """First whether there is anything to divide."""
    groups = facts.grouped(rows, "selector", "pool_size")
    (_, largest), (_, middle) = sorted(
        ((s, k) for s, k in groups if s == "p3"), key=lambda pair: -pair[1]
    )
    random = next(group for (selector, _), group in groups.items() if selector == "random")
    target = facts.target_of(groups["p3", largest], facts.TARGET)
    whole = facts.saved(groups["p3", largest], random, facts.epochs_to(target))
    part = facts.saved(groups["p3", middle], random, facts.epochs_to(target))
    low, high = bootstrap_interval(
        partial(_saved_share, target), random, groups["p3", middle], groups["p3", largest]
    )
    return decided(
        {"the largest pool saves epochs": effect(whole, 1 - 110 / 137)},
        {"the middle pool has 60-100 % of that": inside(low, high, LEAST, 1)},
        f"epochs saved to {target:.3f}: pool of 4 batches {facts.percent(part)}, "
        f"of 10 {facts.percent(whole)}"
        + (f"; share of it {low:.0%} to {high:.0%} (95 %)" if whole.low > 0 else ""),
        facts.unreached(rows, target)
        + ("" if whole.low > 0 else " Without a saving there is no share of it to speak of."),
    )


def _saved_share(
    target: float, random: Sequence[Row], middle: Sequence[Row], largest: Sequence[Row]
) -> float:
    """Epochs saved by the middle pool, as a share of those saved by the largest."""
    none, some, most = (facts.mean(runs, facts.epochs_to(target)) for runs in
                        (random, middle, largest))  # fmt: skip
    return (none - some) / (none - most) if none != most else math.nan


def draw(rows: list[Row], figure: "Figure") -> None:
    """Epochs to the target against the pool."""
    axes = figure.subplots()
    groups = facts.grouped(rows, "selector", "pool_size")
    largest = max(k for s, k in groups if s == "p3")
    target = facts.target_of(groups["p3", largest], facts.TARGET)
    batch = rows[0]["batch_size"]
    for (selector, pool), runs in groups.items():
        place = 1 if selector == "random" else pool / batch
        values = [facts.epochs_to(target)(row) for row in runs]
        axes.plot([place] * len(values), values, "o", color=SKY, alpha=0.6)
        axes.plot(place, sum(values) / len(values), "D", color=BLUE)
    axes.set(
        xlabel="pool size, in batches (1: no choice)",
        ylabel="epochs to the target",
        title="Dots: seeds; diamonds: their mean",
    )
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="pool-size",
    section="Computational Efficiency, Figure on pool size",
    statement="A pool of 4 batches already brings 80 % of the epochs that a pool of 10 saves.",
    printed="k = 2,048 captures 80 % of the reduction at k = 5,120",
    criterion="P3 with a pool of 10 batches saves epochs against uniform sampling to 97.8 % of its "
    "final accuracy; and a pool of 4 has 60-100 % of that saving, by the interval of a bootstrap.",
    runs="3 pool sizes",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
