"""Appendix "Empirical deviation from isotropy": can a raw batch show 3.7 %?"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenbatch.core import isotropy_gap, unit_rows
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, tidy
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIM = 256
COUNTS = (64, 256, 1024, 4096, 16384)
PRINTED_COUNT, PRINTED_START, PRINTED_END = 1024, 8.0, 3.7
GAPS = (0.0, PRINTED_END, PRINTED_START, 50.0)  # true, in percent

_DRAWS: dict[Scale, tuple[int, int]] = {  # draws at most, rows in all at most per setting
    "smoke": (3, 5_000),
    "small": (50, 200_000),
    "paper": (1000, 1_500_000),
}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    most, rows = _DRAWS[scale]
    return [
        Chunk(
            f"true gap {gap:g} %, {count} rows",
            {"gap": gap, "count": count, "seed": 0, "draws": max(2, min(most, rows // count))},
        )
        for gap in GAPS
        for count in COUNTS
        if count <= rows
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    settings = chunk.settings
    gap, count = settings["gap"], settings["count"]
    generator = torch.Generator().manual_seed(settings["seed"] + round(10 * gap) + 1000 * count)
    raw, excess = [], []
    for _ in range(settings["draws"]):
        z = _two_halves(count, gap / 100, generator)
        raw.append(isotropy_gap(z))
        corrected = isotropy_gap(z, unbiased=True)
        excess.append(math.copysign((corrected / 100) ** 2, corrected))  # d tr(Sigma^2) - 1
    excesses = torch.tensor(excess, dtype=torch.float64)
    return [
        {
            "gap": gap,
            "count": count,
            "draws": settings["draws"],
            "raw": sum(raw) / len(raw),
            "raw_least": min(raw),
            "excess": excesses.mean().item(),
            "excess_spread": excesses.std().item(),
        }
    ]


def _two_halves(count: int, gap: float, generator: torch.Generator) -> Tensor:
    """(count, d) unit rows, each uniform on the sphere of one half of the dimensions.

    With probability (1 + gap)/2 it is the first half: then delta is exactly 100 gap.
    """
    noise = torch.randn(count, DIM // 2, generator=generator)
    first = torch.rand(count, 1, generator=generator) < (1 + gap) / 2
    rows = torch.cat([torch.where(first, noise, 0.0), torch.where(first, 0.0, noise)], dim=1)
    return unit_rows(rows)


def _judge(rows: list[Row]) -> Verdict:
    counts = [row["count"] for row in rows]
    here = next(r for r in rows if r["gap"] == 0 and r["count"] == PRINTED_COUNT)
    formula = 100 * math.sqrt((DIM - 1) / PRINTED_COUNT)
    biases = [abs(r["excess"] - (r["gap"] / 100) ** 2) for r in rows]
    errors = [r["excess_spread"] / math.sqrt(r["draws"]) for r in rows]
    worst = max(bias / error for bias, error in zip(biases, errors, strict=True))
    at_end = next(r for r in rows if r["gap"] == PRINTED_END and r["count"] == PRINTED_COUNT)
    blur = 100 * math.sqrt(2 * at_end["excess_spread"])
    enough = (DIM - 1) / (PRINTED_END / 100) ** 2
    measured = (
        f"isotropic rows show {here['raw']:.1f} % raw (least of {here['draws']} batches "
        f"{here['raw_least']:.1f} %; formula {formula:.1f} %)"
    )
    note = (
        f'A raw delta of 3.7 % from independent rows needs n = {enough:,.0f}, so "switch once '
        f'delta <= 5 %" never fires on raw batches. The unbiased estimate is off by at most '
        f"{worst:.1f} standard errors over n = {min(counts)} to {max(counts)}, but one batch of "
        f"1,024 cannot tell a true delta of 0 from one below {blur:.0f} %: average it over batches."
    )
    return decided(
        {"some isotropic batch shows 8 % or less": here["raw_least"] <= PRINTED_START},
        {"isotropic batches show 3.7 % or less on average": here["raw"] <= PRINTED_END},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    left, right = figure.subplots(1, 2)
    counts = sorted({row["count"] for row in rows})
    found = {(row["gap"], row["count"]): row for row in rows}
    raw = [found[0.0, n]["raw"] for n in counts]
    left.plot(counts, raw, "o", color=ORANGE)
    left.plot(counts, [100 * math.sqrt((DIM - 1) / n) for n in counts], color=ORANGE, linewidth=1)
    left.text(300, 130, "perfectly isotropic rows", color=ORANGE, fontsize=8)
    left.axhline(PRINTED_END, color=GREY, linewidth=1, linestyle="--")
    left.text(60, 4.1, "printed: 3.7 %", color=GREY, fontsize=8)
    left.axvline(PRINTED_COUNT, color=GREY, linewidth=1, linestyle=":")
    left.text(1100, 2.3, "printed n", color=GREY, fontsize=8)
    left.set_yscale("log")
    left.set_ylim(2, 300)
    left.set_yticks([3, 10, 30, 100], ["3", "10", "30", "100"])
    for gap, colour, shift in ((0.0, BLUE, 0.93), (50.0, ORANGE, 1.07)):
        chosen = [found[gap, n] for n in counts]
        right.errorbar(
            [shift * n for n in counts], [row["excess"] for row in chosen],
            [row["excess_spread"] for row in chosen], fmt="o", color=colour, capsize=2,
        )  # fmt: skip
        right.axhline((gap / 100) ** 2, color=colour, linewidth=1)
        right.text(counts[-1], (gap / 100) ** 2 + 0.03, f"true delta {gap:g} %", color=colour,
                   fontsize=8, ha="right")  # fmt: skip
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{n:,}" for n in counts])
        axes.minorticks_off()
    tidy(left, "Sampling noise alone exceeds 3.7 %", "rows in the batch (d = 256)",
         "raw isotropy gap delta (%)")  # fmt: skip
    tidy(right, "The unbiased estimate is right on average", "rows in the batch (d = 256)",
         "estimate of (delta/100)², ± 1 std. dev.")  # fmt: skip


CLAIM = Claim(
    name="isotropy-floor",
    section="Empirical deviation from isotropy",
    statement="The isotropy gap delta of a batch (n = 1024, d = 256) falls from 8 % to 3.7 % in "
    "training.",
    printed="8 %, then 3.7 %",
    criterion="Does not reproduce if no batch of isotropic independent rows at the "
    "printed n and d shows a raw delta of 8 % or less; holds under stated conditions if some do "
    "but their mean is above 3.7 %; otherwise reproduced.",
    size={
        scale: f"4 true gaps x n = 64 to {max(n for n in COUNTS if n <= rows):,}, d = 256, "
        f"{rows // max(n for n in COUNTS if n <= rows)} to {draws} batches each"
        for scale, (draws, rows) in _DRAWS.items()
    },
    minutes={"smoke": 0.05, "small": 0.3, "paper": 4},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
