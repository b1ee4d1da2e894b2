"""What data sets have in common: settings, which load no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from eigenbatch.errors import ParameterError
from eigenbatch.train.encoders import Inputs
from eigenbatch.train.settings import Config, Count, Range
from eigenbatch.train.views import ViewsConfig

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from eigenbatch.train.data.images import LabelledImages
    from eigenbatch.train.data.source import Source

Split = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """What every data set has.

    Args:
        workers: processes that read and decode samples; 0: the training process itself.
    """

    pairs: ClassVar[bool] = False  # whether samples are pairs of sentences
    recipe: ClassVar[str] = "cifar10-cpu"  # the settings to start from, unless told otherwise

    workers: Annotated[int, Range(0, 256)] = 0

    def validate(self) -> None:
        """Raise if the data cannot be found; called before anything heavy is imported."""

    def open(self, views: ViewsConfig) -> "Source":
        """Load the data; raises a DataError that says what is missing."""
        raise AssertionError("a data set defines how it is opened")


@dataclass(frozen=True, kw_only=True)
class ImageConfig(DataConfig):
    """Labelled images.

    Args:
        train_size: a balanced part of the training images; None: all.
        test_size: a balanced part of the test images; None: all.
        copies: redundant, long-tailed data: every training image this often; None: as it is.
    """

    channels: ClassVar[int] = 3

    train_size: Count | None = None
    test_size: Count | None = None
    copies: Count | None = None

    def check(self) -> None:
        """Copies need a size to reach."""
        if self.copies is not None and self.train_size is None:
            raise ParameterError(f"copies={self.copies} needs train_size, the images in all")

    @property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        raise AssertionError("an image data set knows its size")

    def inputs(self, views: ViewsConfig) -> Inputs:
        """What an encoder of these images takes."""
        return Inputs(channels=self.channels, size=views.size or self.image_size)

    def load(self, split: Split) -> "LabelledImages":
        """Every image of a split."""
        raise AssertionError("an image data set defines how it is loaded")

    def images(self, split: Split) -> "LabelledImages":
        """The part of a split that the settings ask for."""
        from eigenbatch.train.data.images import balanced, long_tailed

        images = self.load(split)
        if split == "train" and self.copies is not None and self.train_size is not None:
            return long_tailed(images, self.train_size, copies=self.copies)
        count = self.train_size if split == "train" else self.test_size
        return images if count is None else balanced(images, count)

    def training(self, images: "LabelledImages", views: ViewsConfig) -> "Dataset[Any]":
        """The images as training reads them: here, as they are."""
        return images

    def open(self, views: ViewsConfig) -> "Source":
        """Both splits with random views of the images."""
        from eigenbatch.train.data.source import ImageSource

        return ImageSource(self, views)


@dataclass(frozen=True, kw_only=True)
class DirectoryConfig(ImageConfig):
    """Images on disk.

    Args:
        directory: the folder that holds the data.
    """

    directory: Path | None = None

    def validate(self) -> None:
        """The folder must be given and exist."""
        if not self.place.exists():
            raise ParameterError(f"--data-dir {self.place} does not exist")

    @property
    def place(self) -> Path:
        """The folder; raises if none was given."""
        if self.directory is None or str(self.directory) in ("", "."):
            raise ParameterError(f"{self.kind} needs --data-dir, the folder that holds it")
        return self.directory
