"""Lemma "One-step trace update", against recomputing the trace from scratch."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenbatch.core import rayleigh_scores, trace_after_adding
from eigenbatch.runs import line_fit
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, tidy
from eigenbatch_paper.synthetic import gaussian_rows, spiked_eigenvalues
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
DIM = 64
EXACT = 1e-12

_TRIALS: dict[Scale, int] = {"smoke": 3, "small": 50, "paper": 1000}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    return [
        Chunk(f"top eigenvalue {top}", {"top": top, "seed": seed, "trials": _TRIALS[scale]})
        for seed, top in enumerate((1 / DIM, 0.3, 0.9))
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    settings = chunk.settings
    generator = torch.Generator().manual_seed(settings["seed"])
    eigenvalues = spiked_eigenvalues(DIM, settings["top"])
    rows = []
    for size in SIZES:
        unit_error = long_error = first_order = 0.0
        for _ in range(settings["trials"]):
            z = gaussian_rows(size + 1, eigenvalues, generator=generator)  # (b + 1, d)
            batch, new = z[:size], z[size:]
            before = _trace_of_square(batch)
            score = rayleigh_scores(new, batch)[0]
            direct = _trace_of_square(z)
            exact = trace_after_adding(before, size, score)
            unit_error = max(unit_error, abs(exact / direct - 1).item())
            expansion = before + 2 / size * (score - before)
            first_order += abs(expansion - direct).item()
            # A row of length 1.7: the lemma's closing 1 becomes ||z||^4.
            longer = 1.7 * new
            score = rayleigh_scores(longer, batch)[0]
            exact = trace_after_adding(before, size, score) + (1.7**4 - 1) / (size + 1) ** 2
            direct = _trace_of_square(torch.cat([batch, longer]))
            long_error = max(long_error, abs(exact / direct - 1).item())
        rows.append(
            {
                "size": size,
                "top": settings["top"],
                "unit_error": unit_error,
                "long_error": long_error,
                "first_order": first_order / settings["trials"],
            }
        )
    return rows


def _trace_of_square(z: torch.Tensor) -> torch.Tensor:
    """tr(Sigma^2) by definition, for the second moment divided by the number of rows."""
    second = z.T @ z / len(z)  # (d, d)
    return (second @ second).trace()


def _first_order(rows: list[Row]) -> list[float]:
    return [
        sum(row["first_order"] for row in rows if row["size"] == size)
        / sum(row["size"] == size for row in rows)
        for size in SIZES
    ]


def _judge(rows: list[Row]) -> Verdict:
    unit = max(row["unit_error"] for row in rows)
    longer = max(row["long_error"] for row in rows)
    large = [size for size in SIZES if size >= 16]
    errors = _first_order(rows)[-len(large) :]
    order = line_fit([math.log(b) for b in large], [math.log(e) for e in errors]).slope
    measured = f"largest relative error {max(unit, longer):.0e}; expansion error ~ b^{order:.2f}"
    note = "Unit rows, and rows of length 1.7 with the closing 1 replaced by ||z||^4."
    return decided(
        {"the update is exact": max(unit, longer) <= EXACT},
        {"the error of the expansion falls as b^-2": abs(order + 2) <= 0.2},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    axes = figure.subplots()
    exact = [max(r["unit_error"] for r in rows if r["size"] == size) for size in SIZES]
    first = _first_order(rows)
    axes.plot(SIZES, [max(e, 1e-17) for e in exact], "o-", color=BLUE)
    axes.plot(SIZES, first, "o-", color=ORANGE)
    axes.plot(SIZES, [first[-1] * (SIZES[-1] / b) ** 2 for b in SIZES], "--", color=GREY)
    axes.text(SIZES[-1], exact[-1] * 8, "the update (relative)", color=BLUE, fontsize=8, ha="right")
    axes.text(SIZES[-1], first[-1] * 100, "first-order expansion", color=ORANGE, fontsize=8,
              ha="right")  # fmt: skip
    axes.text(2.2, first[-1] * (SIZES[-1] / 2) ** 2 * 1.5, "1 / size²", color=GREY, fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(SIZES, [str(b) for b in SIZES])
    tidy(
        axes,
        "The one-step update is exact; its expansion errs by 1/size², as stated",
        "rows in the batch before the new one",
        "error of tr(Sigma²)",
    )


CLAIM = Claim(
    name="trace-update",
    section="Second-Moment Update and Trace Reduction",
    statement="Adding one row changes tr(Sigma^2) to (b^2 t + 2 b q + 1)/(b + 1)^2, and to first "
    "order by (2/b)(q - t) with an error of order b^-2.",
    printed="exact; error O(b^-2)",
    criterion="Reproduced if the update agrees with the recomputed trace to 1e-12 for unit rows "
    "and rows of another length, and the mean error of the expansion falls as b^(-2 ± 0.2) for "
    "b >= 16; holds under stated conditions if only the update does; otherwise does not reproduce.",
    size={
        scale: f"9 sizes x 3 spectra x {trials} draws, d = {DIM}"
        for scale, trials in _TRIALS.items()
    },
    minutes={"smoke": 0.01, "small": 0.1, "paper": 0.3},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
