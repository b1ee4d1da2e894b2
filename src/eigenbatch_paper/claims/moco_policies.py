"""Appendix "MoCo v2": Random, P3 and Greedy-64 with a queue; queue sizes and targets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.tables import Table, mean_sem
from eigenbatch_paper.training_chunks import FEWER_SEEDS, moco_chunk, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, no_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUEUES = {"smoke": (64, 128), "small": (2048, 8192), "paper": (16_384, 32_768, 65_536)}
MANY_SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "paper": 10}
SIDE_SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 0, "paper": 3}  # targets, shorter queues
TARGETS = ("p3-0.3", "p3-0.7")
SAVED = {"p3": 0.094, "greedy-64": 0.059}  # over ten and three seeds
OVERHEAD = 0.01
PRINTED = {
    (3, "random"): ("74.2 ± 0.3", "146.3 ± 2.5", ""),
    (3, "greedy-64"): ("74.0 ± 0.4", "137.7 ± 1.8", "+5.9"),
    (3, "p3"): ("74.5 ± 0.2", "132.8 ± 2.1", "+9.2"),
    (10, "random"): ("74.19 ± 0.23", "146.3 ± 2.7", ""),
    (10, "p3"): ("74.52 ± 0.19", "132.6 ± 1.9", "+9.4 ± 1.3"),
}


def chunks(scale: Scale) -> list[Chunk]:
    """Random and P3 with many seeds; Greedy-64 with three; targets, queues and ResNet-50."""
    longest = max(QUEUES[scale])
    runs = []
    for seed in range(MANY_SEEDS[scale]):
        both = ("random", "p3")
        runs += [moco_chunk(scale, seed, selector=p, queue_size=longest) for p in both]
        if seed < FEWER_SEEDS[scale]:
            runs.append(moco_chunk(scale, seed, selector="greedy-64", queue_size=longest))
        if seed >= SIDE_SEEDS[scale]:
            continue
        runs += [moco_chunk(scale, seed, selector=policy, queue_size=longest) for policy in TARGETS]
        runs += [
            moco_chunk(scale, seed, selector=p, queue_size=queue)
            for queue in QUEUES[scale][:-1]
            for p in both
        ]
        if scale == "paper":
            runs += [moco_chunk(scale, seed, selector=p, encoder="resnet50") for p in both]
    return runs


def judge(rows: list[Row]) -> Verdict:
    """Epochs to 94.3 % of Random's accuracy, the share that 70 is of 74.2."""
    groups, longest, target = _groups(rows)
    random = groups["random", longest]
    epochs = {
        name: facts.saved(groups[name, longest], random, facts.epochs_to(target))
        for name in ("p3", "greedy-64", *TARGETS)
        if (name, longest) in groups
    }
    gains = {name: facts.gain(groups[name, longest], random, facts.accuracy) for name in epochs}
    gains |= {
        f"queue {queue:,}": facts.gain(groups["p3", queue], groups["random", queue], facts.accuracy)
        for selector, queue in groups
        if selector == "p3" and queue != longest
    }
    spent = facts.mean(groups["p3", longest], lambda row: float(row["selection_share"]))
    shorter = {
        f"queue {queue:,}": facts.saved(
            groups["p3", queue], groups["random", queue], facts.epochs_to(target)
        )
        for selector, queue in groups
        if selector == "p3" and queue != longest
    }
    wide, wide_gains = _wide(rows)
    gains |= wide_gains
    return decided(
        {"P3 saves epochs": effect(epochs["p3"], SAVED["p3"])},
        {
            "Greedy-64 saves epochs": effect(epochs["greedy-64"], SAVED["greedy-64"]),
            "P3 saves epochs at targets 0.3 and 0.7": all_of(
                effect(epochs[n]) for n in TARGETS if n in epochs
            ),
            "P3 saves epochs with shorter queues": all_of(effect(d) for d in shorter.values()),
            "P3 saves epochs with ResNet-50": all_of(effect(d) for d in wide.values()),
            "no accuracy is lost (within a point)": all_of(
                no_loss(d, within=0.01) for d in gains.values()
            ),
            "selection takes P3 at most 1 % of the time": spent <= OVERHEAD,
        },
        f"epochs saved to {target:.3f}: "
        + facts.listed({**epochs, **shorter, **wide})
        + "; accuracy: "
        + facts.listed(gains, "points"),
        f"{facts.unreached(rows, target)} Selection takes {spent:.1%} of the time of P3. A pool "
        "of two batches leaves little to choose from."
        + ("" if shorter else " The targets 0.3 and 0.7 and shorter queues are run at paper scale.")
        + ("" if wide else " ResNet-50 is run at paper scale only."),
    )


def _groups(rows: list[Row]) -> tuple[dict[Any, list[Row]], int, float]:
    """Runs of the default encoder by policy and queue, the longest queue, and the target."""
    groups = facts.grouped([r for r in rows if r.get("encoder") != "resnet50"], "selector",
                           "queue_size")  # fmt: skip
    longest = max(queue for _, queue in groups)
    return groups, longest, facts.target_of(groups["random", longest], facts.MOCO_TARGET)


def _wide(rows: list[Row]) -> tuple[dict[str, PairedDifference], dict[str, PairedDifference]]:
    """Epochs saved, to a target of its own, and accuracy gained by P3 with ResNet-50, if run."""
    groups = facts.grouped([r for r in rows if r.get("encoder") == "resnet50"], "selector")
    if not groups:
        return {}, {}
    target = facts.target_of(groups["random"], facts.MOCO_TARGET)
    both = groups["p3"], groups["random"]
    saved, gained = facts.saved(*both, facts.epochs_to(target)), facts.gain(*both, facts.accuracy)
    return {"ResNet-50": saved}, {"ResNet-50": gained}


def table(rows: list[Row]) -> Table:
    """Table "MoCo v2 on ImageNet-100": three seeds, then all."""
    groups, longest, target = _groups(rows)
    lines = []
    for (seeds, name), printed in PRINTED.items():
        runs, random = groups[name, longest], groups["random", longest]
        if seeds == 3:
            runs, random = runs[:3], random[:3]
        saved = facts.saved(runs, random, facts.epochs_to(target))
        ours = (
            mean_sem(map(facts.accuracy, runs), scale=100),
            facts.at_least(mean_sem(map(facts.epochs_to(target), runs)), runs, target),
            "" if name == "random" else facts.percent(saved),
        )
        label = f"{facts.LABELS[name]}, {len(runs)} seed{'s' * (len(runs) > 1)}"
        lines.append((label, tuple(zip(ours, printed, strict=True))))
    return Table(
        f"Epochs to {facts.MOCO_TARGET:.1%} of the final accuracy of Random, {target:.3f}.",
        (
            "Method",
            "kNN accuracy, % (printed: top-1)",
            "Epochs to the target",
            "Speed-up, % (95 % CI)",
        ),
        lines,
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """Epochs saved by each policy."""
    groups, _, target = _groups(rows)
    names, differences = [], []
    for selector, queue in groups:
        if selector != "random":
            names.append(f"{selector}, queue {queue:,}")
            differences.append(
                facts.saved(
                    groups[selector, queue], groups["random", queue], facts.epochs_to(target)
                )
            )
    axes = figure.subplots()
    facts.draw_differences(axes, names, differences, "epochs saved against Random, %")
    axes.set_title("MoCo: blue is significant at 95 %, grey is not", fontsize=10)


CLAIM = training_claim(
    name="moco-policies",
    section="MoCo v2: Queue-based evaluation and robustness, Table",
    statement="With MoCo v2, P3 saves 9 % of the epochs and Greedy-64 6 %, at equal accuracy, for "
    "all queue sizes and rank targets.",
    printed="epochs +9.4 % (P3, 10 seeds), +5.9 % (Greedy-64, 3 seeds); accuracy +0.3 and -0.2 "
    "points; selection at most 1 % of the time",
    criterion="P3 saves epochs at the longest queue to 94.3 % of Random's final accuracy; and so "
    "do Greedy-64 and (at paper scale) the targets 0.3 and 0.7, the shorter queues and ResNet-50, "
    "and none of them loses a point of accuracy, and P3's selection takes at most 1 % of the time.",
    runs="MoCo, Random, P3 and Greedy-64, pool 2n",
    chunks=chunks,
    judge=judge,
    draw=draw,
    table=table,
)
