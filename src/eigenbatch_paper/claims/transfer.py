"""Section "Robustness": frozen MoCo features on other data sets."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.training_chunks import (
    FEWER_SEEDS,
    moco_chunk,
    settings_of,
    trained,
    training_claim,
)
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, no_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from eigenbatch.train.data import ImageConfig

DATA = {"smoke": ("digits",), "small": ("cifar10",), "paper": ("cifar10", "pets")}
PRINTED = {"cifar10": 0.005, "pets": 0.003}
NAMES = {"digits": "digits", "cifar10": "CIFAR-10", "pets": "Oxford Pets"}


def chunks(scale: Scale) -> list[Chunk]:
    """MoCo with Random and P3, probed on each of the other data sets."""
    return [
        Chunk(f"{chunk.name}-on-{'-'.join(DATA[scale])}", {**chunk.settings, "probed": DATA[scale]})
        for seed in range(FEWER_SEEDS[scale])
        for chunk in (moco_chunk(scale, seed, selector=name) for name in ("random", "p3"))
    ]


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train, or read the run that other claims share; then probe its frozen features."""
    from eigenbatch.train import probe_run

    run = Chunk(chunk.name.partition("-on-")[0], _without_probes(chunk))
    trained(run, place)
    settings = settings_of(run, place)
    found = {
        name: probe_run(place.runs / run.name, _data(name, place, workers=settings["workers"]))
        for name in chunk.settings["probed"]
    }
    return [settings | {"probes": found}]


def _without_probes(chunk: Chunk) -> dict[str, object]:
    return {name: value for name, value in chunk.settings.items() if name != "probed"}


def _data(name: str, place: Place, *, workers: int) -> "ImageConfig":
    from eigenbatch.train import Run, override

    settings = [f"data={name}", f"data.workers={workers}"]
    if (folder := place.folder(name)) is not None:
        settings.append(f"data.directory={folder}")
    data: ImageConfig = override(Run(), settings).data  # type: ignore[assignment]
    return data


def judge(rows: list[Row]) -> Verdict:
    """The printed probe on every other data set."""
    gains = {name: _gain(rows, name) for name in rows[0]["probes"]}
    return decided(
        {
            "P3 gains on every other data set": all_of(
                effect(one, PRINTED.get(name)) for name, one in gains.items()
            )
        },
        {
            "P3 does not lose a point on any": all_of(
                no_loss(one, within=0.01) for one in gains.values()
            )
        },
        "linear accuracy (SGD, 90 epochs at 0.03) of P3 against Random: "
        + facts.listed({NAMES[name]: one for name, one in gains.items()}, "points"),
        "" if "pets" in gains else "Oxford Pets is probed at paper scale only.",
    )


def _gain(rows: list[Row], name: str) -> PairedDifference:
    groups = facts.grouped(rows, "selector")
    return facts.gain(groups["p3"], groups["random"], lambda row: float(row["probes"][name]))


def draw(rows: list[Row], figure: "Figure") -> None:
    """The gain of P3 on each data set."""
    names = list(rows[0]["probes"])
    axes = figure.subplots()
    gains = [_gain(rows, name) for name in names]
    facts.draw_differences(
        axes, [NAMES[name] for name in names], gains, "linear accuracy of P3 over Random, points"
    )
    axes.set_title("Frozen MoCo features on other data; blue: significant at 95 %", fontsize=10)


CLAIM = training_claim(
    name="transfer",
    section="MoCo v2, Robustness: frozen-feature linear evaluation",
    statement="MoCo features trained with P3 transfer better than those trained with Random.",
    printed="+0.5 points on CIFAR-10, +0.3 on Oxford Pets",
    criterion="P3's linear accuracy (SGD, 90 epochs, rate 0.03) is above Random's on every other "
    "data set; and is a point below it on none.",
    runs="MoCo, 2 policies",
    paper_size="MoCo v2, ImageNet-100, ResNet-18, 2 policies, probed on CIFAR-10 and Oxford Pets",
    chunks=chunks,
    compute=compute,
    judge=judge,
    draw=draw,
)
