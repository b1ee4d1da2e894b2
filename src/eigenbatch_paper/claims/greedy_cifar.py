"""Section "Greedy vs. Pool-Based Spectral Selection": probe sizes against P3 and Random."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale, Verdict
from eigenbatch_paper.training_chunks import policies, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEDY = ("greedy-16", "greedy-64", "greedy-256", "greedy-pool")


def chunks(scale: Scale) -> list[Chunk]:
    """Random, P3 and four probe sizes, paired by seed; the paper's own setting has CIFAR-10."""
    return policies(scale, ("random", "p3", *GREEDY), recipe="cifar10")


def judge(rows: list[Row]) -> Verdict:
    """Time to 90 % of P3's accuracy, and the order of probe sizes."""
    groups = facts.grouped(rows, "selector")
    target = 0.9 * facts.mean(groups["p3"], facts.accuracy)
    time = facts.time_to(target)
    saving = facts.saved(groups["greedy-64"], groups["random"], time)
    close = facts.gain(groups["greedy-256"], groups["p3"], facts.accuracy)
    small = facts.gain(groups["greedy-64"], groups["greedy-16"], facts.accuracy)
    gains = {
        name: facts.gain(groups[name], groups["random"], facts.accuracy) for name in ("p3", *GREEDY)
    }
    return facts.graded(
        {"Greedy-64 is faster than Random to 90 % of P3's accuracy": facts.better(saving)},
        {
            "Greedy-256 ends at P3's accuracy": not close.significant,
            "Greedy-16 is worse than Greedy-64": facts.better(small),
            "no collapse": not any(facts.collapsed(row) for row in rows),
        },
        f"Greedy-64 saves {facts.percent(saving)} of the time to {target:.3f}; "
        "final accuracy against Random: " + facts.listed(gains, "points")
        + f"; AUAC Random {facts.mean(groups['random'], facts.accuracy_area):.3f}, "
        f"Greedy-64 {facts.mean(groups['greedy-64'], facts.accuracy_area):.3f}, "
        f"P3 {facts.mean(groups['p3'], facts.accuracy_area):.3f}",
        "R_eff of the batches: "
        + ", ".join(f"{name} {_rank(group):.1f}" for name, group in groups.items()),
    )  # fmt: skip


def _rank(rows: list[Row]) -> float:
    return facts.mean(rows, lambda row: row["mean_rank"])


def draw(rows: list[Row], figure: "Figure") -> None:
    """What each policy gains over Random."""
    groups = facts.grouped(rows, "selector")
    left, right = figure.subplots(1, 2, sharey=True)
    names = ("p3", *GREEDY)
    time = facts.time_to(0.9 * facts.mean(groups["p3"], facts.accuracy))
    random = groups["random"]
    gains = [facts.gain(groups[name], random, facts.accuracy) for name in names]
    savings = [facts.saved(groups[name], random, time) for name in names]
    facts.draw_differences(left, names, gains, "accuracy gained over Random, points")
    facts.draw_differences(right, names, savings, "time saved to the target, %")
    figure.suptitle("Blue: significant at 95 % (paired over seeds); grey: not", fontsize=10)


CLAIM = training_claim(
    name="greedy-cifar",
    section="Greedy vs. Pool-Based Spectral Selection",
    statement="Greedy-64 and Greedy-256 reach 90 % of P3's accuracy sooner than Random; Greedy-256 "
    "tracks P3; Greedy-16 is too small; nothing collapses.",
    printed="up to 25 % less time for Greedy-m at comparable accuracy; 0 collapses",
    criterion="The time Greedy-64 saves against Random to 90 % of P3's final accuracy is "
    "significantly positive; and Greedy-256's accuracy does not differ from P3's, Greedy-16's is "
    "below Greedy-64's, nothing collapses.",
    runs="6 policies",
    paper_size="6 policies: CIFAR-10, ResNet-18, n=512, k=5120, 400 epochs",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
