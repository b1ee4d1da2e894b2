"""Beyond the paper: Auto on data with duplicates."""

from typing import TYPE_CHECKING

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Claim, Row, Scale
from eigenbatch_paper.pair_runs import COPIED, COPIED_EPOCHS, SEEDS, compute, needs, pair_chunk
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEST = {"tripled": 0.021, "long-tailed": 0.027}
"""Gain in MRR of guarded neighbours, the best fixed policy (claim guarded-batches)."""

WITHIN = 0.005


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Auto on both versions of the data."""
    return [
        pair_chunk(
            scale, seed, data=data, selector=selector, batch_size=256, epochs=epochs,
            evaluate_every=50,
        )
        for seed in range(SEEDS[scale])
        for data, epochs in COPIED_EPOCHS.items()
        for selector in ("random", "auto")
    ]  # fmt: skip


def judge(rows: list[Row]) -> Verdict:
    """Auto must be close to the best fixed policy."""
    main: dict[str, Finding | bool] = {}
    measured = []
    for data, group in grouped(rows, "data").items():
        groups = grouped(group, "selector")
        auto, random = groups["auto"], groups["random"]
        gain = facts.gain(auto, random)
        main[f"{data}: within half a point of the best policy"] = (
            gain.mean >= BEST.get(data, 0) - WITHIN if gain.enough else "open"
        )
        measured.append(
            f"{data}: auto {facts.interval(gain, 'points')}; {facts.reaching(auto, random)}"
        )
    return decided(main, {}, "; ".join(measured))


def draw(rows: list[Row], figure: "Figure") -> None:
    """Retrieval over time on both versions."""
    versions = grouped(rows, "data")
    for axes, (data, group) in zip(
        figure.subplots(1, len(versions)), versions.items(), strict=True
    ):
        facts.draw_curves(axes, grouped(group, "selector"), data)


CLAIM = Claim(
    name="auto-copies",
    section="Beyond the paper",
    statement="Auto keeps the gain of hard batches on data where samples stand several times: it "
    "has a guard of its own.",
    printed="nothing",
    criterion="On both versions of the data Auto's mean gain in final MRR over Random is at most "
    "half a point below that of guarded neighbours in the claim guarded-batches "
    f"({100 * BEST['tripled']:+.1f} and {100 * BEST['long-tailed']:+.1f} points).",
    size={"smoke": "made-up pairs, 2 epochs", "small": COPIED, "paper": COPIED},
    minutes={"smoke": 0.2, "small": 25, "paper": 25},
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs=needs,
)
