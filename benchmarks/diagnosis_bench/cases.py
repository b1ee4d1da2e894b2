"""Every run of the bench: what is changed, and the findings that would be right, stated before."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. The defaults are healthy; `expected` names every finding that would be correct."""

    layout: str  # simclr, moco, towers
    name: str
    expected: tuple[str, ...] = ()  # none: healthy
    tau: float = 0.1
    batch: int = 128
    dimension: int = 64
    rate: float = 1e-3
    sgd: bool = False
    norm: bool = True  # batch norm
    steps: int = 300
    end: str = ""  # relu, rank4, scaled: how the head ends
    augment: float = 1.0
    mark: bool = False  # a mark of its own in both views of a picture
    wrong: float = 0.0  # share of pairs that are shuffled
    same_batch: bool = False
    frozen: str = ""  # all, second
    loss: str = ""  # multiplied, raw, unmasked, nan: what is wrong with it
    repeats: int = 1  # copies of every sample in the data
    blank: float = 0.0  # share of blank inputs
    queue: str = ""  # random, stale: what is wrong with it
    queue_size: int = 512
    momentum: float = 0.99
    samples: int = 0  # data are cut to so many; 0: all
    learned: bool = False  # a learned scale


SOLVED = "task solved"
SIMCLR = [
    Case(layout="simclr", name="healthy"),
    Case(layout="simclr", name="tau 0.2", tau=0.2),
    Case(layout="simclr", name="tau 0.5", tau=0.5),
    Case(layout="simclr", name="batch 64", batch=64),
    Case(layout="simclr", name="batch 256", batch=256),
    Case(layout="simclr", name="dimension 256", dimension=256),
    Case(layout="simclr", name="dimension 16", dimension=16),
    Case(layout="simclr", name="SGD", sgd=True, rate=0.05),
    Case(layout="simclr", name="no batch norm", norm=False),
    Case(layout="simclr", name="tau 0.005", tau=0.005, expected=("temperature too low",)),
    Case(layout="simclr", name="tau 3", tau=3.0, expected=("temperature too high",)),
    Case(
        layout="simclr", name="no augmentation", augment=0.0, expected=("identical views", SOLVED)
    ),
    Case(layout="simclr", name="watermark", mark=True, expected=(SOLVED,)),
    Case(layout="simclr", name="learning rate 0", rate=0.0, expected=("encoder does not move",)),
    Case(layout="simclr", name="30 % wrong pairs", wrong=0.3, expected=("misaligned pairs",)),
    Case(layout="simclr", name="same batch", same_batch=True, expected=("same batch repeated",)),
    Case(layout="simclr", name="ReLU head", end="relu", expected=("ReLU at the end",)),
    Case(
        layout="simclr",
        name="one scaled dimension",
        end="scaled",
        expected=("one dimension dominates",),
    ),
    Case(
        layout="simclr",
        name="rank-4 head",
        end="rank4",
        expected=("dimensional collapse",),
    ),
    Case(layout="simclr", name="batch 8", batch=8, expected=("few negatives",)),
    Case(
        layout="simclr",
        name="learning rate x 1000",
        rate=10.0,
        sgd=True,
        norm=False,
        expected=("collapsing", "not finite", "dimensional collapse", "stuck at chance"),
    ),
    Case(layout="simclr", name="NaN at step 150", loss="nan", expected=("not finite",)),
    Case(layout="simclr", name="logits x tau", loss="multiplied", expected=("loss mismatch",)),
    Case(
        layout="simclr",
        name="not normalised",
        loss="raw",
        expected=("loss mismatch", "non-unit input"),
    ),
    Case(layout="simclr", name="no self-mask", loss="unmasked", expected=("loss mismatch",)),
    Case(
        layout="simclr",
        name="data repeated 6 times",
        samples=200,
        repeats=6,
        expected=("false negatives", "repeated ids"),
    ),
    Case(layout="simclr", name="15 % blank", blank=0.15, expected=("false negatives",)),
]
MOCO = [
    Case(layout="moco", name="healthy"),
    Case(layout="moco", name="momentum 0.999", momentum=0.999, steps=1100),
    Case(layout="moco", name="tau 0.2", tau=0.2),
    Case(layout="moco", name="random queue", queue="random", expected=("queue unlike keys",)),
    Case(layout="moco", name="stale queue", queue="stale", expected=("queue unlike keys",)),
    Case(
        layout="moco",
        name="key encoder never updated",
        momentum=1.0,
        steps=1100,
        expected=("encoder does not move",),
    ),
    Case(
        layout="moco",
        name="queue longer than the data",
        queue_size=1024,
        samples=512,
        expected=("self-negatives",),
    ),
]
TOWERS = [
    Case(layout="towers", name="healthy"),
    Case(layout="towers", name="tau 0.05", tau=0.05),
    Case(layout="towers", name="batch 64", batch=64),
    Case(layout="towers", name="dimension 256", dimension=256),
    Case(layout="towers", name="learned scale", learned=True),
    Case(
        layout="towers",
        name="second tower frozen",
        frozen="second",
        expected=("encoder does not move",),
    ),
    Case(layout="towers", name="learning rate 0", rate=0.0, expected=("encoder does not move",)),
    Case(layout="towers", name="tau 3", tau=3.0, expected=("temperature too high",)),
    Case(layout="towers", name="tau 0.005", tau=0.005, expected=("temperature too low",)),
    Case(layout="towers", name="30 % wrong pairs", wrong=0.3, expected=("misaligned pairs",)),
    Case(layout="towers", name="same batch", same_batch=True, expected=("same batch repeated",)),
    Case(layout="towers", name="logits x tau", loss="multiplied", expected=("loss mismatch",)),
    Case(
        layout="towers",
        name="each pair 4 times",
        samples=400,
        repeats=4,
        expected=("repeated ids", "false negatives"),
    ),
    Case(layout="towers", name="batch 8", batch=8, expected=("few negatives",)),
    Case(layout="towers", name="ReLU head", end="relu", expected=("ReLU at the end",)),
]
