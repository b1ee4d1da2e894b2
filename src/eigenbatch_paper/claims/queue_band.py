"""Appendix "MoCo v2": the queue-aware band holds the measured gradient."""

from typing import TYPE_CHECKING

from eigenbatch.core import QueueSample
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import FEWER_SEEDS, moco_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = ("paper", "certified")
SAMPLE = QueueSample().size  # keys that the printed proxy looks at


def chunks(scale: Scale) -> list[Chunk]:
    """MoCo with a reading at every step."""
    return [moco_chunk(scale, seed, read_every=1) for seed in range(FEWER_SEEDS[scale])]


def judge(rows: list[Row]) -> Verdict:
    """Containment of the batch mean in the paper's and in the certified band."""
    inside = {name: [c for row in rows for c in _contained(row, name)] for name in BANDS}
    widths = {name: _widths(rows, name) for name in BANDS}
    shares = {name: sum(found) / len(found) for name, found in inside.items()}
    return decided(
        {
            "the gradient is always inside the queue-aware band": shares["paper"] == 1,
            "the queue is longer than the sample of its keys": "shown"
            if min(row["queue_size"] for row in rows) > SAMPLE
            else "open",
        },
        {},
        f"inside: printed {shares['paper']:.2%}, certified {shares['certified']:.2%} of "
        f"{len(inside['paper']):,} batches; median ceiling / gradient: printed "
        f"{widths['paper']:.3g}, certified {widths['certified']:.3g}",
    )


def _contained(row: Row, band: str) -> list[bool]:
    reading = row["readings"]
    return [
        low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
        for low, value, high in zip(
            reading[f"{band}_lower"], reading["gradient"], reading[f"{band}_upper"], strict=True
        )
    ]


def _widths(rows: list[Row], band: str) -> float:
    ratios = sorted(
        high / value
        for row in rows
        for high, value in zip(
            row["readings"][f"{band}_upper"], row["readings"]["gradient"], strict=True
        )
    )
    return float(ratios[len(ratios) // 2])


def draw(rows: list[Row], figure: "Figure") -> None:
    """One run inside both bands."""
    axes = figure.subplots()
    facts.draw_band(axes, facts.grouped(rows, "seed")[0][0])
    axes.set_title("MoCo: the gradient inside its bands")


CLAIM = training_claim(
    name="queue-band",
    section="MoCo v2: Queue-aware band proxies",
    statement="The band with the queue's spectrum in place of the batch's holds the gradient.",
    printed="contained (no figure given)",
    criterion="The batch-mean squared gradient of every step of every run lies in the printed "
    "queue-aware band, with a queue longer than the sample that the band is made from.",
    runs="MoCo, every step",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
