"""Appendix "Negatives-Only Softmax: First-Order Expansion & Remainder Bounds"."""

from typing import TYPE_CHECKING

from eigenbatch_paper.claim import Claim, Row
from eigenbatch_paper.figures import BLUE, CYCLE, GREY, tidy
from eigenbatch_paper.softmax_remainder import (
    SIZE_TEXTS,
    TEMPERATURES,
    TOPS,
    joined,
    remainder_chunks,
    remainder_rows,
)
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHNESS = 1 / 8


def _judge(rows: list[Row]) -> Verdict:
    share = joined(rows, "eighth_violations") / joined(rows, "entries")
    needed = joined(rows, "most_smoothness")
    norm = joined(rows, "norm_violations")
    measured = (
        f"{share:.2%} of entries violate the entry-wise bound; {norm:.0f} of "
        f"{joined(rows, 'anchors'):,.0f} anchors its maximum form; c_sm needed {needed:.2g}"
    )
    note = (
        "An entry at the mean logit would need a remainder of exactly zero, but q_ij depends on "
        "all logits. The maximum form is what the Taylor argument gives."
    )
    return decided(
        {
            "the bound holds in its maximum form": not norm,
            "c_sm = 1/8 covers every anchor": needed <= SMOOTHNESS,
        },
        {"the bound holds entry by entry": not share},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    axes = figure.subplots()
    found = {(row["top"], row["tau"]): row for row in rows}
    for colour, top in zip((BLUE, *CYCLE[1:]), TOPS, strict=False):
        shares = [
            100 * found[top, tau]["eighth_violations"] / found[top, tau]["entries"]
            for tau in TEMPERATURES
        ]
        axes.plot(TEMPERATURES, shares, "o-", color=colour)
        label = f"top eigenvalue {top or '1/d'}"
        axes.text(0.305, shares[-1], label, color=colour, fontsize=8, va="center")
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set_xlim(0.04, 0.37)
    axes.set_xticks(TEMPERATURES)
    tidy(
        axes,
        "Some weights break the entry-wise bound on the softmax remainder",
        "temperature",
        "entries above the bound (%)",
    )


CLAIM = Claim(
    name="softmax-expansion",
    section="Negatives-Only Softmax: First-Order Expansion & Remainder Bounds",
    statement="The remainder of the linearised softmax over negatives is at most (1/8)(l_ij - mean "
    "l_i)^2 for each entry, and ||C2||^2 <= c_sm eps^2 sigma*^2 / tau^4 with c_sm <= 1/8.",
    printed="holds entry by entry; c_sm <= 1/8",
    criterion="Reproduced if no entry exceeds its bound and c_sm = 1/8 covers every anchor; holds "
    "under stated conditions if entries do but no anchor exceeds the maximum form "
    "||R||_inf <= (1/8) ||l - mean l||_inf^2, and c_sm = 1/8 covers every anchor; otherwise does "
    "not reproduce.",
    size=SIZE_TEXTS,
    minutes={"smoke": 0.02, "small": 0.1, "paper": 2},
    chunks=remainder_chunks,
    compute=remainder_rows,
    judge=_judge,
    draw=_draw,
)
