"""The settings that the paper prints, claim by claim; a test compares every paper chunk with them.

Where the paper is silent it follows SimCLR and MoCo v2 ("original hyperparameters"), and so do we.
`n` is the number of images per batch, see docs/paper-notes.md. Accuracy over training is that of a
kNN classifier.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SGD_PROBE = "linear, SGD, 90 epochs at 0.03"
KNN = "kNN over training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """One experiment. Tuples hold every value that its runs take.

    rate: the schedule of the learning rate; warmup: its epochs.
    arms: seeds of every combination of the values that differ between runs, in the order of the
        fields; empty: all combinations, `seeds` each.
    details: whatever else the protocol fixes, by the dotted name of the setting.
    """

    section: str
    data: str
    encoder: tuple[str, ...]
    n: int
    k: tuple[int, ...]
    tau: float
    optimizer: str
    rate: str
    lr: tuple[float, ...]
    warmup: int
    weight_decay: float
    epochs: int
    seeds: int
    probe: str = KNN
    policies: tuple[str, ...] = ("random",)
    details: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    arms: Mapping[tuple[Any, ...], int] = field(default_factory=dict)


_SIMCLR: dict[str, Any] = {
    "data": "imagenet100", "encoder": ("resnet18",), "n": 512, "k": (5120,), "tau": 0.1,
    "optimizer": "lars", "rate": "fixed", "lr": (0.6,), "warmup": 0, "weight_decay": 1e-6,
    "epochs": 200, "seeds": 5,
}  # fmt: skip
_VIEWS = {
    "views.jitter": (1.0,), "views.crop": (0.08,), "views.strength": (1.0,),
    "data.whole_pictures": (True,), "data.size": (224,), "method.dim": (128,),
}  # fmt: skip
_LARGE: dict[str, Any] = _SIMCLR | {
    "data": "imagenet1k", "encoder": ("resnet50",), "n": 4096, "k": (40_960,), "rate": "cosine",
    "lr": (4.8,), "warmup": 10, "epochs": 90,
    "details": _VIEWS | {"method.dim": (256,), "method": ("simclr",)},
}  # fmt: skip
_MOCO: dict[str, Any] = _SIMCLR | {
    "n": 256, "k": (512,), "tau": 0.2, "optimizer": "sgd", "rate": "cosine", "lr": (0.03,),
    "weight_decay": 1e-4,
}  # fmt: skip
_QUEUE = {
    "method": ("moco",), "method.queue_size": (65_536,), "method.momentum": (0.999,),
    "method.batch_negatives": (True,), "method.key_groups": (8,), "method.dim": (128,),
    "views.jitter": (0.5,), "views.crop": (0.2,), "data.whole_pictures": (True,),
}  # fmt: skip

PRINTED: Mapping[str, Printed] = {
    "real-band": Printed(
        section="Real-Data Band Validation",
        **_LARGE | {"seeds": 3, "details": _LARGE["details"] | {"evaluation.read_every": (100,)}},
    ),
    "variance-remainder": Printed(
        section="Diversity manipulation via in-batch whitening, Numerical scale",
        **_LARGE | {"seeds": 3, "details": _LARGE["details"] | {"evaluation.read_every": (100,)}},
    ),
    "whitening": Printed(
        section="Diversity manipulation via in-batch whitening",
        **_LARGE | {"seeds": 3, "details": _LARGE["details"] | {
            "evaluation.read_every": (1,), "method.whiten_period": (100, None),
            "method.whiten_after": (70 * 312, 0)}},
        arms={(100, 70 * 312): 3, (None, 0): 3},
    ),
    "pool-policies": Printed(
        section="Spectral Pool-Policy Comparison",
        **_SIMCLR, policies=("random", "p1", "p2", "p3"), details=_VIEWS,
    ),
    "collapse-margin": Printed(
        section="Spectral Pool-Policy Comparison, separate sweeps",
        **_SIMCLR | {"seeds": 3, "lr": (0.6, 6.0, 60.0, 600.0)},
        details=_VIEWS | {"evaluation.read_every": (1,)},
    ),
    "greedy-cifar": Printed(
        section="Greedy vs. Pool-Based Spectral Selection",
        **_SIMCLR | {"data": "cifar10", "tau": 0.2, "optimizer": "sgd", "rate": "cosine",
                     "lr": (0.06,), "warmup": 10, "weight_decay": 5e-4, "epochs": 400,
                     "seeds": 3},
        policies=("random", "p3-1.05-1.15", "greedy-16", "greedy-64", "greedy-256"),
        details={"method.dim": (128,), "encoder.stem": ("cifar",), "views.crop": (0.08,)},
    ),
    "wall-clock": Printed(
        section="Computational Efficiency and Wall-Clock Analysis",
        **_SIMCLR, policies=("random", "p3", "greedy-64", "greedy-256"), details=_VIEWS,
    ),
    "pool-size": Printed(
        section="Computational Efficiency, Figure on pool size",
        **_SIMCLR | {"k": (2048, 5120)}, policies=("random", "p3"), details=_VIEWS,
        arms={(5120, "random"): 5, (2048, "p3"): 5, (5120, "p3"): 5},
    ),
    "practical-recipe": Printed(
        section="Computational Efficiency, Practical recipe",
        **_SIMCLR | {"seeds": 3},
        policies=("recipe", "recipe-3700", "p1-greedy-3700", "random", "p1", "p3", "greedy-64"),
        details=_VIEWS,
    ),
    "isotropy-training": Printed(
        section="Empirical deviation from isotropy",
        **_LARGE | {"n": 1024, "k": (10_240,), "lr": (1.2,), "seeds": 10,
                    "details": _LARGE["details"] | {"evaluation.read_every": (1,)}},
    ),
    "alignment-gradient": Printed(
        section="Positive alignment and vanishing gradients",
        **_SIMCLR | {"tau": 0.2}, details=_VIEWS,
    ),
    "rank-accuracy": Printed(
        section="ImageNet-1k: Effective Rank vs. Accuracy",
        **_LARGE | {"epochs": 200}, probe=SGD_PROBE, policies=("random", "p1", "p3", "greedy-64"),
    ),
    "rank-plateau": Printed(
        section="ImageNet-1k: Effective Rank vs. Accuracy, Figure",
        **_LARGE | {"epochs": 200}, policies=("random", "p1", "p3", "greedy-64"),
    ),
    "queue-correlation": Printed(
        section="Effect of Correlated Negatives, MoCo queue note",
        **_MOCO | {"seeds": 3}, details=_QUEUE,
    ),
    "moco-policies": Printed(
        section="MoCo v2: Queue-based evaluation and robustness",
        **_MOCO | {"encoder": ("resnet18", "resnet50"), "seeds": 10},
        policies=("random", "p3", "greedy-64", "p3-0.3", "p3-0.7"),
        details=_QUEUE | {"method.queue_size": (16_384, 32_768, 65_536)},
        arms={("resnet18", policy, 65_536): 10 for policy in ("random", "p3")}
        | {("resnet18", policy, 65_536): 3 for policy in ("greedy-64", "p3-0.3", "p3-0.7")}
        | {("resnet18", policy, queue): 3 for policy in ("random", "p3")
           for queue in (16_384, 32_768)}
        | {("resnet50", policy, 65_536): 3 for policy in ("random", "p3")},
    ),
    "queue-band": Printed(
        section="MoCo v2: Queue-aware band proxies",
        **_MOCO | {"seeds": 3}, details=_QUEUE | {"evaluation.read_every": (1,)},
    ),
    "strong-baselines": Printed(
        section="Comparison to stronger baselines",
        **_MOCO, policies=("random", "p3", "greedy-64"),
        details=_QUEUE | {"method": ("moco", "supcon"),
                          "method.negatives": ("all", "mixed", "distance")},
        arms={(policy, "moco", "all"): 5 for policy in ("random", "p3", "greedy-64")}
        | {("random", "moco", "mixed"): 5, ("random", "moco", "distance"): 5,
           ("random", "supcon", None): 5},
    ),
    "transfer": Printed(
        section="MoCo v2, Robustness",
        **_MOCO | {"seeds": 3}, policies=("random", "p3"), probe=SGD_PROBE, details=_QUEUE,
    ),
    "augmentation": Printed(
        section="Influence of augmentation strength",
        **_SIMCLR, policies=("random", "greedy-64", "p3"),  # P3 for the target
        details=_VIEWS | {"views.strength": (0.5, 1.0, 1.5)},
        arms={(policy, strength): 5 for policy in ("random", "greedy-64")
              for strength in (0.5, 1.0, 1.5)} | {("p3", 1.0): 5},
    ),
}  # fmt: skip


def markdown() -> str:
    """The table as Markdown."""
    heads = ("claim", "section", "data", "encoder", "n", "k", "tau", "optimiser", "rate",
             "weight decay", "epochs", "seeds", "probe", "policies",
             "further settings")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, one in PRINTED.items():
        rest = "; ".join(f"{key} {_listed(values)}" for key, values in one.details.items())
        cells = (name, one.section, one.data, _listed(one.encoder), f"{one.n:,}", _listed(one.k),
                 f"{one.tau:g}", one.optimizer, _rate(one), f"{one.weight_decay:g}",
                 str(one.epochs), _seeds(one), one.probe, _listed(one.policies),
                 rest)  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _seeds(one: Printed) -> str:
    """Of every arm, or the most and the fewest."""
    counts = {one.seeds, *one.arms.values()}
    return str(one.seeds) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _rate(one: Printed) -> str:
    after = f", {one.warmup} epochs of warm-up" if one.warmup else ""
    return f"{_listed(one.lr)}, {one.rate}{after}"


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(f"{value:,}" if type(value) is int else str(value) for value in values)
