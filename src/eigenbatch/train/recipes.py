"""Runs by name: the paper's settings, each stated here once, and small ones that a CPU can run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eigenbatch.errors import ParameterError
from eigenbatch.train.batches import BatchesConfig
from eigenbatch.train.budget import BudgetConfig
from eigenbatch.train.data.sets.cifar import CIFAR10Config
from eigenbatch.train.data.sets.folder import FolderConfig
from eigenbatch.train.data.sets.pairs import PairsConfig
from eigenbatch.train.encoders import (
    ResNet18Config,
    ResNet50Config,
    WordBagConfig,
)
from eigenbatch.train.evaluation import EvaluationConfig
from eigenbatch.train.methods import CLIPConfig, MoCoConfig, SimCLRConfig
from eigenbatch.train.optimizers import AdamWConfig, LARSConfig, SGDConfig
from eigenbatch.train.run import Run
from eigenbatch.train.schedules import CosineConfig, FixedConfig, LinearConfig
from eigenbatch.train.views import ViewsConfig

Recipe = Callable[[Path | None], Run]


def digits(directory: Path | None = None) -> Run:
    """Embedded digits on a CPU, under a minute."""
    return Run()


def cifar10_cpu(directory: Path | None = None) -> Run:
    """CIFAR-10 with a four-layer ConvNet, for two cores."""
    return Run(
        data=CIFAR10Config(directory=directory),
        batches=BatchesConfig(batch_size=256),
        budget=BudgetConfig(epochs=10, precision="auto"),
    )


def folder_cpu(directory: Path | None = None) -> Run:
    """A folder or zip of pictures with a four-layer ConvNet, for two cores."""
    return Run(
        data=FolderConfig(directory=directory, size=32),
        batches=BatchesConfig(batch_size=256),
        budget=BudgetConfig(epochs=10, precision="auto"),
    )


def pairs_cpu(directory: Path | None = None) -> Run:
    """Sentence pairs with two small towers (CLIP), for two cores."""
    return Run(
        data=PairsConfig(),
        encoder=WordBagConfig(),
        method=CLIPConfig(learn_tau=False),
        batches=BatchesConfig(batch_size=256),
        optimizer=AdamWConfig(lr=2e-3, weight_decay=0.0),
        schedule=LinearConfig(),
        budget=BudgetConfig(epochs=10),
    )


def imagenet100(directory: Path | None = None) -> Run:
    """Section Pool-Policy Comparison: ResNet-18, n=512, tau=0.1, 200 epochs, fixed-rate LARS."""
    return Run(
        data=FolderConfig(directory=directory, size=224, workers=8, whole_pictures=True),
        views=ViewsConfig(jitter=1.0, crop=0.08),
        encoder=ResNet18Config(stem="imagenet"),
        method=SimCLRConfig(tau=0.1),
        batches=BatchesConfig(batch_size=512, pool_size=5120, replace=True),
        optimizer=LARSConfig(lr=0.6, weight_decay=1e-6),
        schedule=FixedConfig(),
        budget=BudgetConfig(epochs=200),
        evaluation=EvaluationConfig(every=5),
    )


def cifar10(directory: Path | None = None) -> Run:
    """Section Greedy vs. Pool: ResNet-18, n=512, tau=0.2, cosine over 400 epochs."""
    return Run(
        data=CIFAR10Config(directory=directory, workers=4),
        views=ViewsConfig(crop=0.08),
        encoder=ResNet18Config(stem="cifar"),
        method=SimCLRConfig(tau=0.2),
        batches=BatchesConfig(batch_size=512, pool_size=5120, replace=True),
        optimizer=SGDConfig(lr=0.06, weight_decay=5e-4),
        schedule=CosineConfig(warmup_epochs=10),
        budget=BudgetConfig(epochs=400),
        evaluation=EvaluationConfig(every=5),
    )


def moco_imagenet100(directory: Path | None = None) -> Run:
    """Appendix MoCo v2: ResNet-18, n=256, tau=0.2, K=65,536, softmax over queue and batch."""
    return replace(
        imagenet100(directory),
        views=ViewsConfig(),
        method=MoCoConfig(tau=0.2, queue_size=65_536, batch_negatives=True, key_groups=8),
        batches=BatchesConfig(batch_size=256, pool_size=512, replace=True),
        optimizer=SGDConfig(lr=0.03, weight_decay=1e-4),
        schedule=CosineConfig(warmup_epochs=0),
    )


def imagenet1k(directory: Path | None = None) -> Run:
    """Section Real-Data Band: ResNet-50, n=4096, tau=0.1, 90 epochs."""
    return replace(
        imagenet100(directory),
        encoder=ResNet50Config(stem="imagenet"),
        method=SimCLRConfig(tau=0.1, dim=256),
        batches=BatchesConfig(batch_size=4096, pool_size=40_960, replace=True),
        optimizer=LARSConfig(lr=4.8, weight_decay=1e-6),
        schedule=CosineConfig(warmup_epochs=10),
        budget=BudgetConfig(epochs=90),
    )


RECIPES: dict[str, Recipe] = {
    made.__name__.replace("_", "-"): made
    for made in (
        digits,
        cifar10_cpu,
        folder_cpu,
        pairs_cpu,
        imagenet100,
        cifar10,
        moco_imagenet100,
        imagenet1k,
    )
}


def recipe(name: str, directory: Path | None = None) -> Run:
    """The run of that name, with its data in a folder.

    Args:
        name: as `eigenbatch train --list-recipes` shows it.
        directory: the folder that holds the data; None: for data that needs none.

    Returns:
        The settings.

    Examples:
        >>> from eigenbatch.train import recipe
        >>> recipe("imagenet100").method.tau
        0.1
    """
    if name not in RECIPES:
        raise ParameterError(f"unknown recipe {name!r}: choose from {', '.join(RECIPES)}")
    return RECIPES[name](directory)


def summary(name: str) -> str:
    """One line about a recipe."""
    return (RECIPES[name].__doc__ or "").strip().rstrip(".")
