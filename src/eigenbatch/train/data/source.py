"""What a run needs of its data: samples, views of them, and an evaluation."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from eigenbatch.train.batch import Batch
from eigenbatch.train.data.kinds import ImageConfig
from eigenbatch.train.data.pictures import Pictures
from eigenbatch.train.data.sets.folder import FolderConfig
from eigenbatch.train.encoders import Inputs
from eigenbatch.train.methods.method import Method
from eigenbatch.train.probes import (
    Features,
    embed,
    extract,
    few_labels,
    knn_accuracy,
    linear_probe,
    linear_probe_sgd,
    rankme,
)
from eigenbatch.train.views import ViewsConfig


def fingerprint(data: Dataset[Any]) -> str:
    """Twelve digits of the first, the middle and the last sample."""
    last, digest = len(data) - 1, hashlib.sha256()  # type: ignore[arg-type]
    for index in (0, last // 2, last):
        for part in data[index]:
            digest.update(torch.as_tensor(part).numpy().tobytes())
    return digest.hexdigest()[:12]


class Source:
    """A data set, ready for training."""

    train: Dataset[Any]
    views: nn.Module
    """From a collated batch of `train`, on the device, to a `Batch`."""

    def inputs(self, tower: int) -> Inputs:
        """What the encoder of a tower takes."""
        raise AssertionError("a source says what encoders take")

    def evaluate(self, method: Method, *, final: bool) -> dict[str, float]:
        """Accuracy of what the method has learnt; `final` adds dearer probes."""
        raise AssertionError("a source defines its evaluation")

    def pairs(
        self, method: Method, *, held_out: bool
    ) -> Callable[[], tuple[Tensor, Tensor]] | None:
        """Embeds some pairs by the method as it is then, held out or trained on, for `Auto`.

        None if there are none: pictures are judged by classes.
        """
        return None


class ImageViews(nn.Module):
    """Labelled images -> two random views of each."""

    def __init__(self, augment: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.augment = augment

    def forward(self, sample: tuple[Tensor, ...]) -> Batch:
        """uint8 images (b, c, h, w), and labels (b,) if there are any, on the device."""
        images, *labels = sample
        first, second = self.augment(images)
        return Batch(first, second, labels[0] if labels else None)


class ImageSource(Source):
    """Labelled images: random views for training, kNN and linear probes for evaluation."""

    def __init__(self, config: ImageConfig, views: ViewsConfig) -> None:
        self.config = config
        self.known = config.images("train")
        self.train: Dataset[Any] = config.training(self.known, views)
        self.test = config.images("test")
        self.transfer: ImageConfig | None = None
        self._views, self._augment = views, views.build(config.image_size, config.channels)
        self.views = ImageViews(self._augment)

    def inputs(self, tower: int) -> Inputs:
        """Channels and pixels of a view."""
        return self.config.inputs(self._views)

    def evaluate(self, method: Method, *, final: bool) -> dict[str, float]:
        """Accuracy of kNN, and RankMe; at the end also linear probes and those of transfer data.

        linear: L-BFGS; linear_sgd: the paper's SGD, 90 epochs at 0.03; linear_5_labels: five labels
        per class.
        """
        features = partial(self._features, method.encoder)
        train, test = features(self.known), features(self.test)
        values = {"knn": knn_accuracy(train, test), "rankme": rankme(train)}
        if final:
            values["linear"] = linear_probe(train, test)
            few = few_labels(train, 5, generator=torch.Generator().manual_seed(0))
            values["linear_5_labels"] = linear_probe(few, test, penalty=1e-2)
            generator = torch.Generator().manual_seed(0)
            values["linear_sgd"] = linear_probe_sgd(train, test, generator=generator)
            if self.transfer is not None:
                train, test = (features(self.transfer.images(s)) for s in ("train", "test"))
                values["transfer_knn"] = knn_accuracy(train, test)
                values["transfer_linear"] = linear_probe(train, test)
        return values

    def _features(self, encoder: nn.Module, images: Dataset[Any]) -> Features:
        return extract(encoder, images, self._augment.undistorted, workers=self.config.workers)


class UnlabelledSource(Source):
    """Pictures without labels: random views for training, only RankMe for evaluation."""

    def __init__(self, config: FolderConfig, views: ViewsConfig) -> None:
        self.config, self._views = config, views
        pictures = Pictures(config.place, size=config.size)
        pictures.names = pictures.names[: config.train_size]
        self.train: Dataset[Any] = pictures
        self._augment = views.build(config.image_size, config.channels)
        self.views = ImageViews(self._augment)

    def inputs(self, tower: int) -> Inputs:
        """Channels and pixels of a view."""
        return self.config.inputs(self._views)

    def evaluate(self, method: Method, *, final: bool) -> dict[str, float]:
        """RankMe of at most 4,096 pictures: without labels there is no accuracy."""
        rows = embed(
            method.encoder, self.train, self._augment.undistorted, workers=self.config.workers,
            most=4096,
        )  # fmt: skip
        return {"rankme": rankme(Features(rows, torch.zeros(len(rows))))}
