"""Four small data sets as tensors: two of pictures with labels, two of text pairs.

Text is a hashed bag of words; that is enough for two towers to learn something in seconds.
"""

import gzip
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import avg_pool2d, normalize

WORDS = 1024
"""Buckets of a hashed bag of words."""


@dataclass(frozen=True)
class Pictures:
    """Flat pictures in [0, 1] and their labels."""

    train: Tensor  # (n, c, h, w)
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class Pairs:
    """Rows i of `first` and `second` belong together; `group` is the picture they describe."""

    first: Tensor  # (n, WORDS)
    second: Tensor
    group: Tensor  # (n,)
    held_out: int = 500  # rows at the end, for retrieval


def digits() -> Pictures:
    content = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(content.images).float()[order, None] / 16
    labels = torch.from_numpy(content.target)[order]
    return Pictures(images[:1297], labels[:1297], images[1297:], labels[1297:])


def cifar(folder: Path) -> Pictures:
    """5,000 and 1,000 pictures of CIFAR-10 at 16 x 16."""
    parts = [_cifar_part(folder, name) for name in ("data_batch_1", "test_batch")]
    (train, train_labels), (test, test_labels) = parts
    return Pictures(train[:5000], train_labels[:5000], test[:1000], test_labels[:1000])


def _cifar_part(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    with (folder / "cifar-10-batches-py" / name).open("rb") as file:
        content = pickle.load(file, encoding="bytes")
    images = torch.from_numpy(np.asarray(content[b"data"])).float().view(-1, 3, 32, 32) / 255
    return avg_pool2d(images, 2), torch.tensor(content[b"labels"])


def captions(file: Path) -> Pairs:
    """Two of the five captions of each Flickr8k picture: is the same picture meant?"""
    by_picture: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, text = line.split(None, 1)
        by_picture.setdefault(name.split("#")[0], []).append(text)
    chosen = [texts for texts in by_picture.values() if len(texts) >= 2][:6000]
    return Pairs(
        bags([texts[0] for texts in chosen]),
        bags([texts[1] for texts in chosen]),
        torch.arange(len(chosen)),
    )


def bitext(folder: Path) -> Pairs:
    """English and German captions of Multi30k."""
    sides = []
    for language in ("en", "de"):
        with gzip.open(folder / f"train.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append(bags(file.read().splitlines()[:8000]))
    return Pairs(*sides, torch.arange(len(sides[0])))


def bags(texts: list[str]) -> Tensor:
    """(n, WORDS) unit rows."""
    counts = torch.zeros(len(texts), WORDS)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            counts[row, zlib.crc32(word.encode()) % WORDS] += 1
    return normalize(counts)
