"""Beyond the paper: what hard batches gain, as random ones become harder."""

from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN, GREY, tidy
from eigenbatch_paper.pairs import SEEDS, pair_chunk, pair_claim
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eigenbatch.runs import PairedDifference

TEMPERATURES = (0.14, 0.2, 0.3)
POLICIES = ("neighbours", "auto")
SLACK = 0.003
"""Points of MRR that Auto may lose against Random."""


def chunks(scale: Scale) -> list[Chunk]:
    """Three policies at temperatures above that of planned-batches, paired by seed."""
    return [
        pair_chunk(scale, seed, "translations", selector, 64, tau=tau)
        for seed in range(SEEDS[scale])
        for tau in TEMPERATURES
        for selector in ("random", *POLICIES)
    ]


def judge(rows: list[Row]) -> Verdict:
    """The gain must fall from each temperature to the next, and Auto must not lose."""
    misses, gains = _misses(rows), _gains(rows)
    ours = [gains[tau]["neighbours"] for tau in TEMPERATURES]
    enough = all(one.enough for one in ours)
    falls: Finding | bool = "open"
    if enough:
        falls = all(a.mean > b.mean for a, b in pairwise(ours))
    worst = min(gains[tau]["auto"].mean for tau in TEMPERATURES)
    return decided(
        {"the gain of neighbours falls as the miss rises": falls},
        {
            "auto loses at most 0.3 points anywhere": worst >= -SLACK if enough else "open",
            "the miss rises with the temperature": sorted(misses.values()) == list(misses.values()),
        },
        "; ".join(
            f"tau {tau}, miss {misses[tau]:.2f}: "
            + ", ".join(f"{name} {facts.interval(one, 'points')}" for name, one in one_tau.items())
            for tau, one_tau in gains.items()
        ),
        "The temperature changes the task as well as the miss: final MRR of Random "
        + ", ".join(f"{end:.3f}" for end in _ends(rows).values())
        + ".",
    )


def _by_temperature(rows: list[Row]) -> dict[float, dict[str, list[Row]]]:
    groups = grouped(rows, "tau")
    return {tau: grouped(groups[tau], "selector") for tau in TEMPERATURES}


def _misses(rows: list[Row]) -> dict[float, float]:
    """Mean miss of random batches."""
    return {
        tau: fmean(row["miss"] for row in groups["random"])
        for tau, groups in _by_temperature(rows).items()
    }


def _ends(rows: list[Row]) -> dict[float, float]:
    """Mean final MRR of Random."""
    return {
        tau: fmean(map(facts.final, groups["random"]))
        for tau, groups in _by_temperature(rows).items()
    }


def _gains(rows: list[Row]) -> "dict[float, dict[str, PairedDifference]]":
    return {
        tau: {name: facts.gain(groups[name], groups["random"]) for name in POLICIES}
        for tau, groups in _by_temperature(rows).items()
    }


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gain over the miss."""
    axes = figure.subplots()
    misses, gains = _misses(rows), _gains(rows)
    axes.axhline(0, color=GREY, lw=0.8)
    for name, colour in zip(POLICIES, (BLUE, GREEN), strict=True):
        heights = [100 * gains[tau][name].mean for tau in TEMPERATURES]
        axes.plot([misses[tau] for tau in TEMPERATURES], heights, "o-", color=colour, label=name)
        for tau in TEMPERATURES:
            ends = gains[tau][name].low, gains[tau][name].high
            axes.plot([misses[tau]] * 2, [100 * end for end in ends], color=colour, lw=1)
    tidy(
        axes,
        "Gain over random batches against their miss, by temperature (95 % intervals)",
        "miss of random batches",
        "final MRR against Random, points",
    )
    axes.legend(frameon=False, fontsize=8)


SETTING = "Multi30k English-German, n=64, tau 0.14, 0.2 and 0.3, 1,400 steps"
CLAIM = pair_claim(
    ("translations",),
    name="miss-law",
    statement="The harder random batches are, the less batches of neighbours gain.",
    printed="nothing",
    criterion="The mean gain in final MRR of neighbours over Random falls from each temperature "
    "to the next larger one; and auto never loses more than 0.3 points, and the miss of random "
    "batches rises with the temperature.",
    setting=SETTING,
    minutes=15,
    chunks=chunks,
    judge=judge,
    draw=draw,
)
