"""Section "Gradient-Norm Scaling with Temperature": is the slope of log gradient 2?"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenbatch import infonce
from eigenbatch.core import Contrast
from eigenbatch.runs import LineFit, line_fit
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN, GREY, ORANGE, tidy
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    spiked_eigenvalues,
)
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPERATURES = (0.04, 0.063, 0.10, 0.15, 0.20)
COSINES = (0.0, 0.25, 0.5, 0.75, 0.9)
PRINTED_COSINE, PRINTED_SLOPE = 0.75, 2.02
TOP = 0.555  # gives batches with sigma-hat = 0.30, as printed: normalising the rows pulls it down
NOMINAL = 0.3  # the other reading: the generator's top eigenvalue is 0.3, sigma-hat 0.18
CASES = (*((TOP, cosine) for cosine in COSINES), (NOMINAL, PRINTED_COSINE))
TOLERANCE, FIT = 0.1, 0.99

_SIZES: dict[Scale, tuple[int, int, int, int]] = {  # pairs, d, chunks, batches in each
    "smoke": (16, 32, 1, 3),
    "small": (128, 1024, 2, 25),
    "paper": (128, 1024, 20, 250),
}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    pairs, dim, count, batches = _SIZES[scale]
    return [
        Chunk(f"part {seed + 1}", {"pairs": pairs, "dim": dim, "seed": seed, "batches": batches})
        for seed in range(count)
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    """Sums over batches for each case and temperature; the temperatures share their batches."""
    settings = chunk.settings
    generator = torch.Generator().manual_seed(settings["seed"])
    found = []
    for top, cosine in CASES:
        eigenvalues = spiked_eigenvalues(settings["dim"], top).float()
        sums = {tau: dict.fromkeys(_SUMMED, 0.0) for tau in TEMPERATURES}
        for _ in range(settings["batches"]):
            z = gaussian_rows(settings["pairs"], eigenvalues, generator=generator)
            contrast = Contrast.paired(z, positives_at_cosine(z, cosine, generator=generator))
            for tau, row in sums.items():
                values = infonce(contrast, tau)
                gradient = values.squared_gradient.double().mean().item()
                miss = values.miss.double()
                row["batches"] += 1
                row["gradient"] += gradient
                row["squared_gradient"] += gradient**2
                row["squared_miss"] += miss.square().mean().item()
                row["miss"] += miss.mean().item()
        found += [{"top": top, "cosine": cosine, "tau": tau} | row for tau, row in sums.items()]
    return found


_SUMMED = ("batches", "gradient", "squared_gradient", "squared_miss", "miss")


def _means(rows: list[Row]) -> dict[tuple[float, float], list[Row]]:
    """Means over all batches, one for each temperature, by (top, cosine)."""
    sums: dict[tuple[float, float, float], Row] = {}
    for row in rows:
        key = (row["top"], row["cosine"], row["tau"])
        into = sums.setdefault(key, dict.fromkeys(_SUMMED, 0.0))
        for name in _SUMMED:
            into[name] += row[name]
    return {
        case: [
            {name: value / sums[*case, tau]["batches"] for name, value in sums[*case, tau].items()}
            for tau in TEMPERATURES
        ]
        for case in CASES
    }


def _fit(points: list[Row], *, per_miss: bool) -> LineFit:
    """Slope of log gradient, or of log gradient / mean squared miss, against log 1/tau."""
    x = [-math.log(tau) for tau in TEMPERATURES]
    y = [math.log(p["gradient"] / (p["squared_miss"] if per_miss else 1.0)) for p in points]
    return line_fit(x, y)


def _judge(rows: list[Row]) -> Verdict:
    means = _means(rows)
    plain = {case: _fit(points, per_miss=False) for case, points in means.items()}
    corrected = {case: _fit(points, per_miss=True) for case, points in means.items()}
    printed = (TOP, PRINTED_COSINE)
    here, law = plain[printed], corrected[printed]
    sweep = ", ".join(f"{plain[TOP, cosine].slope:.2f} at {cosine:g}" for cosine in COSINES)
    slopes = [fit.slope for fit in corrected.values()]
    measured = f"slope {_text(here)}; of gradient / miss²: {_text(law)}"
    note = (
        f"The mean miss runs from {means[printed][0]['miss']:.2f} to "
        f"{means[printed][-1]['miss']:.2f} over the sweep, so the prefactor is not stable. Slopes "
        f"by cosine of the positive: {sweep}; with the generator's top eigenvalue at 0.3 "
        f"(sigma-hat 0.18) and cosine 0.75: {plain[NOMINAL, PRINTED_COSINE].slope:.2f}. "
        f"The law that holds is gradient ~ miss² / tau²: slopes {min(slopes):.2f} to "
        f"{max(slopes):.2f}, R² >= {min(fit.r_squared for fit in corrected.values()):.4f}."
    )
    right = abs(here.slope - PRINTED_SLOPE) <= TOLERANCE and here.r_squared >= FIT
    return decided({"a slope of 2.02 in the printed setting": right}, {}, measured, note)


def _text(fit: LineFit) -> str:
    return f"{fit.slope:.2f} ± {fit.half_width:.2f} (R² {fit.r_squared:.4f})"


def _batches(rows: list[Row]) -> int:
    """Batches of each setting."""
    case = (TOP, PRINTED_COSINE, TEMPERATURES[0])
    return int(sum(r["batches"] for r in rows if (r["top"], r["cosine"], r["tau"]) == case))


def _draw_printed(axes: "Axes", points: list[Row], batches: int) -> None:
    """The printed figure: means with their standard errors, the fit, and 1/tau²."""
    x = [1 / tau for tau in TEMPERATURES]
    y = [p["gradient"] for p in points]
    errors = [
        math.sqrt(max(0.0, p["squared_gradient"] - p["gradient"] ** 2) / batches) for p in points
    ]
    slope = _fit(points, per_miss=False).slope
    middle = math.exp(sum(map(math.log, y)) / len(y))
    centre = math.exp(sum(map(math.log, x)) / len(x))
    axes.errorbar(x, y, yerr=errors, fmt="o", color=BLUE, markersize=4, label="mean ± s.e.m.")
    axes.plot(
        x, [middle * (v / centre) ** slope for v in x], color=ORANGE, label=f"fit: {slope:.2f}"
    )
    axes.plot(x, [middle * (v / centre) ** 2 for v in x], "--", color=GREEN, label="1 / tau²")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([5, 10, 25], ["5", "10", "25"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    tidy(axes, "As printed: cosine 0.75", "1 / temperature", "mean squared gradient")


def _draw(rows: list[Row], figure: "Figure") -> None:
    means = _means(rows)
    slopes = [_fit(means[TOP, cosine], per_miss=True).slope for cosine in COSINES]
    figure.set_size_inches(11, 4)
    first, left, right = figure.subplots(1, 3)
    _draw_printed(first, means[TOP, PRINTED_COSINE], _batches(rows))
    x = [1 / tau for tau in TEMPERATURES]
    for cosine in COSINES:
        points = means[TOP, cosine]
        slope = _fit(points, per_miss=False).slope
        printed = cosine == PRINTED_COSINE
        style = {"color": ORANGE if printed else BLUE, "linewidth": 2 if printed else 1}
        gradients = [p["gradient"] for p in points]
        ratios = [p["gradient"] / p["squared_miss"] for p in points]
        left.plot(x, gradients, "o-", markersize=3, **style)
        right.plot(x, ratios, "o-", markersize=3, **style)
        left.text(
            x[0] * 1.05, gradients[0],
            f"cosine {cosine:g}: slope {slope:.1f}",
            color=style["color"], fontsize=8, va="center",
        )  # fmt: skip
    right.plot(x, [1.2 * v**2 for v in x], "--", color=GREY, linewidth=1)
    right.text(9, 250, "slope 2", color=GREY, fontsize=8)
    right.text(
        0.95, 0.08, f"all cosines: slope {min(slopes):.2f} to {max(slopes):.2f}",
        transform=right.transAxes, color=BLUE, fontsize=8, ha="right",
    )  # fmt: skip
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([5, 10, 25], ["5", "10", "25"])
        axes.minorticks_off()
    left.set_xlim(4.5, 150)
    tidy(left, "The gradient does not follow 1/tau² ...", "1 / temperature",
         "mean squared gradient")  # fmt: skip
    tidy(right, "... divided by the squared miss, nearly", "1 / temperature",
         "mean squared gradient / squared miss")  # fmt: skip


CLAIM = Claim(
    name="temperature-law",
    section="Gradient-Norm Scaling with Temperature",
    statement="With the geometry held fixed (positives at cosine 0.75, sigma-hat = 0.3) the mean "
    "squared gradient grows as 1/tau^2.",
    printed="slope 2.02 ± 0.03 (95 % CI), R² = 0.999",
    criterion="Reproduced if, in the printed setting, the least-squares slope of log mean squared "
    "gradient against log 1/tau over the five temperatures is within 0.1 of 2.02 with R^2 of at "
    "least 0.99; otherwise does not reproduce. The sweep over cosines and the law with the squared "
    "miss divided out are reported beside it.",
    size={
        "smoke": "5 temperatures x 3 batches, n = 32, d = 32, 5 cosines",
        "small": "5 temperatures x 50 batches, n = 256, d = 1024, 5 cosines",
        "paper": "5 temperatures x 5,000 batches, n = 256, d = 1024, 5 cosines (temperatures share "
        "their batches), sigma-hat = 0.30",
    },
    minutes={"smoke": 0.02, "small": 0.2, "paper": 9},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
