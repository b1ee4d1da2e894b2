"""Training runs as chunks of claims: one run each, shared by every claim that asks for it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from eigenbatch.experiments.claim import Chunk, Claim, Compute, Place, Row, Scale
from eigenbatch.experiments.statistics import number

SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 20, "paper": 5}  # 20: ± 12 % of time to target
FEWER_SEEDS: Mapping[Scale, int] = {"smoke": 2, "small": 3, "paper": 3}
MINUTES_A_RUN: Mapping[Scale, float] = {"smoke": 0.02, "small": 0.6, "paper": 600.0}

_SMALL = {
    "data": "cifar10", "train_images": 5000, "test_images": 2000, "image_size": 16, "width": 16,
    "dim": 64, "tau": 0.2, "batch_size": 128, "pool_size": 1280, "coverage": "free", "epochs": 8,
    "lr": 2e-3, "queue_size": 2048, "momentum": 0.99, "transfer": "digits",
}  # fmt: skip
_SMOKE = _SMALL | {
    "data": "digits", "train_images": 256, "test_images": 128, "image_size": 8, "width": 4,
    "dim": 16, "batch_size": 32, "pool_size": 128, "epochs": 2, "queue_size": 128,
    "transfer": None,
}  # fmt: skip
_PAPER = {
    "data": "folder", "image_size": 224, "encoder": "resnet18", "stem": "imagenet", "width": 64,
    "tau": 0.1, "batch_size": 512, "pool_size": 5120, "coverage": "free", "epochs": 200,
    "optimizer": "lars", "lr": 0.6, "weight_decay": 1e-6, "warmup_epochs": 10, "evaluate_every": 5,
    "workers": 8, "precision": "bf16-mixed",
}  # fmt: skip
_BASE: Mapping[Scale, Mapping[str, Any]] = {"smoke": _SMOKE, "small": _SMALL, "paper": _PAPER}

SETTINGS: Mapping[Scale, str] = {
    "smoke": "256 digits, ConvNet, 2 epochs",
    "small": "5,000 CIFAR-10 images at 16 x 16, ConvNet, n=128, k=1280, 8 epochs",
    "paper": "ImageNet-100, ResNet-18, n=512, k=5120, 200 epochs",
}
READINGS = (
    "gradient", "certified_lower", "certified_upper", "paper_lower", "paper_upper", "sigma_hat",
    "alignment", "entropy_rank", "isotropy_gap", "isotropy_gap_unbiased",
    "gradient_rolling_variance_bound",
)  # fmt: skip


def training_chunk(scale: Scale, seed: int, **changes: Any) -> Chunk:
    """One training run: the scale's base setting with some fields of `TrainConfig` changed."""
    settings = {**_BASE[scale], **changes, "seed": seed}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    words = [str(settings.get("method", "simclr")), str(settings.get("selector", "random"))]
    return Chunk(f"{'-'.join(words)}-seed-{seed}-{digest}", settings)


def moco_chunk(scale: Scale, seed: int, **changes: Any) -> Chunk:
    """A MoCo run: a pool of two batches, as printed, and a queue of the scale's length."""
    printed = {"tau": 0.2, "batch_size": 256, "optimizer": "sgd", "lr": 0.03, "momentum": 0.999,
               "queue_size": 65_536}  # fmt: skip
    given = {**(printed if scale == "paper" else {}), **changes}
    batch = int({**_BASE[scale], **given}["batch_size"])
    return training_chunk(scale, seed, **({"method": "moco", "pool_size": 2 * batch} | given))


def policies(
    scale: Scale, selectors: Iterable[str], seeds: Mapping[Scale, int] = SEEDS, **changes: Any
) -> list[Chunk]:
    """Every selector with every seed; the selectors of one seed beside each other."""
    return [
        training_chunk(scale, seed, selector=selector, **changes)
        for seed in range(seeds[scale])
        for selector in selectors
    ]


def compute(chunk: Chunk, place: Place) -> list[Row]:
    """Train as the chunk says, or read the run if it is finished; its facts as one row."""
    run = trained(chunk, place)
    return [dict(chunk.settings) | facts(run)]


def trained(chunk: Chunk, place: Place, **arguments: Any) -> list[dict[str, Any]]:
    """The metrics lines of the chunk's run, trained as far as it is not."""
    from eigenbatch.experiments.config import TrainConfig
    from eigenbatch.experiments.run_directory import RunDirectory
    from eigenbatch.experiments.training import train

    config = TrainConfig(data_dir=place.data_dir, **chunk.settings)
    directory = RunDirectory(place.runs / chunk.name)
    train(config, directory.path, resume=directory.manifest.exists(), devices=1, **arguments)
    return directory.read_metrics()


def facts(metrics: Sequence[Mapping[str, Any]]) -> Row:
    """What claims ask about a run.

    Without a GPU times are processor time: two runs share noisy cores, and all work is done there.
    """
    import torch

    clock = "seconds" if torch.cuda.is_available() else "cpu_seconds"
    evaluated = [line for line in metrics if "knn" in line and "finished" not in line]
    losses = [line for line in metrics if "loss" in line]
    readings = [line for line in metrics if "spectral/gradient" in line]
    by_epoch: dict[int, list[float]] = {}
    for line in losses:
        by_epoch.setdefault(line["epoch"], []).append(number(line["loss"]))
    ranks = [
        line["sampler/participation_ratio"]
        for line in losses
        if "sampler/participation_ratio" in line
    ]
    return {
        "epochs": [line["epoch"] for line in evaluated],
        "times": [line[clock] for line in evaluated],
        "knn": [line["knn"] for line in evaluated],
        "rankme": [line["rankme"] for line in evaluated],
        "losses": [float(np.mean(values)) for values in by_epoch.values()],
        "batch_rank": float(np.mean(ranks)) if ranks else None,
        "selection_seconds": sum(line.get("sampler/seconds", 0.0) for line in losses),
        "final": {name: value for name, value in metrics[-1].items() if name != "diagnoses"},
        "steps_an_epoch": metrics[-1]["step"] / metrics[-1]["epoch"],
        "read_at": [line["step"] for line in readings],
        "readings": {
            name: [line.get(f"spectral/{name}") for line in readings] for name in READINGS
        },
    }


def training_claim(
    *, runs: str, paper_size: str | None = None, compute: Compute = compute, **fields: Any
) -> Claim:
    """A claim whose chunks are training runs; `runs` says which, in words.

    paper_size: what the paper trains, where it is not ImageNet-100 with a ResNet-18.
    """
    size = {scale: f"{runs}: {setting}" for scale, setting in SETTINGS.items()}
    if paper_size is not None:
        size["paper"] = paper_size
    minutes = {
        scale: len(fields["chunks"](scale)) * each / (1 if scale == "paper" else 2)
        for scale, each in MINUTES_A_RUN.items()
    }
    return Claim(size=size, minutes=minutes, compute=compute, needs_images=True, **fields)
