"""The picture files below a folder or inside a zip file, each listed exactly once.

Links are followed, because many data sets are folders of linked files or class folders. A picture
that two names lead to would be counted twice, or leak from training to test data: it is an error.
"""

import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from eigenbatch.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")


def pictures_in_folder(root: Path) -> list[str]:
    """Names of all pictures below `root`, relative to it, sorted.

    Raises:
        DataError: two names lead to the same file, a link leads back to a folder that contains
            it, or a picture is not a regular file.
    """
    try:
        names = _Walk(root).pictures_below(root, Path(os.path.realpath(root)))
    except OSError as reason:
        raise DataError(f"{root} cannot be listed: {reason}") from reason
    return sorted(name.as_posix() for name in names)


def pictures_in_zip(archive: zipfile.ZipFile) -> list[str]:
    """Names of all pictures in `archive`, sorted.

    Raises:
        DataError: a picture is encrypted, is stored twice, or has a name outside the archive.
    """
    names: set[str] = set()
    for member in archive.infolist():
        if member.is_dir() or not is_picture(PurePosixPath(member.filename)):
            continue
        name = member.filename
        if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
            raise DataError(f"{archive.filename}: {name!r} is not a relative path; zip it again")
        if member.flag_bits & 1:
            raise DataError(f"{archive.filename}: {name} is encrypted; save it without a password")
        if name in names:
            raise DataError(f"{archive.filename}: {name} is stored twice; remove one of them")
        names.add(name)
    return sorted(names)


def is_picture(path: PurePosixPath | Path) -> bool:
    """Whether the ending is that of a picture and no part of the path is hidden."""
    return path.suffix.lower() in SUFFIXES and not any(map(_is_hidden, path.parts))


def _is_hidden(name: str) -> bool:
    return name == "__MACOSX" or (name.startswith(".") and name != "..")


@dataclass(slots=True)
class _Walk:
    """One walk over a folder; remembers the real place of everything found."""

    root: Path
    folders: dict[Path, tuple[Path, bool | None]] = field(default_factory=dict)
    """Real folder -> its name, and whether it has pictures (None: the walk is still inside)."""
    files: dict[Path, Path] = field(default_factory=dict)
    """Real file -> its name, where a link leads to it or may lead to it."""

    def pictures_below(self, folder: Path, real: Path) -> list[Path]:
        """Names, relative to the root, of the pictures in `folder`, whose real path is `real`."""
        own_name = folder.relative_to(self.root)
        if real in self.folders:
            return self._again(own_name, real)
        self.folders[real] = own_name, None
        found: list[Path] = []
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                place = Path(os.path.realpath(entry.path)) if entry.is_symlink() else None
                place = place or real / entry.name
                if entry.is_dir() and not _is_hidden(entry.name):
                    found += self.pictures_below(folder / entry.name, place)
                elif is_picture(Path(entry.name)) and not entry.is_dir():
                    found.append(self._picture(own_name / entry.name, entry, place))
        self.folders[real] = own_name, bool(found)
        return found

    def _again(self, name: Path, real: Path) -> list[Path]:
        first, has_pictures = self.folders[real]
        if has_pictures is None:
            raise DataError(
                f"{self.root / name} links back to {self.root / first}, which contains it: "
                "remove the link"
            )
        if has_pictures:
            raise self._twice(first, name)
        return []

    def _picture(self, name: Path, entry: "os.DirEntry[str]", place: Path) -> Path:
        if not entry.is_file():
            kind = "is not a regular file" if os.path.exists(entry.path) else "is a broken link"
            raise DataError(f"{self.root / name} {kind}: remove or replace it")
        if place in self.files:
            raise self._twice(self.files[place], name)
        self.files[place] = name
        return name

    def _twice(self, first: Path, second: Path) -> DataError:
        return DataError(
            f"{self.root / first} and {self.root / second} are the same, by a link: its pictures "
            "would be counted twice. Remove one of them"
        )
