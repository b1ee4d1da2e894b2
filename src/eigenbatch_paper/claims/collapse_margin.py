"""Figure "Training dynamics": does sigma-hat above 0.99 come before a collapse?"""

from typing import TYPE_CHECKING, Any

from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import CYCLE, GREY
from eigenbatch_paper.training_chunks import FEWER_SEEDS, training_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, STEPS = 0.99, 3000
ENOUGH = 3  # runs above the margin, for a statement about all of them
FACTORS = (1, 10, 100, 1000)  # of the learning rate


def chunks(scale: Scale) -> list[Chunk]:
    """SimCLR with learning rates that are right, too high and far too high."""
    base = 0.6 if scale == "paper" else 2e-3
    changes: dict[str, Any] = {"epochs": 6} if scale == "small" else {}
    return [
        training_chunk(scale, seed, lr=factor * base, read_every=1, **changes)
        for seed in range(FEWER_SEEDS[scale])
        for factor in FACTORS
    ]


def judge(rows: list[Row]) -> Verdict:
    """Runs above the margin, and how they end."""
    warned = [row for row in rows if _first(row) is not None]
    lost = [row for row in rows if _collapsed(row)]
    right = [row for row in warned if _collapsed(row)]
    silent = [row for row in lost if _first(row) is None]
    starts = [row["readings"]["sigma_hat"][0] for row in rows]
    shortest = min(row["read_at"][-1] for row in rows)
    return decided(
        {
            "every run above 0.99 collapses within 3,000 steps": len(right) == len(warned)
            if len(warned) >= ENOUGH
            else "open"
        },
        {"no run collapses without a warning": not silent},
        f"{len(warned)} of {len(rows)} runs exceed 0.99, {len(right)} of them end collapsed; "
        f"{len(lost)} collapse in all, {len(silent)} without a warning",
        "Collapsed: kNN accuracy is no higher than that of the untrained encoder, 3,000 steps "
        "after the first warning or at the end. (The paper flags collapse by sigma-hat itself, "
        "which makes the statement empty.) Learning rates 1, 10, 100 and 1,000 times the usual "
        f"one. Fewer than {ENOUGH} runs above the margin decide nothing. Until they were judged "
        "again the first epoch was left out, for no good reason: the untrained encoders are at "
        f"{min(starts):.2f} to {max(starts):.2f}. Runs end after {int(shortest):,} steps or later.",
    )


def _first(row: Row) -> int | None:
    """The first step whose sigma-hat is above the margin."""
    pairs = zip(row["read_at"], row["readings"]["sigma_hat"], strict=True)
    return next((step for step, value in pairs if value > MARGIN), None)


def _collapsed(row: Row) -> bool:
    """Whether accuracy is no higher than untrained, 3,000 steps after the warning or at the end."""
    begin = _first(row)
    steps = [epoch * row["steps_per_epoch"] for epoch in row["curve_epochs"]]
    last = next((i for i, s in enumerate(steps) if begin is not None and s >= begin + STEPS), -1)
    return not row["knn"][last] > row["first_accuracy"]  # NaN is a collapse


def draw(rows: list[Row], figure: "Figure") -> None:
    """Sigma-hat of every run."""
    axes = figure.subplots()
    rates = sorted({row["lr"] for row in rows})
    for row in rows:
        colour = CYCLE[rates.index(row["lr"]) % len(CYCLE)]
        label = f"learning rate {row['lr']:g}" if row["seed"] == 0 else None
        axes.plot(row["read_at"], row["readings"]["sigma_hat"], color=colour, lw=0.8, label=label)
    axes.axhline(MARGIN, color="red", ls="--", lw=1)
    axes.axhline(0, color=GREY, lw=0.5)
    axes.set(xlabel="step", ylabel="sigma-hat of the batch", title="Red: the printed margin, 0.99")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="collapse-margin",
    section="Spectral Pool-Policy Comparison, Figure on training dynamics",
    statement="Exceeding sigma-hat = 0.99 reliably precedes collapse within about 3,000 steps.",
    printed="reliably, within 3K steps",
    criterion="Every run whose sigma-hat exceeds 0.99, three at least, is no more accurate than "
    "the untrained encoder 3,000 steps later or at the end; and no run ends so without having "
    "exceeded it.",
    runs="4 learning rates",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
