"""Every run of the bench: what is changed, and which findings would be right, stated before."""

from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. The defaults are healthy.

    A finding is correct if it names the cause, or is a symptom whose advice names it (`expected`).
    It is a side symptom if it is true and its advice does no harm (`beside`). Any other warning is
    misleading: its advice leads away from the cause.
    """

    layout: str  # simclr, moco, towers
    name: str
    expected: tuple[str, ...] = ()  # none: healthy
    beside: tuple[str, ...] = ()
    tau: float = 0.1
    told_tau: float = 0.0  # what the monitor is told instead; 0: tau
    batch: int = 128
    dimension: int = 64
    rate: float = 1e-3
    warmup: int = 0  # steps until the rate is reached
    decay: float = 0.01  # weight decay
    sgd: bool = False
    norm: bool = True  # batch norm
    steps: int = 300
    before: int = 0  # steps before the monitor is called first: a trained encoder
    tune: float = 1.0  # factor of the rate from then on
    end: str = ""  # relu, rank4, scaled: how the head ends
    augment: float = 1.0
    mark: str = ""  # row, light, dropped: what both views of a sample share and no other has
    wrong: float = 0.0  # share of pairs that are shuffled
    same_batch: bool = False
    hard: int = 0  # batches of neighbours of so many samples
    twice: bool = False  # every sample is in the batch twice
    frozen: str = ""  # first, second: a tower without gradients
    label_free: bool = False  # both towers are one encoder of one text, apart in dropout
    loss: str = ""  # multiplied, raw, unmasked, nan, sum, ascent: what is wrong with it
    repeats: int = 1  # copies of every sample in the data
    blank: float = 0.0  # share of blank inputs
    ids: bool = True  # whether the monitor is told sample ids
    queue: str = ""  # random, stale: what is wrong with it
    queue_size: int = 512
    momentum: float = 0.99
    samples: int = 0  # data are cut to so many; 0: all
    learned: bool = False  # a learned scale


simclr = partial(Case, layout="simclr")
moco = partial(Case, layout="moco")
towers = partial(Case, layout="towers")

SOLVED = ("task solved",)
STILL = ("encoder does not move",)
LOW_TAU, HIGH_TAU = ("temperature too low",), ("temperature too high",)
LOSS = ("loss mismatch",)
COPIES = ("repeated ids", "false negatives")
SAME = ("same batch repeated", *SOLVED)
QUEUE = ("queue unlike keys",)
AT_CHANCE = ("stuck at chance",)  # advises to check pairs, gradients, learning rate
WRONG = ("misaligned pairs", *AT_CHANCE)
DIVERGED = ("collapsing", "not finite", "dimensional collapse", *AT_CHANCE)
DULL = ("dimensional collapse",)  # true of embeddings that learnt little

SIMCLR = [
    simclr(name="healthy"),
    simclr(name="tau 0.07", tau=0.07),
    simclr(name="tau 0.2", tau=0.2),
    simclr(name="tau 0.5", tau=0.5),
    simclr(name="batch 16", batch=16),
    simclr(name="batch 32", batch=32),
    simclr(name="batch 64", batch=64),
    simclr(name="batch 256", batch=256),
    simclr(name="batch 512", batch=512, steps=200),
    simclr(name="dimension 16", dimension=16),
    simclr(name="dimension 256", dimension=256),
    simclr(name="dimension 1024", dimension=1024),
    simclr(name="SGD", sgd=True, rate=0.05),
    simclr(name="no batch norm", norm=False),
    simclr(name="warm-up of 150 steps", warmup=150, steps=400),
    simclr(name="weight decay 0.2", decay=0.2),
    simclr(name="learned scale", learned=True),
    simclr(name="hard batches of 32", batch=32, hard=4, steps=400),
    simclr(name="hard batches of 128", hard=4, steps=400),
    simclr(name="hard batches, tau 0.5", batch=64, hard=4, tau=0.5),
    simclr(name="harder batches, tau 0.05", batch=32, hard=1, tau=0.05, steps=400),
    simclr(name="fine-tuning", before=300, tune=0.3),
    simclr(name="tau 0.005", tau=0.005, expected=LOW_TAU),
    simclr(name="tau 0.015", tau=0.015, expected=LOW_TAU),
    simclr(name="tau 3", tau=3.0, expected=HIGH_TAU, beside=DULL),
    simclr(name="tau 1.5", tau=1.5, expected=HIGH_TAU, beside=DULL),
    simclr(name="no augmentation", augment=0.0, expected=("identical views", *SOLVED)),
    simclr(name="weak augmentation", augment=0.1, expected=("identical views", *SOLVED)),
    simclr(name="watermark", mark="row", expected=SOLVED),
    simclr(name="own brightness", mark="light", expected=SOLVED),
    simclr(name="learning rate 0", rate=0.0, expected=STILL, beside=AT_CHANCE),
    simclr(name="learning rate 1e-7", rate=1e-7, expected=STILL, beside=AT_CHANCE),
    simclr(name="10 % wrong pairs", wrong=0.1, expected=WRONG),
    simclr(name="30 % wrong pairs", wrong=0.3, expected=WRONG),
    simclr(name="50 % wrong pairs", wrong=0.5, expected=WRONG),
    simclr(name="rows shifted by one", wrong=1.0, expected=WRONG, beside=DULL),
    simclr(name="same batch", same_batch=True, expected=SAME),
    simclr(name="ReLU head", end="relu", expected=("ReLU at the end",)),
    simclr(name="one scaled dimension", end="scaled", expected=("one dimension dominates",)),
    simclr(name="rank-4 head", end="rank4", expected=("dimensional collapse",)),
    simclr(name="batch 8", batch=8, expected=("few negatives",)),
    simclr(name="learning rate x 1000", rate=10.0, sgd=True, norm=False, expected=DIVERGED),
    simclr(name="learning rate x 10, no norm", rate=1e-2, norm=False, expected=DIVERGED),
    simclr(name="learning rate x 100", rate=0.1, expected=DIVERGED),
    simclr(name="weight decay 100", decay=100.0, expected=DIVERGED),
    simclr(name="gradient ascent", loss="ascent", expected=DIVERGED),
    simclr(name="NaN at step 150", loss="nan", expected=("not finite",)),
    simclr(name="logits x tau", loss="multiplied", expected=LOSS, beside=DULL),
    simclr(name="not normalised", loss="raw", expected=("loss mismatch", "non-unit input")),
    simclr(name="no self-mask", loss="unmasked", expected=LOSS),
    simclr(name="sum of losses", loss="sum", expected=LOSS),
    simclr(name="other tau in the loss", tau=0.5, told_tau=0.1, expected=LOSS, beside=DULL),
    simclr(name="data repeated 6 times", samples=200, repeats=6, expected=COPIES),
    simclr(name="every sample twice", twice=True, expected=COPIES),
    simclr(name="every sample twice, no ids", twice=True, ids=False, expected=COPIES),
    simclr(name="15 % blank", blank=0.15, expected=("false negatives",)),
]
MOCO = [
    moco(name="healthy"),
    moco(name="momentum 0.9", momentum=0.9),
    moco(name="momentum 0.996", momentum=0.996, steps=600),
    moco(name="momentum 0.999", momentum=0.999, steps=1100),
    moco(name="tau 0.07", tau=0.07),
    moco(name="tau 0.2", tau=0.2),
    moco(name="batch 64, dimension 256", batch=64, dimension=256),
    moco(name="queue of 256", queue_size=256),
    moco(name="fine-tuning", before=300, tune=0.3),
    moco(name="random queue", queue="random", expected=QUEUE, beside=SOLVED),
    moco(name="stale queue", queue="stale", expected=QUEUE),
    moco(name="momentum 0", momentum=0.0, expected=QUEUE),
    moco(
        name="key encoder never updated",
        momentum=1.0,
        steps=1100,
        expected=STILL,
        beside=AT_CHANCE,
    ),
    moco(
        name="queue longer than the data",
        queue_size=1024,
        samples=512,
        expected=("self-negatives",),
    ),
    moco(name="learning rate 0", rate=0.0, expected=STILL, beside=AT_CHANCE),
    moco(name="tau 0.005", tau=0.005, expected=LOW_TAU),
    moco(name="watermark", mark="row", expected=SOLVED),
    moco(name="no augmentation", augment=0.0, expected=("identical views", *SOLVED)),
    moco(name="same batch", same_batch=True, expected=(*SAME, "self-negatives")),
]
TOWERS = [
    towers(name="healthy"),
    towers(name="tau 0.05", tau=0.05),
    towers(name="tau 0.2", tau=0.2),
    towers(name="batch 32", batch=32),
    towers(name="batch 64", batch=64),
    towers(name="batch 512", batch=512, steps=200),
    towers(name="dimension 256", dimension=256),
    towers(name="dimension 1024", dimension=1024),
    towers(name="learned scale", learned=True),
    towers(name="learned scale from 0.07", learned=True, tau=0.07),
    towers(name="warm-up of 150 steps", warmup=150, steps=400),
    towers(name="weight decay 0.2", decay=0.2),
    towers(name="label-free", label_free=True),
    towers(name="hard batches of 32", batch=32, hard=4, steps=400),
    towers(name="hard batches of 128", hard=4, steps=400),
    towers(name="harder batches, tau 0.05", batch=32, hard=1, tau=0.05, steps=400),
    towers(name="fine-tuning", before=300, tune=0.3),
    towers(name="first tower frozen", frozen="first", expected=STILL, beside=AT_CHANCE),
    towers(name="second tower frozen", frozen="second", expected=STILL, beside=AT_CHANCE),
    towers(name="learning rate 0", rate=0.0, expected=STILL, beside=AT_CHANCE),
    towers(name="tau 3", tau=3.0, expected=HIGH_TAU, beside=DULL),
    towers(name="tau 1", tau=1.0, expected=HIGH_TAU, beside=DULL),
    towers(name="tau 0.005", tau=0.005, expected=LOW_TAU),
    towers(name="10 % wrong pairs", wrong=0.1, expected=WRONG),
    towers(name="30 % wrong pairs", wrong=0.3, expected=WRONG),
    towers(name="50 % wrong pairs", wrong=0.5, expected=WRONG),
    towers(name="rows shifted by one", wrong=1.0, expected=WRONG, beside=DULL),
    towers(name="shared mark", mark="row", expected=SOLVED),
    towers(name="shared mark, 10 % dropped", mark="dropped", expected=SOLVED),
    towers(name="same batch", same_batch=True, expected=SAME),
    towers(name="learning rate x 100", rate=0.1, expected=DIVERGED),
    towers(name="logits x tau", loss="multiplied", expected=LOSS, beside=DULL),
    towers(name="sum of losses", loss="sum", expected=LOSS),
    towers(name="other tau in the loss", tau=1.0, told_tau=0.1, expected=LOSS, beside=DULL),
    towers(name="each pair 4 times", samples=400, repeats=4, expected=COPIES),
    towers(name="each pair 4 times, no ids", samples=400, repeats=4, ids=False, expected=COPIES),
    towers(name="batch 8", batch=8, expected=("few negatives",)),
    towers(name="batch 16", batch=16, expected=("few negatives",)),
    towers(name="ReLU head", end="relu", expected=("ReLU at the end",)),
    towers(name="rank-4 head", end="rank4", expected=("dimensional collapse",)),
]
