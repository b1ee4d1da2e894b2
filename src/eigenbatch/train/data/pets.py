"""Oxford-IIIT Pets as it is distributed: pictures in one folder, classes and splits in lists."""

from pathlib import Path

import torch

from eigenbatch.errors import DataError
from eigenbatch.train.data.images import Sample, Split
from eigenbatch.train.data.pictures import Pictures

LISTS = {"train": "trainval.txt", "test": "test.txt"}


class OxfordPets(Pictures):
    """Pictures of `root`/images with the classes that a list in `root`/annotations names.

    A line of a list is `Abyssinian_100 1 1 1`: the picture, its class from 1 on, species, breed.

    Args:
        root: the folder that holds images/ and annotations/.
        split: "train" is trainval.txt, "test" is test.txt.
        size: height and width of the images.

    Raises:
        DataError: a list or a picture is missing, or a line is not of that form.
    """

    def __init__(self, root: Path, split: Split, *, size: int = 224) -> None:
        path = root / "annotations" / LISTS[split]
        if not path.is_file():
            raise DataError(
                f"{path} is missing: point --data-dir to the unpacked Oxford Pets, the folder that "
                "holds images/ and annotations/"
            )
        super().__init__(root / "images", size=size)
        pictures = {Path(name).stem: name for name in self.names}
        entries = [_entry(line, path) for line in path.read_text().splitlines() if _counts(line)]
        if missing := [stem for stem, _ in entries if stem not in pictures]:
            raise DataError(f"{root / 'images' / missing[0]}.jpg is missing, but {path} names it")
        names = {label: stem.rpartition("_")[0] for stem, label in entries}
        if len(names) < 2 or sorted(names) != list(range(len(names))):
            raise DataError(f"{path} names {len(names)} classes that do not count from 1 on")
        self.classes = tuple(names[label] for label in range(len(names)))
        self.names = [pictures[stem] for stem, _ in entries]
        self.labels = torch.tensor([label for _, label in entries])

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]
        return self.pixels(index), int(self.labels[index])


def _counts(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.startswith("#")


def _entry(line: str, path: Path) -> tuple[str, int]:
    """The name of a picture and its class from 0 on."""
    name, *numbers = line.split()
    if not numbers or not numbers[0].isdigit():
        raise DataError(f"{path}: {line!r} is not `PICTURE CLASS SPECIES BREED`")
    return name, int(numbers[0]) - 1
