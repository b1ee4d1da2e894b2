"""Beyond the paper: hard batches where random ones are hard already, as in SimCLR on pictures."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, no_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 0.01
SEEDS = {**FEWER_SEEDS, "small": 10}
NAMES = {"folder": "pictures of 100 classes", "cifar10": "CIFAR-10", "digits": "digits"}


def chunks(scale: Scale) -> list[Chunk]:
    """Neighbours against Random, on two sets of pictures."""
    cifar = {"small": {"data": "cifar10", "tau": 0.2}}.get(scale, {})
    both = [
        *policies(scale, ("random", "neighbours"), SEEDS),
        *policies(scale, ("random", "neighbours"), SEEDS, recipe="cifar10", **cifar),
    ]
    return list({chunk.name: chunk for chunk in both}.values())


def judge(rows: list[Row]) -> Verdict:
    """They may lose neither by kNN nor by the linear probe."""
    gains = {name: _gains(of_data) for name, of_data in facts.grouped(rows, "data").items()}
    return decided(
        {
            f"less than a point on {NAMES[name]}": all_of(
                no_loss(one, within=MARGIN) for one in measures.values()
            )
            for name, measures in gains.items()
        },
        {},
        "; ".join(f"{NAMES[name]}: {facts.listed(one, 'points')}" for name, one in gains.items()),
        "The runs are of the planner before the present one, which began neighbourhoods at four "
        "samples.",
    )


def _gains(rows: list[Row]) -> dict[str, PairedDifference]:
    groups = facts.grouped(rows, "selector")
    hard, random = groups["neighbours"], groups["random"]
    return {
        "kNN": facts.gain(hard, random, facts.accuracy),
        "linear": facts.gain(hard, random, facts.linear),
    }


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains on each set."""
    sets = facts.grouped(rows, "data")
    for axes, (name, of_data) in zip(
        figure.subplots(1, len(sets), squeeze=False)[0], sets.items(), strict=True
    ):
        gains = _gains(of_data)
        facts.draw_differences(axes, list(gains), list(gains.values()), "accuracy gained, points")
        axes.set_title(NAMES[name], fontsize=10)


CLAIM = training_claim(
    name="picture-batches",
    section="Beyond the paper",
    statement="Where random batches are hard already, as in SimCLR on pictures, neighbours cost "
    "less than a point.",
    printed="nothing",
    criterion="On ImageNet-100 (small: Tiny-ImageNet-100) and CIFAR-10 the 95 % intervals of the "
    "gain of neighbours over Random by kNN and by the linear probe do not reach below -1 point.",
    runs="2 policies on 2 data sets",
    paper_size="2 policies: ImageNet-100 (200 epochs) and CIFAR-10 (400), ResNet-18, n=512, "
    "k=5,120, tau=0.1 and 0.2",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
