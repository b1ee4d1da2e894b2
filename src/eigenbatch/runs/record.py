"""What a metrics file holds so far, so that a checkpoint can count on it.

One chain of checksums (SHA-256) begins with the run's settings, without what may change when a run
is resumed, and goes through every line to the last. A mark is the number of lines and bytes and the
chain so far. The trainer stores one in every checkpoint; the last line of a finished run holds one
of everything before it, and the chain over itself. A resumed run compares, so that edited settings
and lost or changed lines are an error instead of a silently different result. It tells damage, not
forgery; of an unfinished run, only what the last mark of a checkpoint covers.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from eigenbatch.errors import RunError

PLACES = ("directory", "first", "second", "test_first", "test_second")
CHANGEABLE = ("budget.epochs", *(f"data.{name}" for name in PLACES))
"""Settings that may change when a run is resumed, and are no part of the chain: it may go on for
longer, and data may move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a metrics file reaches."""

    lines: int
    size: int  # bytes
    sha256: str

    @classmethod
    def of(cls, path: Path, content: bytes) -> Self:
        """The mark of a metrics file at `path` with this content."""
        digest = _chain(path, content).hexdigest()
        return cls(lines=content.count(b"\n"), size=len(content), sha256=digest)

    @classmethod
    def from_plain(cls, content: object) -> Self:
        """The mark that `asdict` was taken of; raises RunError on anything else."""
        kinds = {"lines": int, "size": int, "sha256": str}
        if not isinstance(content, dict) or content.keys() != kinds.keys():
            raise RunError(f"a mark holds {', '.join(kinds)}, got {content!r:.80}")
        for name, kind in kinds.items():
            if type(content[name]) is not kind:
                raise RunError(f"a mark's {name} is of type {kind.__name__}")
        return cls(**content)


class RecordFile:
    """Appends JSON lines to a file and knows its own mark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = _chain(path)
        self._lines = self._size = 0
        if path.exists():
            check_regular(path)
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):  # a line cut off by a crash
                content = content[: content.rfind(b"\n") + 1]
                os.truncate(path, len(content))
            self._count(content)

    @property
    def mark(self) -> Mark:
        """The state of the file after the last `append`."""
        return Mark(lines=self._lines, size=self._size, sha256=self._digest.hexdigest())

    def append(self, line: dict[str, Any], *, sync: bool = False) -> None:
        """Write one line; with `sync`, wait until the disk has it."""
        content = json.dumps(line, allow_nan=False).encode() + b"\n"
        with self.path.open("ab") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        self._count(content)

    def sync(self) -> None:
        """Wait until the disk has every line."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def cut(self, mark: Mark) -> None:
        """Drop the lines after `mark`; raises if what comes before is not what was marked."""
        content = self.path.read_bytes() if self.path.exists() else b""
        kept = content[: mark.size]
        if len(kept) < mark.size or _chain(self.path, kept).hexdigest() != mark.sha256:
            lines = content.count(b"\n")
            raise RunError(
                f"{self.path} has lost or changed lines, or manifest.json beside it has other "
                f"settings: the checkpoint counts on {mark.lines} "
                f"lines ({mark.size} bytes), the file has {lines} ({len(content)} bytes). Restore "
                "the files from a copy, or train again in another folder"
            )
        if len(content) > mark.size:
            os.truncate(self.path, mark.size)
        self._digest, self._lines, self._size = _chain(self.path), 0, 0
        self._count(kept)

    def mark_at(self, step: int) -> Mark:
        """The mark before the first line of a later step, and before a line that ends the run."""
        kept: list[bytes] = []
        ends = 0  # lines at the end that say why or that the run ended
        for text in self.path.read_bytes().splitlines(keepends=True) if self._lines else []:
            try:
                line = json.loads(text)
                if line["step"] > step:
                    break
                ended = "stopped" in line or "finished" in line
            except (ValueError, RecursionError, LookupError, TypeError):
                ended = False  # damaged: its reader says so
            kept.append(text)
            ends = ends + 1 if ended else 0
        return Mark.of(self.path, b"".join(kept[: len(kept) - ends]))

    def _count(self, content: bytes) -> None:
        self._digest.update(content)
        self._size += len(content)
        self._lines += content.count(b"\n")


def closing_line(line: dict[str, Any], mark: Mark) -> dict[str, Any]:
    """The line that ends a finished run: `line`, the mark of all before it, and its own check."""
    closing = line | {"finished": 1, "record": asdict(mark)}
    text = json.dumps(closing, allow_nan=False).encode()
    return closing | {"check": hashlib.sha256(text).hexdigest()}


def _chain(path: Path, content: bytes = b"") -> "hashlib._Hash":
    """The chain of a metrics file: the settings in the manifest beside it, then its lines."""
    manifest = path.with_name("manifest.json")
    try:
        config = json.loads(manifest.read_bytes())["config"] if manifest.is_file() else None
    except (ValueError, RecursionError, LookupError, TypeError):
        config = None  # its reader says so
    digest = hashlib.sha256(json.dumps(_lasting(config), sort_keys=True).encode())
    digest.update(content)
    return digest


def _lasting(config: Any) -> Any:
    """Settings without those that may change when a run is resumed."""
    if not isinstance(config, dict):
        return config
    lasting = dict(config)
    for setting in CHANGEABLE:
        section, _, name = setting.partition(".")
        if isinstance(values := lasting.get(section), dict):
            lasting[section] = {key: one for key, one in values.items() if key != name}
    return lasting


def is_whole(path: Path) -> bool | None:
    """Whether the file ends with a closing line that matches what comes before it.

    None: there is no closing line, so the run is not finished.
    """
    content = path.read_bytes() if path.exists() else b""
    end = len(content)
    while end and content[end - 1 : end] == b"\n":  # rstrip would copy the whole file
        end -= 1
    start = content.rfind(b"\n", 0, end) + 1
    try:
        last = json.loads(content[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(last, dict) or not last.get("finished"):
        return None
    try:
        mark = Mark.from_plain(last.get("record"))
    except RunError:
        return False
    if mark.size != start or _chain(path, content[:start]).hexdigest() != mark.sha256:
        return False
    text, _, check = content[start:end].rpartition(b', "check": ')
    return check == b'"%s"}' % hashlib.sha256(text + b"}").hexdigest().encode()


def check_regular(path: Path) -> None:
    """Raise if `path` exists and is a FIFO, a device or a folder: reading it could hang."""
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a regular file: move it, or choose another folder")
