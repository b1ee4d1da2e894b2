"""Appendix "Empirical sensitivity of the spectral band under anisotropy": the 6 % threshold."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenbatch.core import Contrast, isotropy_gap, participation_ratio
from eigenbatch_paper.batch_bands import batch_bands, decomposed
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN, GREY, ORANGE, tidy
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    spiked_eigenvalues,
)
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAPS = (0, 3, 6, 12, 50, 200, 1000, 3000)  # percent, of the generator's spectrum
TAU, COSINE = 0.1, 0.75
THRESHOLD, TOLERANCE = 6.0, 0.05

_SIZES: dict[Scale, tuple[int, int, int, int]] = {  # pairs, d, chunks, batches in each
    "smoke": (8, 1024, 1, 2),
    "small": (128, 1024, 1, 40),
    "paper": (128, 1024, 10, 500),
}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    pairs, dim, count, batches = _SIZES[scale]
    return [
        Chunk(
            f"gap {gap} %, part {seed + 1}",
            {"pairs": pairs, "dim": dim, "gap": gap, "seed": seed, "batches": batches},
        )
        for gap in GAPS
        for seed in range(count)
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    settings = chunk.settings
    pairs, dim = settings["pairs"], settings["dim"]
    # One raised eigenvalue: delta^2 = (d top - 1)^2 / (d - 1).
    top = (1 + settings["gap"] / 100 * math.sqrt(dim - 1)) / dim
    eigenvalues = spiked_eigenvalues(dim, top).float()
    generator = torch.Generator().manual_seed(10_000 * settings["seed"] + settings["gap"])
    row: Row = dict.fromkeys(("batches", "anchors", *_COUNTS), 0.0) | {"gap": settings["gap"]}
    for _ in range(settings["batches"]):
        z = gaussian_rows(pairs, eigenvalues, generator=generator)  # (B, d)
        positives = positives_at_cosine(z, COSINE, generator=generator)
        contrast = Contrast.paired(z.double(), positives.double())
        batch = decomposed(contrast)
        found = batch_bands(batch, TAU)
        below, above = found.bands["per anchor"].outside(found.measured)
        plug_in, _ = found.bands["plug-in"].outside(found.measured)
        row["batches"] += 1
        row["anchors"] += 2 * pairs
        row["below"] += below
        row["above"] += above
        row["plug_in_below"] += plug_in
        row["raw"] += 1e4 * (dim / participation_ratio(batch.contrast.anchors) - 1)
        # One view of each pair: the estimate wants independent rows.
        row["corrected"] += _signed_square(isotropy_gap(z, unbiased=True))
        row["sigma_hat"] += batch.sigma_hat
    return [row]


_COUNTS = ("below", "above", "plug_in_below", "raw", "corrected", "sigma_hat")


def _signed_square(value: float) -> float:
    return math.copysign(value**2, value)


def _signed_root(value: float) -> float:
    return math.copysign(math.sqrt(abs(value)), value)


def _merged(rows: list[Row]) -> dict[int, Row]:
    """Rates, and gaps in percent, by the generator's gap."""
    sums: dict[int, Row] = {}
    for row in rows:
        into = sums.setdefault(row["gap"], dict.fromkeys(row, 0.0))
        for name, value in row.items():
            into[name] += value
    return {
        gap: {
            "outside": (row["below"] + row["above"]) / row["anchors"],
            "above": row["above"] / row["anchors"],
            "plug_in_below": row["plug_in_below"] / row["anchors"],
            "raw": math.sqrt(row["raw"] / row["batches"]),
            "corrected": _signed_root(row["corrected"] / row["batches"]),
            "sigma_hat": row["sigma_hat"] / row["batches"],
        }
        for gap, row in sums.items()
    }


def _judge(rows: list[Row]) -> Verdict:
    found = _merged(rows)
    up_to = max(row["outside"] for gap, row in found.items() if gap <= THRESHOLD)
    beyond = max(row["above"] for gap, row in found.items() if gap > THRESHOLD)
    worst = max(row["outside"] for row in found.values())
    at = found[6]
    measured = (
        f"{worst:.2%} of anchors out of band at worst over the whole sweep, delta 0 to 3000 %; "
        f"raw delta of a batch is never below {found[0]['raw']:.0f} %"
    )
    note = (
        f"A spectrum with delta = 6 % shows a raw delta of {at['raw']:.0f} % at this n and d, "
        f"{at['corrected']:+.0f} % after removing the sampling noise (from one view a pair; "
        f"positive pairs are not independent rows), and sigma-hat {at['sigma_hat']:.4f} against "
        f"{found[0]['sigma_hat']:.4f} at delta = 0: a batch of this size cannot tell 6 % from 0. "
        "With fewer rows than dimensions a raw delta is at least 100 sqrt(d/n - 1) %, 173 % here: "
        "the printed axis cannot be that of a batch. "
        f"With the floor of the batch mean up to "
        f"{max(row['plug_in_below'] for row in found.values()):.0%} of anchors are out of band."
    )
    return decided(
        {
            "batches show a delta of 6 % or less, as on the printed axis": found[0]["raw"]
            <= THRESHOLD,
            "coverage is within tolerance up to a true delta of 6 %": up_to <= TOLERANCE,
        },
        {"the upper bound is overshot beyond 6 %": beyond > 0},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    found = _merged(rows)
    left, right = figure.subplots(1, 2)
    gaps = sorted(found)
    place = list(range(len(gaps)))
    left.plot(place, gaps, color=GREY, linewidth=1)
    left.text(4.6, 25, "true", color=GREY, fontsize=8)
    left.plot(place, [found[g]["raw"] for g in gaps], "o-", color=ORANGE, markersize=4)
    left.text(0, 330, "raw batch", color=ORANGE, fontsize=8)
    left.plot(place, [found[g]["corrected"] for g in gaps], "o-", color=BLUE, markersize=4)
    left.text(0, -4, "noise removed", color=BLUE, fontsize=8, va="top")
    left.set_yscale("symlog", linthresh=10)
    left.set_yticks([0, 10, 100, 1000], ["0", "10", "100", "1000"])
    left.minorticks_off()
    left.set_ylim(-15, 6000)
    right.plot(place, [100 * found[g]["outside"] for g in gaps], "o-", color=GREEN, markersize=4)
    right.text(0, 1.2, "floor per anchor", color=GREEN, fontsize=8)
    below = [100 * found[g]["plug_in_below"] for g in gaps]
    right.plot(place, below, "o-", color=ORANGE, markersize=4)
    right.text(0, below[0] + 2, "floor of the batch mean", color=ORANGE, fontsize=8)
    right.axhline(5, color=GREY, linestyle="--", linewidth=1)
    right.text(7, 5.6, "tolerance", color=GREY, fontsize=8, ha="right")
    right.set_ylim(-2, max([*below, 20]) * 1.15)
    for axes in (left, right):
        axes.axvline(2, color=GREY, linestyle=":", linewidth=1)
        axes.set_xticks(place, [f"{g:g}" for g in gaps])
    tidy(left, "256 rows cannot show a gap of 6 %", "true anisotropy delta (%)",
         "delta seen in a batch (%)")  # fmt: skip
    tidy(right, "and nothing happens to the band there", "true anisotropy delta (%)",
         "gradients out of band (%)")  # fmt: skip


CLAIM = Claim(
    name="anisotropy-coverage",
    section="Empirical sensitivity of the spectral band under anisotropy",
    statement="Coverage of the band stays within a 5 % tolerance up to an anisotropy of delta ~ "
    "6 %, with mild overshoots of the upper bound beyond.",
    printed="within 5 % tolerance up to delta ~ 6 %",
    criterion="Isotropic batches of the printed n and d show a raw delta of at most 6 %, and at "
    "most 5 % of anchors are out of the per-anchor band up to a true delta of 6 %; and some anchor "
    "beyond 6 % overshoots the upper bound, for else 6 % is no threshold.",
    size={
        "smoke": "8 settings x 2 batches, n = 16, d = 1024",
        "small": "8 settings x 40 batches, n = 256, d = 1024",
        "paper": "8 settings x 5,000 batches, n = 256, d = 1024",
    },
    minutes={"smoke": 0.02, "small": 0.2, "paper": 11},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
