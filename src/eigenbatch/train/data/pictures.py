"""Pictures of a folder or zip file as square images of one size."""

import io
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from eigenbatch.errors import DataError
from eigenbatch.train.data.picture_files import SUFFIXES, pictures_in_folder, pictures_in_zip

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]  # left, top, right, bottom


class Pictures(Dataset[Any]):
    """Every picture below a folder or inside a zip file, without labels.

    Each picture is converted to RGB, its shorter side is scaled to `size` and the central square is
    cut out, so that batches can be stacked. Links are followed; each picture must be reachable by
    one name only.

    Args:
        root: the folder or zip file.
        names: the pictures, relative to the root; None: all of them.
        size: height and width of the images.

    Raises:
        DataError: there are no pictures, or one that cannot be used.
    """

    def __init__(self, root: Path, names: list[str] | None = None, *, size: int = 64) -> None:
        self.root, self.size = root, size
        self._zip: tuple[int, zipfile.ZipFile] | None = None  # process id and its own handle
        self.names = self._listed() if names is None else names
        if not self.names:
            raise DataError(
                f"{root} holds no pictures, files with endings {', '.join(SUFFIXES)}. To train on "
                "classes, put them into train/CLASS/PICTURE"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return (self.pixels(index),)

    def pixels(self, index: int) -> Tensor:
        """(3, size, size) uint8, the central square."""
        from PIL import Image

        image = self.picture(index)
        scale = self.size / min(image.size)
        width, height = (max(self.size, round(side * scale)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        image = image.crop((left, top, left + self.size, top + self.size))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def scaled(self, image: "Image", box: Box) -> Tensor:
        """(3, size, size) uint8, a part of a picture scaled to the size of the images."""
        from PIL.Image import Resampling

        part = image.resize((self.size, self.size), Resampling.BILINEAR, box=box, reducing_gap=3)
        return torch.from_numpy(np.array(part)).permute(2, 0, 1)

    def picture(self, index: int) -> "Image":
        """The whole picture in RGB, as large as it is."""
        from PIL import Image

        name = self.names[index]
        try:
            with Image.open(io.BytesIO(self._read(name))) as picture:
                return _eight_bits(picture).convert("RGB")
        except DataError as reason:
            raise DataError(f"{name} in {self.root}: {reason}") from None
        except Exception as reason:  # any exception of the reader means an invalid picture
            kind = type(reason).__name__
            raise DataError(
                f"{name} in {self.root} cannot be read as a picture ({kind}): repair or remove it"
            ) from reason

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_zip": None}  # a handle belongs to its process

    def _listed(self) -> list[str]:
        if self.root.is_dir():
            return pictures_in_folder(self.root)
        # A pipe is not a regular file: opening one would block.
        if self.root.is_file() and zipfile.is_zipfile(self.root):
            return pictures_in_zip(self._open_zip())
        raise DataError(
            f"{self.root} is neither a folder nor a zip file of pictures: check the path; classes "
            "are folders, train/CLASS/PICTURE"
        )

    def _read(self, name: str) -> bytes:
        if not self.root.is_dir():
            return self._open_zip().read(name)
        path = self.root / name
        if not path.is_file():
            raise FileNotFoundError(path)
        return path.read_bytes()

    def _open_zip(self) -> zipfile.ZipFile:
        """The handle of this process: a forked one would share the file position."""
        if self._zip is None or self._zip[0] != os.getpid():
            self._zip = os.getpid(), _opened_zip(self.root)
        return self._zip[1]


def _opened_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as reason:  # any exception of the reader means an invalid zip file
        raise DataError(f"{path} is a damaged zip file ({reason}): copy it again") from reason


def _eight_bits(picture: "Image") -> "Image":
    """The same picture if it has 8 bits a channel; `convert` would cut 16 bits off as white."""
    from PIL import Image

    if picture.mode == "F":
        raise DataError(
            "a picture of floating-point numbers has no known range: save it with 8 or 16 bits"
        )
    if not picture.mode.startswith("I"):
        return picture
    pixels = np.asarray(picture).clip(0, 2**16 - 1)
    wide = picture.mode != "I" or pixels.max() > 255  # "I" has 32 bits and may use few of them
    return Image.fromarray((pixels >> 8 if wide else pixels).astype(np.uint8))
