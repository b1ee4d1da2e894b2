"""CIFAR-10 and CIFAR-100, the original python files."""

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eigenbatch.errors import DataError
from eigenbatch.train.data.kinds import DirectoryConfig, Split

if TYPE_CHECKING:
    from eigenbatch.train.data.images import ImageArray, LabelledImages

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


@dataclass(frozen=True, kw_only=True)
class CIFAR10Config(DirectoryConfig, name="cifar10"):
    """CIFAR-10, the original python files."""

    @property
    def image_size(self) -> int:
        """32 pixels."""
        return 32

    def load(self, split: Split) -> "LabelledImages":
        """The python batch files in cifar-10-batches-py."""
        folder = _cifar_folder(self.place, "cifar-10-batches-py")
        names = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
        batches = [_unpickle(folder / name, _CIFAR10[name]) for name in names]
        classes = _unpickle(folder / "batches.meta", _CIFAR10["batches.meta"])["label_names"]
        return _cifar(batches, "labels", classes)


@dataclass(frozen=True, kw_only=True)
class CIFAR100Config(DirectoryConfig, name="cifar100"):
    """CIFAR-100, the original python files, fine labels."""

    @property
    def image_size(self) -> int:
        """32 pixels."""
        return 32

    def load(self, split: Split) -> "LabelledImages":
        """The python files in cifar-100-python."""
        folder = _cifar_folder(self.place, "cifar-100-python")
        batches = [_unpickle(folder / split, _CIFAR100[split])]
        classes = _unpickle(folder / "meta", _CIFAR100["meta"])["fine_label_names"]
        return _cifar(batches, "fine_labels", classes)


def _cifar(batches: list[dict[str, list[int]]], key: str, classes: list[int]) -> "ImageArray":
    import numpy as np
    import torch

    from eigenbatch.train.data.images import ImageArray

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
