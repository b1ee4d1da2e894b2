"""Table "Speed-stability trade-off": P1, P2, P3 and uniform sampling."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.tables import Table, mean_sem
from eigenbatch_paper.training_chunks import policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, equal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p2", "p3")
SAFETY = 0.99
PRINTED = {
    "p1": ("1.38 ± 0.03", "0.87 ± 0.02", "0 / 5"),
    "p3": ("1.30 ± 0.02", "0.94 ± 0.03", "0 / 5"),
    "p2": ("1.24 ± 0.04", "0.97 ± 0.02", "0 / 5"),
    "random": ("1.46 ± 0.05", "0.92 ± 0.03", "0 / 5"),
}
AREAS = {"p1": 1 - 1.38 / 1.46, "p2": 1 - 1.24 / 1.46, "p3": 1 - 1.30 / 1.46}
CLOSE = 0.05
PEAKS = {"p1": 0.87 - 0.92, "p2": 0.97 - 0.92}


def chunks(scale: Scale) -> list[Chunk]:
    """Four policies, paired by seed."""
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Speed first, then the anisotropy peaks."""
    groups = facts.grouped(rows, "selector")
    vanilla = groups["random"]
    faster = {name: facts.saved(groups[name], vanilla, facts.loss_area) for name in AREAS}
    peaks = {name: facts.mean(groups[name], facts.peak_sigma) for name in POLICIES}
    apart = {name: facts.gain(groups[name], vanilla, facts.peak_sigma) for name in PEAKS}
    gains = {name: facts.gain(groups[name], vanilla, facts.accuracy) for name in AREAS}
    ahead = {
        name: facts.saved(groups["p2"], groups[name], facts.loss_area) for name in ("p1", "p3")
    }
    return decided(
        {
            "P1, P2 and P3 all have a lower loss area": all_of(
                effect(faster[name], AREAS[name]) for name in AREAS
            )
        },
        {
            "P2's loss area is the lowest": all_of(effect(one) for one in ahead.values()),
            "P3's is within 5 % of it": equal(ahead["p3"], within=CLOSE),
            "peak sigma is lower for P1 and higher for P2": all_of(
                effect(apart[name], PEAKS[name]) for name in PEAKS
            ),
            "equal final accuracy (within a point)": all_of(
                equal(one, within=0.01) for one in gains.values()
            ),
            "no collapse": not any(facts.collapsed(row) for row in rows),
        },
        "loss area lower than uniform by "
        + facts.listed(faster)
        + "; peak sigma "
        + ", ".join(f"{name} {value:.2f}" for name, value in peaks.items())
        + "; accuracy "
        + facts.listed(gains, "points"),
        "The loss area is no measure of speed: a selector changes the batches that the loss is "
        "measured on. Accuracy is the fair comparison. " + _peaks(rows),
    )


def _peaks(rows: list[Row]) -> str:
    """Where the peaks are."""
    read = [row["readings"]["sigma_hat"] for row in rows]
    first = sum(sigma[0] == max(sigma) for sigma in read)
    return (
        f"The peak is the first reading, of the untrained encoder, in {first} of {len(rows)} runs: "
        "there a policy changes nothing but which batch comes first."
    )


def table(rows: list[Row]) -> Table:
    """Table "Speed-stability trade-off"."""
    groups = facts.grouped(rows, "selector")
    lines = []
    for name, printed in PRINTED.items():
        runs = groups[name]
        ours = (
            mean_sem(map(facts.loss_area, runs), digits=4, scale=1e-3),
            mean_sem(map(facts.peak_sigma, runs), digits=2),
            f"{sum(facts.peak_sigma(row) > SAFETY for row in runs)} / {len(runs)}",
        )
        lines.append((facts.LABELS[name], tuple(zip(ours, printed, strict=True))))
    return Table(
        "Loss area (mean loss of an epoch, summed over epochs) and peak sigma.",
        ("Policy", "AULC, thousands", "Peak sigma", "Runs above 0.99"),
        lines,
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """Loss, anisotropy and its inverse over training; faint: single seeds."""
    figure.set_size_inches(7, 8)
    top, middle, bottom = figure.subplots(3, 1)
    for colour, (name, runs) in zip(
        POLICY_COLOURS, facts.grouped(rows, "selector").items(), strict=False
    ):
        epochs = [range(1, len(runs[0]["losses"]) + 1)] * len(runs)
        facts.draw_mean(top, epochs, [r["losses"] for r in runs], colour, facts.LABELS[name])
        steps = [r["read_at"] for r in runs]
        sigmas = [r["readings"]["sigma_hat"] for r in runs]
        facts.draw_mean(middle, steps, sigmas, colour)
        facts.draw_mean(bottom, steps, [[1 / s for s in one] for one in sigmas], colour)
    middle.axhline(SAFETY, color="red", ls="--", lw=1)
    top.set(xlabel="epoch", ylabel="training loss")
    top.set_title("Thick: mean of the seeds; faint: single seeds", fontsize=10)
    middle.set(xlabel="step", ylabel="sigma-hat of the batch", ylim=(0, 1.05))
    bottom.set(xlabel="step", ylabel="1 / sigma-hat")
    top.legend(frameon=False, fontsize=8)
    for axes in (top, middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="pool-policies",
    section="Spectral Pool-Policy Comparison, Table 1",
    statement="Choosing the batch from a pool by its spectrum speeds training up: P2 is fastest, "
    "P1 has the most even spectrum, P3 lies between; all end at the same accuracy.",
    printed="AULC 1.38 / 1.24 / 1.30 (P1 / P2 / P3) against 1.46; peak sigma 0.87 / 0.97 / 0.94 "
    "against 0.92; 0 of 5 collapse",
    criterion="P1, P2 and P3 each have a lower AULC than uniform sampling; and P2's is the lowest, "
    "P3's within 5 % of it, peak sigma (largest of the whole run, step 1 included) is lower "
    "than uniform for P1 and higher for P2, final accuracies are equal within a point, nothing "
    "collapses.",
    runs="4 policies",
    chunks=chunks,
    judge=judge,
    draw=draw,
    table=table,
)
