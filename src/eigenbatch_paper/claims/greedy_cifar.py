"""Section "Greedy vs. Pool-Based Spectral Selection": probe sizes against P3 and Random."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import POLICIES as POLICY_COLOURS
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, equal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WINDOW = "p3-1.05-1.15"
GREEDY = ("greedy-16", "greedy-64", "greedy-256")
FASTER = ("greedy-64", "greedy-256")


def chunks(scale: Scale) -> list[Chunk]:
    """Random, P3 with the printed window and three probe sizes, paired by seed."""
    changes = {"small": {"data": "cifar10", "tau": 0.2}}.get(scale, {})
    return policies(scale, ("random", WINDOW, *GREEDY), FEWER_SEEDS, recipe="cifar10", **changes)


def judge(rows: list[Row]) -> Verdict:
    """Time to 90 % of P3's accuracy, and the order of probe sizes."""
    groups = facts.grouped(rows, "selector")
    target = facts.target_of(groups[WINDOW], facts.CIFAR_TARGET)
    time = facts.time_to(target)
    savings = {
        f"{name} against {other}": facts.saved(groups[name], groups[other], time)
        for name in FASTER
        for other in ("random", WINDOW)
    }
    close = facts.gain(groups["greedy-256"], groups[WINDOW], facts.accuracy)
    area = facts.gain(groups["greedy-256"], groups[WINDOW], facts.accuracy_area)
    small = facts.gain(groups["greedy-64"], groups["greedy-16"], facts.accuracy)
    gains = {
        name: facts.gain(groups[name], groups["random"], facts.accuracy)
        for name in (WINDOW, *GREEDY)
    }
    return decided(
        {
            "Greedy-64 is faster than Random to 90 % of P3's accuracy": effect(
                savings["greedy-64 against random"]
            )
        },
        {
            "Greedy-64 and Greedy-256 are faster than Random and P3": all_of(
                map(effect, savings.values())
            ),
            "Greedy-256 ends at P3's accuracy (within a point)": equal(close, within=0.01),
            "Greedy-256 has P3's AUAC (within a point)": equal(area, within=0.01),
            "Greedy-16 is worse than Greedy-64": effect(small),
            "no collapse": not any(facts.collapsed(row) for row in rows),
        },
        f"time saved to {target:.3f}: {facts.listed(savings)}; "
        "final accuracy against Random: " + facts.listed(gains, "points")
        + "; AUAC of the first half: "
        + ", ".join(f"{name} {facts.mean(groups[name], facts.accuracy_area):.3f}"
                    for name in ("random", *FASTER, WINDOW)),
        facts.unreached(rows, target) + " R_eff of the batches: "
        + ", ".join(f"{name} {_rank(group):.1f}" for name, group in groups.items()) + ".",
    )  # fmt: skip


def _rank(rows: list[Row]) -> float:
    return facts.mean(rows, lambda row: row["mean_rank"])


def draw(rows: list[Row], figure: "Figure") -> None:
    """Loss and sigma; accuracy and R_eff; final accuracy and time to the target."""
    figure.set_size_inches(9, 8)
    groups = facts.grouped(rows, "selector")
    (loss, sigma), (accuracy, rank), (final, time) = figure.subplots(3, 2)
    target = facts.target_of(groups[WINDOW], facts.CIFAR_TARGET)
    for place, (colour, (name, runs)) in enumerate(
        zip(POLICY_COLOURS, groups.items(), strict=False)
    ):
        label = facts.LABELS[name]
        steps = [r["read_at"] for r in runs]
        epochs = [range(1, len(runs[0]["losses"]) + 1)] * len(runs)
        facts.draw_mean(loss, epochs, [r["losses"] for r in runs], colour, label)
        facts.draw_mean(sigma, steps, [r["readings"]["sigma_hat"] for r in runs], colour)
        facts.draw_mean(
            accuracy, [r["curve_epochs"] for r in runs], [r["knn"] for r in runs], colour
        )
        facts.draw_mean(rank, steps, [r["readings"]["participation_ratio"] for r in runs], colour)
        for axes, quantity in ((final, facts.accuracy), (time, facts.time_to(target))):
            axes.bar(place, facts.mean(runs, quantity), color=colour)
            axes.plot([place] * len(runs), [quantity(row) for row in runs], "k.", markersize=3)
    loss.set(xlabel="epoch", ylabel="training loss")
    sigma.set(xlabel="step", ylabel="sigma-hat of the batch")
    accuracy.set(xlabel="epoch", ylabel="kNN accuracy")
    rank.set(xlabel="step", ylabel="R_eff of the batch")
    final.set(ylabel="final accuracy", xticks=[])
    time.set(ylabel="seconds to 90 % of P3", xticks=[])
    figure.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=6,
                  frameon=False, fontsize=8)  # fmt: skip
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)


CLAIM = training_claim(
    name="greedy-cifar",
    section="Greedy vs. Pool-Based Spectral Selection",
    statement="Greedy-64 and Greedy-256 reach 90 % of P3's accuracy sooner than Random and P3; "
    "Greedy-256 tracks P3; Greedy-16 is too small; nothing collapses.",
    printed="sooner than Random and P3; up to 25 % less time than P3; 0 collapses",
    criterion="Greedy-64 saves time against Random to 90 % of P3's final accuracy; and "
    "Greedy-64 and Greedy-256 save time against both Random and P3, Greedy-256 has P3's final "
    "accuracy and AUAC over the first half within a point, Greedy-16's accuracy is "
    "below Greedy-64's, nothing collapses.",
    runs="5 policies",
    paper_size="5 policies: CIFAR-10, ResNet-18, n=512, k=5120, 400 epochs",
    chunks=chunks,
    timed=True,
    judge=judge,
    draw=draw,
)
