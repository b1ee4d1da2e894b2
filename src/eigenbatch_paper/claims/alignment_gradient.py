"""Appendix "Positive alignment and vanishing gradients": gradient against cosine."""

from typing import TYPE_CHECKING

import numpy as np

from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, ORANGE
from eigenbatch_paper.training_chunks import SEEDS, short_run, training_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 200
EDGES = np.linspace(-1, 1, 41)


def chunks(scale: Scale) -> list[Chunk]:
    """The first 200 steps of SimCLR, at tau = 0.2."""
    return [training_chunk(scale, seed, tau=0.2) for seed in range(SEEDS[scale])]


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Sums of ||gradient|| / (its mean at step 1), of its floor and counts, by the cosine."""
    from eigenbatch import infonce
    from eigenbatch.train import Observer, Step, Training

    class Bins(Observer):
        def __init__(self) -> None:
            self.first: float | None = None
            self.counts, self.norms, self.floors = (np.zeros(len(EDGES) - 1) for _ in range(3))

        def on_step(self, training: Training, step: Step) -> None:
            values = infonce(step.outcome.contrast(), chunk.settings["tau"])
            norms = values.squared_gradient.sqrt().double().cpu().numpy()
            contrast = values.contrast
            positives = contrast.keys[contrast.positive]
            cosines = (contrast.anchors * positives).sum(1).double().cpu().numpy()
            if self.first is None:
                self.first = float(norms.mean())
            where = np.clip(np.digitize(cosines, EDGES) - 1, 0, len(self.counts) - 1)
            floors = (1 - values.alignment.double().cpu().numpy()) / chunk.settings["tau"]
            np.add.at(self.counts, where, 1)
            np.add.at(self.norms, where, norms / self.first)
            np.add.at(self.floors, where, floors / self.first)

    bins = Bins()
    short_run(chunk, place, steps=STEPS, observers=[bins])
    return [
        dict(chunk.settings)
        | {
            "counts": bins.counts.tolist(),
            "norms": bins.norms.tolist(),
            "floors": bins.floors.tolist(),
        }
    ]


def judge(rows: list[Row]) -> Verdict:
    """Linear in 1 - cosine, and vanishing beyond 0.8."""
    centres, norms, counts = _curve(rows, "norms")
    slope, offset = np.polyfit(1 - centres, norms, 1, w=np.sqrt(counts))
    fitted = offset + slope * (1 - centres)
    average = np.average(norms, weights=counts)
    r2 = 1 - np.average((norms - fitted) ** 2, weights=counts) / np.average(
        (norms - average) ** 2, weights=counts
    )
    high, low = centres > 0.8, centres < 0.3
    left = np.average(norms[high], weights=counts[high]) if high.any() else np.nan
    start = np.average(norms[low], weights=counts[low]) if low.any() else np.nan
    return decided(
        {
            "the gradient falls linearly in 1 - cosine (slope > 0, R^2 > 0.9)": bool(
                slope > 0 and r2 > 0.9
            )
        },
        {
            "it is proportional to 1 - cosine: less than a tenth is left at cosine 1": bool(
                offset < 0.1
            ),
            "beyond a cosine of 0.8 less than a fifth is left": bool(left < 0.2),
        },
        f"slope {slope:.2f}, R^2 = {r2:.3f}; {offset:.2f} left at cosine 1; normalised "
        f"gradient {start:.2f} below a cosine of 0.3, {left:.2f} above 0.8",
        "The unit is the mean at step 1, of an untrained encoder, which is small: relative to its "
        f"value at cosine 0 {offset / (offset + slope):.0%} is left at cosine 1. The gradient is "
        "(miss / tau) ||m - z+||: its geometry falls as sqrt(1 - cosine) when negatives are "
        "spread, and the miss probability falls on top of it.",
    )


def _curve(rows: list[Row], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres, means and counts of the bins that hold at least a thousandth of all anchors."""
    counts = np.sum([row["counts"] for row in rows], axis=0)
    sums = np.sum([row[name] for row in rows], axis=0)
    kept = counts > counts.sum() / 1000
    centres = (EDGES[1:] + EDGES[:-1]) / 2
    return centres[kept], sums[kept] / counts[kept], counts[kept]


def draw(rows: list[Row], figure: "Figure") -> None:
    """The mean gradient in each bin, and the floor."""
    axes = figure.subplots()
    centres, norms, _ = _curve(rows, "norms")
    axes.plot(centres, norms, "o-", color=BLUE, label="measured")
    axes.plot(
        *_curve(rows, "floors")[:2],
        "--",
        color=ORANGE,
        label="floor (1 - alignment) / tau",
    )
    axes.set(xlabel="cosine of anchor and positive", ylabel="gradient norm, 1 = mean at step 1",
             title="Well-aligned pairs pull less")  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="alignment-gradient",
    section="Positive alignment and vanishing gradients, Figure",
    statement="Over the first 200 steps the gradient norm falls about linearly in 1 - cosine of "
    "anchor and positive, and is effectively zero beyond 0.8.",
    printed="well scaled below 0.3, linear, vanishing beyond 0.8",
    criterion="A weighted linear fit of the binned mean norm on 1 - cosine has a positive slope "
    "and R^2 > 0.9; and its value at cosine 1 is below 0.1 and the mean norm beyond 0.8 below 0.2 "
    "of the start.",
    runs="first 200 steps",
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
)
