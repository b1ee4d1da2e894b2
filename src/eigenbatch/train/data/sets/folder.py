"""Any folder or zip of pictures, one folder per class."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from eigenbatch.errors import DataError, ParameterError
from eigenbatch.train.data.kinds import DirectoryConfig, Split
from eigenbatch.train.data.picture_files import SUFFIXES
from eigenbatch.train.settings import Range
from eigenbatch.train.views import ViewsConfig

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from eigenbatch.train.data.images import LabelledImages, LabelledPictures
    from eigenbatch.train.data.source import Source

SPLITS = {"train", "test", "val"}
OTHER_SPLITS = {"training", "testing", "valid", "validation", "eval", "dev"}
"""Names of splits that are not read as such."""


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

    recipe: ClassVar[str] = "folder-cpu"

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
        return image_folder(self.place, split, size=self.size)

    def images(self, split: Split) -> "LabelledImages":
        """As the settings ask, decoded already if they are to be kept in memory."""
        from eigenbatch.train.data.images import in_memory

        images = super().images(split)
        return in_memory(images, workers=self.workers) if self.in_memory else images

    def training(self, images: "LabelledImages", views: ViewsConfig) -> "Dataset[Any]":
        """As squares, or as two crops of the whole picture."""
        from eigenbatch.train.data.crops import TwoCrops

        if not self.whole_pictures:
            return images
        if views.size not in (None, self.size):
            raise ParameterError(
                f"crops of whole pictures have data.size={self.size}, got views.size={views.size}: "
                "set data.size instead"
            )
        return TwoCrops(images, least=views.crop)

    def open(self, views: ViewsConfig) -> "Source":
        """With or without labels."""
        from eigenbatch.train.data.source import UnlabelledSource

        return super().open(views) if self.labels else UnlabelledSource(self, views)


def image_folder(root: Path, split: Split, *, size: int = 64) -> "LabelledPictures":
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
    from eigenbatch.train.data.images import LabelledPictures
    from eigenbatch.train.data.pictures import Pictures

    if (root / "annotations" / "trainval.txt").is_file():
        raise DataError(
            f"{root} is laid out as Oxford Pets, whose folders are no classes: --data pets"
        )
    pictures = Pictures(root, size=size).names
    class_of = _classes(pictures)
    names = _of_split(pictures, split, class_of)
    classes = tuple(sorted({class_of[name] for name in _of_split(pictures, "train", class_of)}))
    if not names or "" in classes:
        raise DataError(
            f"{root} holds no pictures in class folders for split {split!r}: expected "
            f"{split}/CLASS/PICTURE with endings {', '.join(SUFFIXES)}; without folders of splits "
            "every fifth picture of a class is for tests, so that it needs five. To train without "
            "labels: --set data.labels=false"
        )
    if len(classes) < 2:
        raise DataError(
            f"{root} has only one class, {classes[0]!r}: accuracy needs at least two. "
            "Put the pictures of each class into a folder of its own, train/CLASS/PICTURE, or "
            "train without labels: --set data.labels=false"
        )
    index = {name: i for i, name in enumerate(classes)}
    if unknown := sorted({class_of[name] for name in names} - set(index)):
        raise DataError(f"{root}: {unknown[0]!r} has {split} pictures, but none to train on")
    return LabelledPictures(
        root, names, [index[class_of[name]] for name in names], classes, size=size
    )


def _of_split(names: list[str], split: Split, class_of: Mapping[str, str]) -> list[str]:
    """Names below the folder of the split; without such folders one in five is for tests."""
    wanted = ("train",) if split == "train" else ("test", "val")
    folders = {part for name in names for part in PurePosixPath(name).parts[:-2]}
    if not folders & SPLITS:
        if alike := sorted(one for one in folders if one.lower() in SPLITS | OTHER_SPLITS):
            raise DataError(
                f"folders of pictures are split into train and test (or val), in these letters: "
                f"rename {', '.join(alike)}"
            )
        by_class = groupby(sorted(names, key=class_of.__getitem__), key=class_of.__getitem__)
        held_out = {name for _, members in by_class for name in list(members)[4::5]}
        return [name for name in names if (name in held_out) == (split == "test")]
    choice = next((folder for folder in wanted if folder in folders), None)
    return [name for name in names if choice in PurePosixPath(name).parts[:-2]]


def _classes(names: list[str]) -> dict[str, str]:
    """The class of each picture: the folder below that of its split, as ImageFolder has it.

    Without folders of splits it is the first one in which pictures differ; "" if there is none.
    """
    places = {name: PurePosixPath(name).parts[:-1] for name in names}
    deep = max(0, min(map(len, places.values())) - 1)
    levels = list(zip(*places.values(), strict=False))[:deep]
    shared = len(list(takewhile(lambda level: len(set(level)) == 1, levels)))  # folders of all
    found = {}
    for name, place in places.items():
        splits = [i for i, folder in enumerate(place[:-1]) if folder in SPLITS]
        start = splits[0] + 1 if splits else shared
        found[name] = place[start] if start < len(place) else ""
    return found
