"""Labelled images: scikit-learn's digits, CIFAR-10/100, any folder or zip in ImageFolder layout.

Every set is a torch `Dataset` of `(image, label)` with the image a uint8 tensor (c, h, w), all of
one size, and has `labels` (n,) and `classes`. Augmentation happens on batches, in views.py.
"""

import hashlib
import pickle
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from eigenbatch.errors import DataError
from eigenbatch.train.data.picture_files import SUFFIXES
from eigenbatch.train.data.pictures import Pictures

if TYPE_CHECKING:
    from eigenbatch.train.data.pets import OxfordPets

Split = Literal["train", "test"]
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


def digits(split: Split) -> ImageArray:
    """1,797 handwritten digits of 8 x 8 pixels from scikit-learn; the last 360 are the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(bunch.target).long()
    part = slice(None, -360) if split == "train" else slice(-360, None)
    return ImageArray(images[part], labels[part], tuple(str(c) for c in range(10)))


_CIFAR10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
_CIFAR100 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


def cifar10(root: Path, split: Split) -> ImageArray:
    """The original python batch files under `root`/cifar-10-batches-py."""
    folder = _cifar_folder(root, "cifar-10-batches-py")
    names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    batches = [_unpickle(folder / name, _CIFAR10[name]) for name in names]
    classes = _unpickle(folder / "batches.meta", _CIFAR10["batches.meta"])["label_names"]
    return _cifar(batches, "labels", classes)


def cifar100(root: Path, split: Split) -> ImageArray:
    """The original python files under `root`/cifar-100-python, fine labels."""
    folder = _cifar_folder(root, "cifar-100-python")
    batches = [_unpickle(folder / split, _CIFAR100[split])]
    classes = _unpickle(folder / "meta", _CIFAR100["meta"])["fine_label_names"]
    return _cifar(batches, "fine_labels", classes)


def _cifar(batches: list[dict[str, list[int]]], key: str, classes: list[int]) -> ImageArray:
    images = np.concatenate([np.asarray(batch["data"], dtype=np.uint8) for batch in batches])
    labels = [label for batch in batches for label in batch[key]]
    names = tuple(str(name) for name in classes)
    return ImageArray(torch.from_numpy(images).view(-1, 3, 32, 32), torch.tensor(labels), names)


def _cifar_folder(root: Path, name: str) -> Path:
    folder = root if root.name == name else root / name
    if not folder.is_dir():
        raise DataError(
            f"{folder} does not exist: download the python version of CIFAR from "
            "https://www.cs.toronto.edu/~kriz/cifar.html, unpack it, and point --data-dir to the "
            f"folder that holds {name}/"
        )
    return folder


def _unpickle(path: Path, md5: str) -> dict[str, list[int]]:
    """The content of a CIFAR file, read only if it is byte for byte the published one."""
    if not path.is_file():
        raise DataError(f"{path} is missing: the download or unpacking was incomplete")
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(
            f"{path} has md5 {found}, the published file {md5}: it is damaged or not CIFAR, and "
            "unknown pickles are never opened. Download it again"
        )
    loaded: dict[str, list[int]] = pickle.loads(content, encoding="latin1")
    return loaded


class ImageFolder(Pictures):
    """Pictures in one folder per class, below a directory or inside a zip file.

    The split is the folder "train" or, for tests, "test" or "val"; without such folders every fifth
    picture of a class is kept for tests.

    Args:
        root: the folder or zip file.
        split: "train" or "test".
        size: height and width of the images.

    Raises:
        DataError: there are no pictures, only one class, or a picture that cannot be used.
    """

    def __init__(self, root: Path, split: Split, *, size: int = 64) -> None:
        if (root / "annotations" / "trainval.txt").is_file():
            raise DataError(
                f"{root} is laid out as Oxford Pets, whose folders are no classes: --data pets"
            )
        super().__init__(root, size=size)
        pictures, self.names = self.names, _of_split(self.names, split)
        self.classes = tuple(sorted({_class(name) for name in _of_split(pictures, "train")}))
        if not self.names or "" in self.classes:
            raise DataError(
                f"{root} holds no pictures in class folders for split {split!r}: expected "
                f"{split}/CLASS/PICTURE with endings {', '.join(SUFFIXES)}. To train without "
                "labels: --set data.labels=false"
            )
        if len(self.classes) < 2:
            raise DataError(
                f"{root} has only one class, {self.classes[0]!r}: accuracy needs at least two. "
                "Put the pictures of each class into a folder of its own, train/CLASS/PICTURE, or "
                "train without labels: --set data.labels=false"
            )
        index = {name: i for i, name in enumerate(self.classes)}
        if unknown := sorted({_class(name) for name in self.names} - set(index)):
            raise DataError(f"{root}: {unknown[0]!r} has {split} pictures, but none to train on")
        self.labels = torch.tensor([index[_class(name)] for name in self.names])

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]
        return self.pixels(index), int(self.labels[index])


def _of_split(names: list[str], split: Split) -> list[str]:
    """Names below the folder of the split; without such folders one in five is for tests."""
    wanted = ("train",) if split == "train" else ("test", "val")
    known = ("train", "test", "val")
    folders = {part for name in names for part in PurePosixPath(name).parts[:-2]}
    if not folders & set(known):
        by_class = groupby(sorted(names, key=_class), key=_class)
        held_out = {name for _, members in by_class for name in list(members)[4::5]}
        return [name for name in names if (name in held_out) == (split == "test")]
    choice = next((folder for folder in wanted if folder in folders), None)
    return [name for name in names if choice in PurePosixPath(name).parts[:-2]]


def _class(name: str) -> str:
    return PurePosixPath(name).parent.name


LabelledImages: TypeAlias = "ImageArray | ImageFolder | OxfordPets | Subset"
