"""From a config to the objects of a run: the one place where names become classes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader

from eigenbatch.errors import ParameterError
from eigenbatch.experiments.config import TrainConfig
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.indexed import IndexedDataset
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.difficulty import Blend, Clustered
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.pool import PoolBalanced, PoolMax, PoolMin
from eigenbatch.selectors.random import Random
from eigenbatch.selectors.schedule import AfterBatches, Schedule
from eigenbatch.selectors.selector import Selector
from eigenbatch.train.data import (
    ImageFolder,
    LabelledImages,
    Split,
    balanced,
    cifar10,
    cifar100,
    digits,
    long_tailed,
)
from eigenbatch.train.encoders import ConvNet, projection_head, resnet18, resnet50
from eigenbatch.train.evaluate import (
    Features,
    extract,
    few_labels,
    knn_accuracy,
    linear_probe,
    linear_probe_sgd,
    rankme,
)
from eigenbatch.train.loop import Training
from eigenbatch.train.methods import Alternating, Method, MoCo, SimCLR, SupCon
from eigenbatch.train.objectives import AllNegatives, DistanceWeighted, MixedNegatives
from eigenbatch.train.optim import LARS, cosine_with_warmup, decay_groups
from eigenbatch.train.views import Views


@dataclass(slots=True)
class Assembled:
    """A run ready to start."""

    config: TrainConfig
    training: Training
    views: Views
    sampler: SpectralBatchSampler
    cache: EmbeddingCache
    method: Method  # not wrapped by Fabric
    evaluation: tuple[LabelledImages, LabelledImages]  # train, test
    transfer: tuple[LabelledImages, LabelledImages] | None


def assemble(config: TrainConfig, fabric: Fabric) -> Assembled:
    """Everything of a run, seeded by the config: the same config gives the same run."""
    fabric.seed_everything(config.seed, verbose=False)
    train, test = load_data(config, "train"), load_data(config, "test")
    transfer = load_transfer(config)
    colour = config.data != "digits"
    channels = 3 if colour else 1
    views = Views(config.image_size, strength=config.strength, colour=colour)
    method = build_method(config, channels)
    cache = EmbeddingCache(len(train), config.dim)
    sampler = SpectralBatchSampler(
        cache,
        config.batch_size,
        parse_selector(config.selector),
        pool_size=config.pool_size,
        coverage=config.coverage,
        seed=config.seed,
        num_replicas=fabric.world_size,
        rank=fabric.global_rank,
    )
    optimizer = build_optimizer(config, method)
    total = config.epochs * len(sampler)
    warmup = min(config.warmup_epochs * len(sampler), total - 1)
    scheduler = cosine_with_warmup(optimizer, warmup=warmup, total=total)
    loader = DataLoader(
        IndexedDataset(train),
        batch_sampler=sampler,
        num_workers=config.workers,
        generator=torch.Generator().manual_seed(config.seed),  # leaves the global one alone
    )
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wrapped, optimizer = fabric.setup(method, optimizer)
    views = views.to(fabric.device)
    training = Training(
        fabric=fabric,
        method=wrapped,
        optimizer=optimizer,
        scheduler=scheduler,
        loader=loader,
        epochs=config.epochs,
    )
    return Assembled(config, training, views, sampler, cache, method, (train, test), transfer)


def load_data(config: TrainConfig, split: Split) -> LabelledImages:
    """The images a config names."""
    images = _named(config.data, config.data_dir, split, config.image_size)
    if split == "train" and config.copies is not None:
        assert config.train_images is not None
        return long_tailed(images, config.train_images, copies=config.copies)
    count = config.train_images if split == "train" else config.test_images
    return images if count is None else balanced(images, count)


def load_transfer(config: TrainConfig) -> tuple[LabelledImages, LabelledImages] | None:
    """Training and test images of the other data set that frozen features are probed on."""
    if config.transfer is None:
        return None
    train, test = (
        _named(config.transfer, config.transfer_dir, split, config.image_size)
        for split in get_args(Split)
    )
    return _at_most(train, config.train_images), _at_most(test, config.test_images)


def _at_most(images: LabelledImages, count: int | None) -> LabelledImages:
    return images if count is None or count >= len(images) else balanced(images, count)


def _named(data: str, data_dir: Path | None, split: Split, size: int) -> LabelledImages:
    if data == "digits":
        return digits(split)
    assert data_dir is not None
    if data == "folder":
        return ImageFolder(data_dir, split, size=size)
    return (cifar10 if data == "cifar10" else cifar100)(data_dir, split)


def build_method(config: TrainConfig, channels: int) -> Method:
    """Encoder, head and method of a config."""
    encoder: nn.Module
    if config.encoder == "convnet":
        w = config.width
        encoder = ConvNet(channels, (w, 2 * w, 4 * w, 4 * w))
    else:
        make = resnet18 if config.encoder == "resnet18" else resnet50
        encoder = make(config.stem, width=config.width, channels=channels)
    head = projection_head(int(encoder.features), config.dim, config.dim)
    if config.method == "moco":
        negatives = {
            "all": AllNegatives, "mixed": MixedNegatives, "distance": DistanceWeighted
        }[config.negatives]()  # fmt: skip
        return MoCo(
            encoder, head, config.tau, queue_size=config.queue_size, dim=config.dim,
            momentum=config.momentum, negatives=negatives,
        )  # fmt: skip
    transform = None if config.whiten_period is None else Alternating(config.whiten_period)
    kind = SupCon if config.method == "supcon" else SimCLR
    return kind(encoder, head, config.tau, transform=transform)


def build_optimizer(config: TrainConfig, method: Method) -> Optimizer:
    """The optimiser over what the method trains; biases and norms without decay."""
    trained = nn.ModuleList(method.trained())
    groups = decay_groups(trained, config.weight_decay)
    if config.optimizer == "lars":
        return LARS(groups, config.lr)
    for group in groups:
        del group["adapt"]
    if config.optimizer == "sgd":
        return SGD(groups, config.lr, momentum=0.9)
    return AdamW(groups, config.lr)


def parse_selector(name: str) -> Selector:
    """A selector from its name on the command line, e.g. greedy-64, p3, p3-0.3, blend--0.5."""
    kind, _, argument = name.partition("-")
    makers = {
        "random": Random,
        "p1": PoolMax,
        "p2": PoolMin,
        "p3": lambda value="0.5": PoolBalanced(float(value)),
        "greedy": lambda value="64": Greedy(None if value == "pool" else int(value)),
        "clustered": lambda value="8": Clustered(int(value)),
        "blend": lambda value="0.5": Blend(float(value)),
        "recipe": lambda value=None: Schedule(when=AfterBatches(int(value)) if value else None),
    }
    if kind not in makers:
        raise ParameterError(
            f"unknown selector {name!r}: choose random, p1, p2, p3[-FRACTION], greedy[-PROBE], "
            "greedy-pool, clustered[-SEEDS], blend[-WEIGHT] or recipe[-BATCHES]"
        )
    try:
        selector: Selector = makers[kind](argument) if argument else makers[kind]()  # type: ignore[operator]
    except (TypeError, ValueError) as reason:
        raise ParameterError(f"selector {name!r} cannot be made: {reason}") from reason
    return selector


def evaluate(run: Assembled, *, probes: bool) -> dict[str, float]:
    """Accuracy of kNN, RankMe; with `probes` also linear probes and those of the transfer data.

    linear: L-BFGS; linear_sgd: the paper's SGD, 90 epochs at 0.03; linear_5_labels: five a class.
    """
    train, test = _features(run, run.evaluation)
    values = {"knn": knn_accuracy(train, test), "rankme": rankme(train)}
    if probes:
        values["linear"] = linear_probe(train, test)
        few = partial(few_labels, train, 5, generator=torch.Generator().manual_seed(0))
        values["linear_5_labels"] = linear_probe(few(), test, penalty=1e-2)
        generator = torch.Generator().manual_seed(0)
        values["linear_sgd"] = linear_probe_sgd(train, test, generator=generator)
        if run.transfer is not None:
            train, test = _features(run, run.transfer)
            values["transfer_knn"] = knn_accuracy(train, test)
            values["transfer_linear"] = linear_probe(train, test)
    return values


def _features(
    run: Assembled, data: tuple[LabelledImages, LabelledImages]
) -> tuple[Features, Features]:
    undistorted = _Undistorted(run.views)
    train, test = (extract(run.method.encoder, part, undistorted) for part in data)
    return train, test


class _Undistorted(nn.Module):
    """The views' evaluation path as a module of its own."""

    def __init__(self, views: Views) -> None:
        super().__init__()
        self.views = views

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.views.undistorted(images)
