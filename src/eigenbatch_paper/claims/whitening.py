"""Section "Diversity manipulation via in-batch whitening": raw and whitened batches in turn."""

from typing import TYPE_CHECKING, Any

import numpy as np

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale, Verdict
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, SHADE
from eigenbatch_paper.training_chunks import FEWER_SEEDS, training_chunk, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIOD = {"smoke": 4, "small": 100, "paper": 100}


def chunks(scale: Scale) -> list[Chunk]:
    """SimCLR that whitens every other `PERIOD` batches, read at every step."""
    changes: dict[str, Any] = {"epochs": 18} if scale == "small" else {}
    changes |= {"read_every": 1, "whiten_period": PERIOD[scale]}
    return [
        training_chunk(scale, seed, recipe="imagenet1k", **changes)
        for seed in range(FEWER_SEEDS[scale])
    ]


def judge(rows: list[Row]) -> Verdict:
    """The spectrum's peak and the ratio of rolling variances after the first two spans."""
    spans = [_spans(row, skip=0) for row in rows]
    ratios = [raw / white for raw, white, _ in spans]
    settled = [raw / white for raw, white, _ in (_spans(row, skip=0.5) for row in rows)]
    sigmas = [row["dim"] * sigma for row, (_, _, sigma) in zip(rows, spans, strict=True)]
    ratio = _geometric_mean(ratios)
    return facts.graded(
        {"whitened batches have the smaller rolling variance in every run": min(ratios) > 1},
        {
            "the ratio is 1.37 within 10 %": abs(ratio / 1.37 - 1) < 0.1,
            "sigma of whitened batches within 10 % of 1/d": max(sigmas) < 1.1,
        },
        f"raw / whitened rolling variance {ratio:.2f}x (runs {min(ratios):.2f} to "
        f"{max(ratios):.2f}), {_geometric_mean(settled):.2f}x in the second half of every span; "
        f"sigma of whitened batches {np.mean(sigmas):.2f} / d",
        "Much of the raw spans' variance is the way back after a switch: while batches are "
        "whitened nothing keeps the embeddings themselves apart, and sigma-hat of raw ones jumps "
        "up. Putting whitened rows back on the sphere undoes part of the whitening.",
    )


def _spans(row: Row, *, skip: float) -> tuple[float, float, float]:
    """Mean rolling variance of raw and of whitened spans, and sigma-hat of the latter.

    skip: share of every span that is left out at its beginning.
    """
    period = row["whiten_period"]
    window = max(2, period // 2)
    gradient = np.array(row["readings"]["gradient"])
    sigma = np.array(row["readings"]["sigma_hat"])
    raw: list[float] = []
    white: list[float] = []
    tops: list[float] = []
    for start in range(2 * period, len(gradient) - period + 1, period):
        span = gradient[start + round(skip * period) : start + period]
        rolling = [span[i : i + window].var(ddof=1) for i in range(len(span) - window + 1)]
        whitened = start // period % 2 == 1
        (white if whitened else raw).append(float(np.mean(rolling)))
        if whitened:
            tops.append(sigma[start : start + period].mean())
    return float(np.mean(raw)), float(np.mean(white)), float(np.mean(tops))


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def draw(rows: list[Row], figure: "Figure") -> None:
    """One run, with whitened spans shaded."""
    row = facts.grouped(rows, "seed")[0][0]
    top, bottom = figure.subplots(2, 1, sharex=True)
    period, gradient = row["whiten_period"], row["readings"]["gradient"]
    top.plot(gradient, color=BLUE, lw=0.7)
    top.set(ylabel="mean squared\ngradient", yscale="log",
            title="Whitened batches (shaded): another gradient, an even spectrum")  # fmt: skip
    bottom.plot(row["readings"]["sigma_hat"], color=ORANGE, lw=0.7)
    bottom.axhline(1 / row["dim"], color=GREY, ls=":", lw=1)
    bottom.set(xlabel="step", ylabel="strongest\ndirection", yscale="log")
    for axes in (top, bottom):
        for start in range(period, len(gradient), 2 * period):
            axes.axvspan(start, min(start + period, len(gradient)), color=SHADE, lw=0, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="whitening",
    section="Diversity manipulation via in-batch whitening",
    statement="Whitening a batch brings sigma to about 1/d and lowers the 50-step rolling variance "
    "of the gradient by 1.37x.",
    printed="raw / whitened 1.37x; sigma about 1/d",
    criterion="In every run the mean rolling variance of raw spans exceeds that of whitened ones; "
    "and the ratio (geometric mean of the runs) is within 10 % of 1.37, sigma within 10 % of 1/d.",
    runs="100 raw, 100 whitened steps in turn",
    paper_size="ImageNet-1k, ResNet-50, n=4096, 100 raw / 100 whitened steps in turn",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
