"""Section "Real-Data Band Validation": the gradient inside its band throughout training."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import FEWER_SEEDS, training_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chunks(scale: Scale) -> list[Chunk]:
    """SimCLR with a reading at every step (every 100 at the paper's scale)."""
    every = 100 if scale == "paper" else 1
    return [
        training_chunk(scale, seed, recipe="imagenet1k", read_every=every)
        for seed in range(FEWER_SEEDS[scale])
    ]


def judge(rows: list[Row]) -> Verdict:
    """Containment of every reading; tightness beside it."""
    count = inside = certified = 0
    ceilings, floors, certified_ceilings = [], [], []
    for row in rows:
        for low, value, high, best_low, best in _columns(row):
            count += 1
            inside += low <= value <= high
            certified += best_low * (1 - 1e-9) <= value <= best * (1 + 1e-9)
            ceilings.append(high / value)
            floors.append(value / low)
            certified_ceilings.append(best / value)
    return decided(
        {"every reading lies in the printed band": inside == count},
        {"the band tracks the gradient (median ceiling within 10x)": _median(ceilings) < 10},
        f"{inside / count:.2%} of {count:,} readings inside; ceiling / gradient: printed "
        f"{_median(ceilings):.3g} (median; largest {max(ceilings):.3g}), certified "
        f"{_median(certified_ceilings):.3f}; gradient / printed floor {_median(floors):.3g}; "
        f"certified holds {certified / count:.2%}",
        "The tau^-4 and tau^-6 terms make the printed ceiling too high to be of use.",
    )


def _columns(row: Row) -> list[tuple[float, float, float, float, float]]:
    r = row["readings"]
    return list(
        zip(r["paper_lower"], r["gradient"], r["paper_upper"], r["certified_lower"],
            r["certified_upper"], strict=True)
    )  # fmt: skip


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def draw(rows: list[Row], figure: "Figure") -> None:
    """One run inside both bands."""
    axes = figure.subplots()
    facts.draw_band(axes, facts.grouped(rows, "seed")[0][0])
    axes.set_title("Real images: the gradient inside its bands")


CLAIM = training_claim(
    name="real-band",
    section="Real-Data Band Validation",
    statement="Throughout SimCLR training the batch-mean squared gradient lies in [LB, UB], and "
    "the band tracks it closely.",
    printed="all measured batch means inside; the band tracks closely",
    criterion="Every reading of every run lies in the printed band; and the median ceiling is "
    "within a factor of 10 of the gradient.",
    runs="SimCLR, every step",
    paper_size="ImageNet-1k, ResNet-50, n=4096, tau=0.1, 90 epochs, every 100 steps",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
