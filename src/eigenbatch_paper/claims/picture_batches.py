"""Beyond the paper: hard batches where random ones are hard already, as in SimCLR on pictures."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, no_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = ("auto", "neighbours-4")
MARGIN = 0.01
SEEDS = {**FEWER_SEEDS, "small": 10}
NAMES = {"folder": "pictures of 100 classes", "cifar10": "CIFAR-10", "digits": "digits"}
Gains = dict[str, dict[str, PairedDifference]]


def chunks(scale: Scale) -> list[Chunk]:
    """Auto and neighbours against Random, on two sets of pictures."""
    three = ("random", *POLICIES)
    cifar = {"small": {"data": "cifar10", "tau": 0.2}}.get(scale, {})
    both = [
        *policies(scale, three, SEEDS),
        *policies(scale, three, SEEDS, recipe="cifar10", **cifar),
    ]
    return list({chunk.name: chunk for chunk in both}.values())


def judge(rows: list[Row]) -> Verdict:
    """Neither may lose by kNN or by the linear probe."""
    parts, texts = {}, []
    for name, of_data in facts.grouped(rows, "data").items():
        gains = _gains(of_data)
        for policy, measures in gains.items():
            part = f"{policy} loses less than a point on {NAMES[name]}"
            parts[part] = all_of(no_loss(one, within=MARGIN) for one in measures.values())
        texts += [
            f"{NAMES[name]}, {measure}: "
            + facts.listed({policy: gains[policy][measure] for policy in POLICIES}, "points")
            for measure in ("kNN", "linear")
        ]
    return decided(
        {name: part for name, part in parts.items() if name.startswith("auto")},
        {name: part for name, part in parts.items() if not name.startswith("auto")},
        "; ".join(texts),
        _sameness(rows),
    )


def _sameness(rows: list[Row]) -> str:
    """How many runs of Auto are those of Random, because it stayed at random batches."""
    curves = {(row["data"], row["selector"], row["seed"]): row["knn"] for row in rows}
    autos = {key: curve for key, curve in curves.items() if key[1] == "auto"}
    same = [curve == curves[data, "random", seed] for (data, _, seed), curve in autos.items()]
    return (
        f"{sum(same)} of {len(same)} runs of auto have the accuracy of random's at every "
        "evaluation: it stayed at random batches, which are those of random then."
    )


def _gains(rows: list[Row]) -> Gains:
    groups = facts.grouped(rows, "selector")
    return {
        policy: {
            "kNN": facts.gain(groups[policy], groups["random"], facts.accuracy),
            "linear": facts.gain(groups[policy], groups["random"], facts.linear),
        }
        for policy in POLICIES
    }


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains on each set."""
    sets = facts.grouped(rows, "data")
    for axes, (name, of_data) in zip(
        figure.subplots(1, len(sets), squeeze=False)[0], sets.items(), strict=True
    ):
        gains = {
            f"{policy}, {measure}": one
            for policy, measures in _gains(of_data).items()
            for measure, one in measures.items()
        }
        facts.draw_differences(axes, list(gains), list(gains.values()), "accuracy gained, points")
        axes.set_title(NAMES[name], fontsize=10)


CLAIM = training_claim(
    name="picture-batches",
    section="Beyond the paper",
    statement="Where random batches are hard already, as in SimCLR on pictures, Auto harms "
    "nothing, and neighbours cost less than a point.",
    printed="nothing",
    criterion="On ImageNet-100 (small: Tiny-ImageNet-100) and CIFAR-10 the 95 % intervals of "
    "Auto's gain over Random by kNN and by the linear probe do not reach below -1 point; the same "
    "for neighbours-4.",
    runs="3 policies on 2 data sets",
    paper_size="3 policies: ImageNet-100 (200 epochs) and CIFAR-10 (400), ResNet-18, n=512, "
    "k=5,120, tau=0.1 and 0.2",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
