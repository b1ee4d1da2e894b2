"""Paragraph "MoCo queue note": how correlated the keys of a queue are."""

from typing import TYPE_CHECKING

from eigenbatch.core import sampling_inflation
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREEN, GREY
from eigenbatch_paper.training_chunks import (
    FEWER_SEEDS,
    moco_chunk,
    settings_of,
    short_run,
    training_claim,
)
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS: dict[Scale, int] = {"smoke": 12, "small": 200, "paper": 2000}
LIMIT, NEGATIVES = 1e-3, 1024  # the printed sizes
CLOSE = 1.1  # "remains close to 1"


def chunks(scale: Scale) -> list[Chunk]:
    """The first steps of MoCo."""
    return [
        Chunk(c.name, {**c.settings, "steps": STEPS[scale]})
        for c in (moco_chunk(scale, seed) for seed in range(FEWER_SEEDS[scale]))
    ]


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Mean cosine of two different keys of the queue, at every tenth step."""
    from eigenbatch.train import Observer, Step, Training

    class Correlation(Observer):
        def __init__(self) -> None:
            self.steps: list[int] = []
            self.values: list[float] = []

        def on_step(self, training: Training, step: Step) -> None:
            if training.step % 10 and training.step != chunk.settings["steps"]:
                return
            keys = step.outcome.contrast().candidates.double()  # (K, d)
            total = keys.sum(0).square().sum().item()
            self.steps.append(training.step)
            self.values.append((total - len(keys)) / (len(keys) * (len(keys) - 1)))

    seen = Correlation()
    short_run(chunk, place, steps=chunk.settings["steps"], observers=[seen])
    return [settings_of(chunk, place) | {"read_at": seen.steps, "correlation": seen.values}]


def judge(rows: list[Row]) -> Verdict:
    """The correlation at the end of the steps, and the inflation that follows from it."""
    ends = [row["correlation"][-1] for row in rows]
    factors = [sampling_inflation(NEGATIVES, max(0.0, value)) for value in ends]
    return decided(
        {"the mean correlation is below 1e-3 in every run": max(ends) < LIMIT},
        {"the sampling term is inflated by less than 10 %": max(factors) < CLOSE},
        f"mean correlation {min(ends):.2g} to {max(ends):.2g} after {rows[0]['read_at'][-1]} "
        f"steps; inflation at N- = {NEGATIVES} x{min(factors):,.0f} to x{max(factors):,.0f}",
        "Embeddings share a mean direction early in training, so that all keys are correlated, "
        "not only neighbours in the queue. Later steps were not looked at; the paper does not "
        "say when it looked.",
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """The correlation of every run."""
    axes = figure.subplots()
    for row in facts.grouped(rows, "seed").values():
        axes.plot(row[0]["read_at"], row[0]["correlation"], "o-", markersize=3, color=BLUE)
    axes.axhline(0, color=GREY, lw=1)
    axes.axhline(LIMIT, color=GREEN, ls="--", label="printed: far below 0.001")
    axes.set(yscale="symlog", xlabel="step", ylabel="mean cosine of two keys",
             title="Keys of a MoCo queue, one line per run")  # fmt: skip
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="queue-correlation",
    section="Effect of Correlated Negatives, MoCo queue note",
    statement="Averaged over all pairs the keys of a MoCo queue are hardly correlated, so the "
    "sampling term is not inflated.",
    printed="mean correlation far below 1e-3; inflation close to 1 for N- <= 1024",
    criterion="The mean cosine of two keys of the queue is below 1e-3 at the end of the steps in "
    "every run; and 1 + 1023 times it is below 1.1.",
    runs="MoCo, first steps",
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
)
