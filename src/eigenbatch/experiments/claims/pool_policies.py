"""Table "Speed-stability trade-off": P1, P2, P3 and uniform sampling."""

from typing import TYPE_CHECKING

from eigenbatch.experiments.claim import Chunk, Claim, Row, Scale, Verdict
from eigenbatch.experiments.training_chunks import compute, minutes, policies, size_text
from eigenbatch.experiments.training_facts import (
    COLOURS,
    LABELS,
    accuracy,
    better,
    collapsed,
    gain,
    graded,
    grouped,
    loss_area,
    mean,
    peak_sigma,
    percent,
    saved,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("random", "p1", "p2", "p3")


def chunks(scale: Scale) -> list[Chunk]:
    """Four policies, paired by seed."""
    return policies(scale, POLICIES)


def judge(rows: list[Row]) -> Verdict:
    """Speed first, then the order of the anisotropy peaks."""
    groups = grouped(rows, "selector")
    vanilla = groups["random"]
    faster = {name: saved(groups[name], vanilla, loss_area) for name in ("p1", "p2", "p3")}
    peaks = {name: mean(groups[name], peak_sigma) for name in POLICIES}
    gains = {name: gain(groups[name], vanilla, accuracy) for name in ("p1", "p2", "p3")}
    return graded(
        {"P1, P2 and P3 all have a lower loss area": all(better(one) for one in faster.values())},
        {
            "P2's loss area is the lowest": faster["p2"].mean
            == max(d.mean for d in faster.values()),
            "peak sigma is lowest for P1 and highest for P2": peaks["p1"] == min(peaks.values())
            and peaks["p2"] == max(peaks.values()),
            "equal final accuracy": not any(one.significant for one in gains.values()),
            "no collapse": not any(collapsed(row) for row in rows),
        },
        "loss area against uniform: "
        + ", ".join(f"{name.upper()} {percent(one)} lower" for name, one in faster.items())
        + "; peak sigma "
        + ", ".join(f"{name} {value:.2f}" for name, value in peaks.items())
        + "; accuracy "
        + ", ".join(f"{name.upper()} {percent(one)}" for name, one in gains.items()),
        "The loss area is no measure of speed: a selector changes the batches that the loss is "
        "measured on. Accuracy is the fair comparison.",
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """Loss and anisotropy over training."""
    left, right = figure.subplots(1, 2)
    for colour, (name, runs) in zip(COLOURS, grouped(rows, "selector").items(), strict=False):
        losses = [
            sum(column) / len(column) for column in zip(*(r["losses"] for r in runs), strict=True)
        ]
        left.plot(range(1, len(losses) + 1), losses, color=colour, label=LABELS[name])
        sigmas = [r["readings"]["sigma_hat"] for r in runs]
        means = [sum(column) / len(column) for column in zip(*sigmas, strict=True)]
        right.plot(runs[0]["read_at"], means, color=colour)
    left.set(xlabel="epoch", ylabel="training loss", title="Loss")
    right.set(
        xlabel="step", ylabel="share of the strongest direction", title="Anisotropy of batches"
    )
    left.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)


CLAIM = Claim(
    name="pool-policies",
    section="Spectral Pool-Policy Comparison, Table 1",
    statement="Choosing the batch from a pool by its spectrum speeds training up: P2 is fastest, "
    "P1 has the most even spectrum, P3 lies between; all end at the same accuracy.",
    printed="AULC 1.38 / 1.24 / 1.30 (P1 / P2 / P3) against 1.46; peak sigma 0.87 / 0.97 / 0.94 "
    "against 0.92; 0 of 5 collapse",
    criterion="P1, P2 and P3 each have a significantly lower AULC than uniform sampling (paired "
    "95 % CI); and P2's is the lowest, peak sigma is lowest for P1 and highest for P2, final "
    "accuracies do not differ significantly, nothing collapses.",
    size={s: size_text(s, "4 policies") for s in ("smoke", "small", "paper")},
    minutes=minutes({"smoke": 8, "small": 20, "paper": 20}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
