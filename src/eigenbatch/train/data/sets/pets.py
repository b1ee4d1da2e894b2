"""Oxford-IIIT Pets as it is distributed: pictures in one folder, classes and splits in lists."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from eigenbatch.errors import DataError
from eigenbatch.train.data.kinds import DirectoryConfig, Split
from eigenbatch.train.settings import Range

if TYPE_CHECKING:
    from eigenbatch.train.data.images import LabelledImages

LISTS = {"train": "trainval.txt", "test": "test.txt"}


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
        """The pictures that a list in annotations/ names.

        A line of a list is `Abyssinian_100 1 1 1`: the picture, its class from 1 on, species,
        breed.
        """
        from eigenbatch.train.data.images import LabelledPictures
        from eigenbatch.train.data.pictures import Pictures

        path, images = self.place / "annotations" / LISTS[split], self.place / "images"
        if not path.is_file():
            raise DataError(
                f"{path} is missing: point --data-dir to the unpacked Oxford Pets, the folder that "
                "holds images/ and annotations/"
            )
        pictures = {Path(name).stem: name for name in Pictures(images, size=self.size).names}
        entries = [_entry(line, path) for line in path.read_text().splitlines() if _counts(line)]
        if missing := [stem for stem, _ in entries if stem not in pictures]:
            raise DataError(f"{images / missing[0]}.jpg is missing, but {path} names it")
        breeds = {label: stem.rpartition("_")[0] for stem, label in entries}
        if len(breeds) < 2 or sorted(breeds) != list(range(len(breeds))):
            raise DataError(f"{path} names {len(breeds)} classes that do not count from 1 on")
        return LabelledPictures(
            images,
            [pictures[stem] for stem, _ in entries],
            [label for _, label in entries],
            tuple(breeds[label] for label in range(len(breeds))),
            size=self.size,
        )


def _counts(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.startswith("#")


def _entry(line: str, path: Path) -> tuple[str, int]:
    """The name of a picture and its class from 0 on."""
    name, *numbers = line.split()
    if not numbers or not numbers[0].isdigit():
        raise DataError(f"{path}: {line!r} is not `PICTURE CLASS SPECIES BREED`")
    return name, int(numbers[0]) - 1
