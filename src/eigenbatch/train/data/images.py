"""Labelled images, in memory or on disk, and parts of them.

Every set is a torch `Dataset` of `(image, label)` with the image a uint8 tensor (c, h, w), all of
one size, and has `labels` (n,) and `classes`. Augmentation happens on batches, in augment.py.
"""

from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eigenbatch.errors import DataError
from eigenbatch.train.data.pictures import Pictures

Sample = tuple[Tensor, int]


class ImageArray(Dataset[Sample]):
    """Images held in memory."""

    def __init__(self, images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> None:
        self.images = images  # (n, c, h, w) uint8
        self.labels = labels  # (n,) int64
        self.classes = classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        return self.images[index], int(self.labels[index])


class LabelledPictures(Pictures):
    """Some pictures of a folder or zip file, each with a class.

    Args:
        root: the folder or zip file.
        names: the pictures, relative to the root.
        labels: the class of each picture, from 0 on.
        classes: names of the classes.
        size: height and width of the images.
    """

    def __init__(
        self,
        root: Path,
        names: list[str],
        labels: list[int],
        classes: tuple[str, ...],
        *,
        size: int = 64,
    ) -> None:
        super().__init__(root, names, size=size)
        self.labels = torch.tensor(labels)  # (n,)
        self.classes = classes

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]
        return self.pixels(index), int(self.labels[index])


class Subset(Dataset[Sample]):
    """Some images of another set, in a given order; an image may appear several times."""

    def __init__(self, data: "LabelledImages", index: Tensor) -> None:
        self.data, self.index = data, index  # (n,)
        self.labels: Tensor = data.labels[index]
        self.classes: tuple[str, ...] = data.classes

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Sample:
        return self.data[int(self.index[index])]


def balanced(data: "LabelledImages", count: int) -> Subset:
    """About `count` images, equally many of each class; the choice is always the same."""
    share = torch.ones(len(data.classes))
    return Subset(data, _drawn(data.labels, share, count))


def long_tailed(data: "LabelledImages", count: int, *, copies: int) -> Subset:
    """Redundant data: class c has a share of about 1 / (c + 1), every image appears `copies` times.

    About `count` images in total, copies included; the choice is always the same.
    """
    share = 1 / torch.arange(1, len(data.classes) + 1)
    return Subset(data, _drawn(data.labels, share, count // copies).repeat(copies))


def _drawn(labels: Tensor, share: Tensor, count: int) -> Tensor:
    """Indices of about `count` images whose classes have the given shares."""
    wanted = (share / share.sum() * count).round().long().clamp(min=1)
    generator = torch.Generator().manual_seed(0)
    chosen = []
    for label, number in enumerate(wanted.tolist()):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) < number:
            raise DataError(
                f"{number} images of class {label} are wanted, the data has {len(rows)}: "
                "ask for fewer images"
            )
        chosen.append(rows[torch.randperm(len(rows), generator=generator)[:number]])
    return torch.cat(chosen)


def in_memory(data: "LabelledImages", *, workers: int = 0) -> ImageArray:
    """Every image read once."""
    loader = DataLoader(data, batch_size=512, num_workers=workers)
    return ImageArray(torch.cat([images for images, _ in loader]), data.labels, data.classes)


LabelledImages: TypeAlias = ImageArray | LabelledPictures | Subset
