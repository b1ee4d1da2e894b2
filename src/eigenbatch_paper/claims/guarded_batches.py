"""Beyond the paper: hard batches of data with duplicates, with and without a guard."""

from typing import TYPE_CHECKING

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Claim, Row, Scale
from eigenbatch_paper.pair_runs import COPIED, COPIED_EPOCHS, SEEDS, compute, needs, pair_chunk
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Finding, Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GUARD = 0.95
POLICIES = {"random": {}, "neighbours-4": {}, "guarded": {"guard": GUARD}}
LEAST = 0.02
"""Gain in MRR that hard batches have without duplicates (claim hard-batches, n=256)."""


def chunks(scale: Scale) -> list[Chunk]:
    """Random, neighbours and guarded neighbours on both versions of the data."""
    return [
        pair_chunk(
            scale,
            seed,
            data=data,
            selector="random" if name == "random" else "neighbours-4",
            batch_size=256,
            epochs=epochs,
            evaluate_every=50,
            **guard,
        )
        for seed in range(SEEDS[scale])
        for data, epochs in COPIED_EPOCHS.items()
        for name, guard in POLICIES.items()
    ]


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows by policy; with a guard neighbours are called guarded."""
    named = [row | {"policy": "guarded" if row.get("guard") else row["selector"]} for row in rows]
    return grouped(named, "policy")


def judge(rows: list[Row]) -> Verdict:
    """Guarded batches must keep the gain that hard batches have without duplicates."""
    main: dict[str, Finding | bool] = {}
    rest: dict[str, Finding | bool] = {}
    measured = []
    for data, group in grouped(rows, "data").items():
        groups = _groups(group)
        random = groups["random"]
        gains = {name: facts.gain(groups[name], random) for name in ("neighbours-4", "guarded")}
        against = facts.gain(groups["guarded"], groups["neighbours-4"])
        enough = against.enough
        main[f"{data}: guarded batches gain {100 * LEAST:+.0f} points"] = (
            gains["guarded"].mean >= LEAST if enough else "open"
        )
        rest[f"{data}: the guard does not cost accuracy"] = against.high >= 0 if enough else "open"
        measured.append(
            f"{data}: "
            + ", ".join(f"{name} {facts.interval(one, 'points')}" for name, one in gains.items())
            + f"; guarded {facts.reaching(groups['guarded'], random)}"
        )
    return decided(main, rest, "; ".join(measured))


def draw(rows: list[Row], figure: "Figure") -> None:
    """Retrieval over time on both versions."""
    versions = grouped(rows, "data")
    for axes, (data, group) in zip(
        figure.subplots(1, len(versions)), versions.items(), strict=True
    ):
        facts.draw_curves(axes, _groups(group), data)


CLAIM = Claim(
    name="guarded-batches",
    section="Beyond the paper",
    statement="With a guard against near-duplicates, hard batches keep their gain on data where "
    "samples stand several times.",
    printed="nothing",
    criterion=f"On both versions of the data the mean gain in final MRR of neighbours-4 with a "
    f"guard of {GUARD} over Random is at least {100 * LEAST:.0f} points; and it is not "
    "significantly below that of neighbours without a guard.",
    size={"smoke": "made-up pairs, 2 epochs", "small": COPIED, "paper": COPIED},
    minutes={"smoke": 0.3, "small": 40, "paper": 40},
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs=needs,
)
