"""Paragraph "Numerical scale": B_tau is about 0.02 in training."""

from typing import TYPE_CHECKING

import numpy as np

from eigenbatch.core import variance_coefficient
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN
from eigenbatch_paper.training_chunks import FEWER_SEEDS, training_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRINTED = 0.02


def chunks(scale: Scale) -> list[Chunk]:
    """The runs of "Real-Data Band Validation"."""
    every = 100 if scale == "paper" else 1
    return [
        training_chunk(scale, seed, recipe="imagenet1k", read_every=every)
        for seed in range(FEWER_SEEDS[scale])
    ]


def judge(rows: list[Row]) -> Verdict:
    """B_tau over the last tenth of training, and beside A sigma*."""
    ends = [float(np.mean(_remainder(row)[-_tenth(row) :])) for row in rows]
    spectral = [float(np.mean(_spectral(row)[-_tenth(row) :])) for row in rows]
    return decided(
        {"B_tau is 0.02 within a factor of 2": PRINTED / 2 <= float(np.mean(ends)) <= 2 * PRINTED},
        {"A sigma* dominates": min(a / b for a, b in zip(spectral, ends, strict=True)) > 1},
        f"B_tau {np.mean(ends):.2g} over the last tenth of training (runs {min(ends):.2g} to "
        f"{max(ends):.2g}); A sigma-hat {np.mean(spectral):.2g}",
        f"B_tau is the mean squared miss: {PRINTED} needs a miss of 0.14 against "
        f"{2 * rows[0]['batch_size'] - 2:,} negatives here.",
    )


def _tenth(row: Row) -> int:
    return max(1, len(row["readings"]["gradient_force"]) // 10)


def _remainder(row: Row) -> np.ndarray:
    """E[eps^2] (1 + 1/N-); the force of a reading is the mean of (eps / tau)^2."""
    negatives = 2 * row["batch_size"] - 2
    squares = row["tau"] ** 2 * np.array(row["readings"]["gradient_force"])
    return np.asarray(squares * (1 + 1 / negatives))


def _spectral(row: Row) -> np.ndarray:
    coefficient = variance_coefficient(2 * row["batch_size"] - 2, row["tau"])
    return np.asarray(coefficient * np.array(row["readings"]["sigma_hat"]))


def draw(rows: list[Row], figure: "Figure") -> None:
    """B_tau over training."""
    axes = figure.subplots()
    for runs in facts.grouped(rows, "seed").values():
        axes.plot(runs[0]["read_at"], _remainder(runs[0]), color=BLUE, lw=0.8)
    axes.axhline(PRINTED, color=GREEN, ls="--", label="printed: 0.02")
    axes.set(yscale="log", xlabel="step", ylabel="B_tau", title="One line per run")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="variance-remainder",
    section="Diversity manipulation via in-batch whitening, Numerical scale",
    statement="In training B_tau is about 0.02, so A sigma* dominates the variance band.",
    printed="B_tau about 0.02",
    criterion="B_tau, averaged over the last tenth of training and over runs, is between 0.01 and "
    "0.04; and A sigma-hat is larger in every run.",
    runs="SimCLR, every step",
    paper_size="ImageNet-1k, ResNet-50, n=4096, tau=0.1, 90 epochs, every 100 steps",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
