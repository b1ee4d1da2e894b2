"""Data sets and their settings: what a run learns from, and what it is evaluated on.

The settings load no torch; images are read by `data.py`, sentence pairs by `text.py`.
"""

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
class DigitsConfig(ImageConfig, name="digits"):
    """1,797 handwritten digits of 8 x 8 pixels from scikit-learn: nothing to download."""

    channels: ClassVar[int] = 1

    @property
    def image_size(self) -> int:
        """Eight pixels."""
        return 8

    def load(self, split: Split) -> "LabelledImages":
        """From scikit-learn."""
        from eigenbatch.train.data.images import digits

        return digits(split)


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


@dataclass(frozen=True, kw_only=True)
class CIFAR10Config(DirectoryConfig, name="cifar10"):
    """CIFAR-10, the original python files."""

    @property
    def image_size(self) -> int:
        """32 pixels."""
        return 32

    def load(self, split: Split) -> "LabelledImages":
        """From cifar-10-batches-py."""
        from eigenbatch.train.data.images import cifar10

        return cifar10(self.place, split)


@dataclass(frozen=True, kw_only=True)
class CIFAR100Config(DirectoryConfig, name="cifar100"):
    """CIFAR-100, the original python files, fine labels."""

    @property
    def image_size(self) -> int:
        """32 pixels."""
        return 32

    def load(self, split: Split) -> "LabelledImages":
        """From cifar-100-python."""
        from eigenbatch.train.data.images import cifar100

        return cifar100(self.place, split)


@dataclass(frozen=True, kw_only=True)
class FolderConfig(DirectoryConfig, name="folder"):
    """A folder or zip of pictures in ImageFolder layout.

    Args:
        size: side in pixels that pictures are scaled and cropped to.
        labels: whether folders are classes. Without labels any folder will do, and there is no
            kNN accuracy.
        in_memory: decode every labelled picture once and keep it; for small pictures.
        whole_pictures: random crops are cut from the whole picture at its own resolution, as
            published SimCLR does, and not from its central square. Evaluation uses the square.
    """

    size: Annotated[int, Range(2, 4096)] = 64
    labels: bool = True
    in_memory: bool = False
    whole_pictures: bool = False

    def check(self) -> None:
        """Pictures in memory are squares already."""
        super().check()
        if self.whole_pictures and (self.in_memory or not self.labels):
            raise ParameterError("whole_pictures needs in_memory=false and labels=true")

    @property
    def image_size(self) -> int:
        """As set."""
        return self.size

    def load(self, split: Split) -> "LabelledImages":
        """The pictures below the folder of the split."""
        from eigenbatch.train.data.images import ImageFolder

        return ImageFolder(self.place, split, size=self.size)

    def images(self, split: Split) -> "LabelledImages":
        """As the settings ask, decoded already if they are to be kept in memory."""
        from eigenbatch.train.data.images import in_memory

        images = super().images(split)
        return in_memory(images, workers=self.workers) if self.in_memory else images

    def training(self, images: "LabelledImages", views: ViewsConfig) -> "Dataset[Any]":
        """As squares, or as two crops of the whole picture."""
        from eigenbatch.train.data.crops import TwoCrops

        return TwoCrops(images, least=views.crop) if self.whole_pictures else images

    def open(self, views: ViewsConfig) -> "Source":
        """With or without labels."""
        from eigenbatch.train.data.source import UnlabelledSource

        return super().open(views) if self.labels else UnlabelledSource(self, views)


@dataclass(frozen=True, kw_only=True)
class PetsConfig(DirectoryConfig, name="pets"):
    """Oxford-IIIT Pets as it is distributed, with images/ and annotations/.

    Args:
        size: side in pixels that pictures are scaled and cropped to.
    """

    size: Annotated[int, Range(2, 4096)] = 224

    @property
    def image_size(self) -> int:
        """As set."""
        return self.size

    def load(self, split: Split) -> "LabelledImages":
        """The pictures that annotations/trainval.txt or test.txt names."""
        from eigenbatch.train.data.pets import OxfordPets

        return OxfordPets(self.place, split, size=self.size)


@dataclass(frozen=True, kw_only=True)
class PairsConfig(DataConfig, name="pairs"):
    """Sentence pairs: line i of one text file belongs to line i of the other; .gz is read too.

    Args:
        first: training sentences.
        second: their partners, e.g. translations.
        test_first: sentences for evaluation by retrieval; None: every tenth training pair.
        test_second: their partners.
        train_size: the first so many pairs; None: all.
        vocabulary: most frequent words that are kept per side.
    """

    first: Path | None = None
    second: Path | None = None
    test_first: Path | None = None
    test_second: Path | None = None
    train_size: Count | None = None
    vocabulary: Annotated[int, Range(2, 10**7)] = 30_000

    def open(self, views: ViewsConfig) -> "Source":
        """Both sides as word ids."""
        from eigenbatch.train.data.pairs import PairSource

        self.validate()
        return PairSource(self)

    def validate(self) -> None:
        """Both files must be given and exist."""
        if self.first is None or self.second is None:
            raise ParameterError("pairs needs data.first and data.second, two text files")
        if (self.test_first is None) != (self.test_second is None):
            raise ParameterError("give both data.test_first and data.test_second, or neither")
        for path in (self.first, self.second, self.test_first, self.test_second):
            if path is not None and not path.is_file():
                raise ParameterError(f"{path} is no text file: check the path")
