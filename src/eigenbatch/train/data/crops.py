"""Two random crops of the whole picture, as SimCLR cuts them: in the processes that decode."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eigenbatch.train.data.images import Subset
from eigenbatch.train.data.pictures import Box, Pictures

RATIO = (3 / 4, 4 / 3)


class TwoCrops(Dataset[tuple[Tensor, int]]):
    """Labelled pictures, each read as two crops (2, 3, size, size) with an area of `least` to 1.

    The random numbers are torch's: in a worker process those of its own seed.
    """

    def __init__(self, data: Any, *, least: float) -> None:
        self.data, self.least = data, least
        self.labels: Tensor = data.labels
        self.classes: tuple[str, ...] = data.classes

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pictures, place = _pictures(self.data, index)
        image = pictures.picture(place)
        crops = [pictures.scaled(image, random_box(*image.size, self.least)) for _ in range(2)]
        return torch.stack(crops), int(self.labels[index])


def _pictures(data: Any, index: int) -> tuple[Pictures, int]:
    """The folder behind a part of it, and the index there."""
    while isinstance(data, Subset):
        data, index = data.data, int(data.index[index])
    return data, index


def random_box(width: int, height: int, least: float) -> Box:
    """A random box (left, top, right, bottom) of a share of the area from `least` to 1.

    Sides relate as 3 : 4 to 4 : 3. After ten boxes that do not fit the central square is taken.
    """
    for _ in range(10):
        area = width * height * _uniform(least, 1.0)
        ratio = math.exp(_uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(torch.randint(width - w + 1, ()))
            top = int(torch.randint(height - h + 1, ()))
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
