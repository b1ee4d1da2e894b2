"""Section "Greedy vs. Pool-Based Spectral Selection": probe sizes against P3 and Random."""

from typing import TYPE_CHECKING, Any

from eigenbatch.experiments.claim import Chunk, Claim, Row, Scale, Verdict
from eigenbatch.experiments.training_chunks import compute, minutes, policies, size_text
from eigenbatch.experiments.training_facts import (
    accuracy,
    accuracy_area,
    better,
    collapsed,
    draw_differences,
    gain,
    graded,
    grouped,
    mean,
    percent,
    saved,
    time_to,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEDY = ("greedy-16", "greedy-64", "greedy-256", "greedy-pool")


def chunks(scale: Scale) -> list[Chunk]:
    """Random, P3 and four probe sizes, paired by seed; the paper's own setting has CIFAR-10."""
    printed: dict[str, Any] = {
        "data": "cifar10", "image_size": 32, "stem": "cifar", "tau": 0.2, "epochs": 400,
        "optimizer": "sgd", "lr": 0.06, "weight_decay": 5e-4,
    }  # fmt: skip
    return policies(scale, ("random", "p3", *GREEDY), **(printed if scale == "paper" else {}))


def judge(rows: list[Row]) -> Verdict:
    """Time to 90 % of P3's accuracy, and the order of probe sizes."""
    groups = grouped(rows, "selector")
    target = 0.9 * mean(groups["p3"], accuracy)
    time = time_to(target)
    saving = saved(groups["greedy-64"], groups["random"], time)
    close = gain(groups["greedy-256"], groups["p3"], accuracy)
    small = gain(groups["greedy-64"], groups["greedy-16"], accuracy)
    gains = {name: gain(groups[name], groups["random"], accuracy) for name in ("p3", *GREEDY)}
    return graded(
        {"Greedy-64 is faster than Random to 90 % of P3's accuracy": better(saving)},
        {
            "Greedy-256 ends at P3's accuracy": not close.significant,
            "Greedy-16 is worse than Greedy-64": better(small),
            "no collapse": not any(collapsed(row) for row in rows),
        },
        f"Greedy-64 saves {percent(saving)} of the time to {target:.3f}; final accuracy against "
        "Random: " + ", ".join(f"{name} {percent(one)}" for name, one in gains.items())
        + f"; AUAC Random {mean(groups['random'], accuracy_area):.3f}, "
        f"Greedy-64 {mean(groups['greedy-64'], accuracy_area):.3f}, "
        f"P3 {mean(groups['p3'], accuracy_area):.3f}",
        "R_eff of the batches: "
        + ", ".join(f"{name} {_rank(group):.1f}" for name, group in groups.items()),
    )  # fmt: skip


def _rank(rows: list[Row]) -> float:
    return mean(rows, lambda row: row["batch_rank"])


def draw(rows: list[Row], figure: "Figure") -> None:
    """What each policy gains over Random."""
    groups = grouped(rows, "selector")
    left, right = figure.subplots(1, 2, sharey=True)
    names = ("p3", *GREEDY)
    time = time_to(0.9 * mean(groups["p3"], accuracy))
    random = groups["random"]
    draw_differences(left, names, [gain(groups[n], random, accuracy) for n in names],
                     "accuracy gained over Random, points")  # fmt: skip
    draw_differences(right, names, [saved(groups[n], random, time) for n in names],
                     "time saved to the target, %")  # fmt: skip
    figure.suptitle("Blue: significant at 95 % (paired over seeds); grey: not", fontsize=10)


CLAIM = Claim(
    name="greedy-cifar",
    section="Greedy vs. Pool-Based Spectral Selection",
    statement="Greedy-64 and Greedy-256 reach 90 % of P3's accuracy sooner than Random; Greedy-256 "
    "tracks P3; Greedy-16 is too small; nothing collapses.",
    printed="up to 25 % less time for Greedy-m at comparable accuracy; 0 collapses",
    criterion="The time Greedy-64 saves against Random to 90 % of P3's final accuracy is "
    "significantly positive; and Greedy-256's accuracy does not differ from P3's, Greedy-16's is "
    "below Greedy-64's, nothing collapses.",
    size={s: size_text(s, "6 policies") for s in ("smoke", "small")}
    | {"paper": "6 policies: CIFAR-10, ResNet-18, n=512, k=5120, 400 epochs"},
    minutes=minutes({"smoke": 12, "small": 30, "paper": 30}),
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
    needs_images=True,
)
