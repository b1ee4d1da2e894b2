"""Appendix "Bounding the second-order remainder", Lemma C2."""

from typing import TYPE_CHECKING

from eigenbatch_paper.claim import Claim, Row
from eigenbatch_paper.figures import BLUE, CYCLE, GREY, label_ends, tidy
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


def _judge(rows: list[Row]) -> Verdict:
    share = joined(rows, "half_violations") / joined(rows, "entries")
    batches, broken = joined(rows, "batches"), joined(rows, "box_violations")
    measured = (
        f"{share:.0%} of entries violate the entry-wise bound; the boxed bound fails in "
        f"{broken / batches:.0%} of batches, by up to x{joined(rows, 'most_box'):,.2g}"
    )
    note = (
        "The last line of the proof loses a factor N-: N- * 1/(4 N-² tau⁴) * N- C4 sigma*² is "
        "C4 sigma*²/(4 tau⁴), without 1/N-. That bound holds: measured / bound is at most "
        f"{joined(rows, 'most_corrected'):.2g}. C4 was measured in each batch (up to "
        f"{joined(rows, 'most_fourth'):.2g}). The entry-wise bound cannot hold, because q_ij "
        "depends on all logits."
    )
    return decided(
        {"the boxed bound holds in every batch": not broken},
        {"the bound of each entry holds": not share},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    axes = figure.subplots()
    found = {(row["top"], row["tau"]): row for row in rows}
    ends = []
    for colour, top in zip((BLUE, *CYCLE[1:]), TOPS, strict=False):
        ratios = [found[top, tau]["most_box"] for tau in TEMPERATURES]
        axes.plot(TEMPERATURES, ratios, "o-", color=colour)
        ends.append((ratios[-1], f"top eigenvalue {top or '1/d'}", colour))
    axes.axhline(1, color="black", linewidth=1)
    axes.text(0.037, 1.1, "bound", fontsize=8)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.fill_between([0.03, 0.4], 1, 2 * high, color=GREY, alpha=0.12, linewidth=0)
    label_ends(axes, 0.305, ends, apart=(high / low) ** 0.06)
    axes.set_ylim(low, 2 * high)
    axes.set_xlim(0.035, 0.4)
    axes.set_xticks(TEMPERATURES)
    tidy(
        axes,
        "The remainder exceeds its bound (grey area): the proof loses a factor N",
        "temperature",
        "largest measured ||C2||² / bound",
    )


CLAIM = Claim(
    name="second-order-remainder",
    section="Bounding the second-order remainder",
    statement="The softmax remainder is at most (s_ij - mean s_i)^2/(2 N- tau^2) for each entry, "
    "and E||C2||^2 <= C4 E[eps^2] sigma*^2/(N- tau^4).",
    printed="both bounds, always",
    criterion="Reproduced if no entry exceeds its bound and no batch mean exceeds the boxed bound "
    "with C4 as measured in the batch; holds under stated conditions if only the boxed bound holds "
    "in every batch; otherwise does not reproduce.",
    size=SIZE_TEXTS,
    minutes={"smoke": 0.02, "small": 0.1, "paper": 2},
    chunks=remainder_chunks,
    compute=remainder_rows,
    judge=_judge,
    draw=_draw,
)
