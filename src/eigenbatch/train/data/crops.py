"""Two random crops of the whole picture, as SimCLR cuts them: in the processes that decode."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eigenbatch.train.data.images import Subset
from eigenbatch.train.data.pictures import Box, Pictures

RATIO = (3 / 4, 4 / 3)


class TwoCrops(Dataset[tuple[Tensor, int]]):
    """Labelled pictures, each read as two crops (2, 3, size, size) with an area of `least` to 1.

    The crops of a batch depend on its indices alone, not on the process that reads it: a resumed
    run, with any number of workers, cuts the same ones.
    """

    def __init__(self, data: Any, *, least: float) -> None:
        self.data, self.least = data, least
        self.labels: Tensor = data.labels
        self.classes: tuple[str, ...] = data.classes

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """One batch."""
        digest = hashlib.sha256(repr([int(i) for i in indices]).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return [(self._crops(i, generator), int(self.labels[i])) for i in indices]

    def _crops(self, index: int, generator: torch.Generator) -> Tensor:
        pictures, place = _pictures(self.data, index)
        image = pictures.picture(place)
        boxes = [random_box(*image.size, self.least, generator) for _ in range(2)]
        return torch.stack([pictures.scaled(image, box) for box in boxes])


def _pictures(data: Any, index: int) -> tuple[Pictures, int]:
    """The folder behind a part of it, and the index there."""
    while isinstance(data, Subset):
        data, index = data.data, int(data.index[index])
    return data, index


def random_box(width: int, height: int, least: float, generator: torch.Generator) -> Box:
    """A random box (left, top, right, bottom) of a share of the area from `least` to 1.

    Sides relate as 3 : 4 to 4 : 3. After ten boxes that do not fit the central square is taken.
    """
    for _ in range(10):
        area = width * height * _uniform(least, 1.0, generator)
        ratio = math.exp(_uniform(math.log(RATIO[0]), math.log(RATIO[1]), generator))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(torch.randint(width - w + 1, (), generator=generator))
            top = int(torch.randint(height - h + 1, (), generator=generator))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))
