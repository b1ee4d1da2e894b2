"""A run on disk: manifest.json says what it is, metrics.jsonl grows line by line.

    runs/mine/manifest.json      settings, commit, versions, device; written once
    runs/mine/metrics.jsonl      one JSON object per line, append-only
    runs/mine/checkpoint.pt      written by our trainer only

The manifest is optional: metrics.jsonl alone is a run whose settings are unknown.
"""

import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO

from eigenbatch.errors import RunError
from eigenbatch.runs.provenance import provenance

FORMAT = 2
"""Of the manifest. Format 1 had flat settings."""

_held: set[Path] = set()  # locks of this process; POSIX locks do not exclude their own process


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where one run keeps its files.

    Args:
        path: the folder.

    Examples:
        >>> from pathlib import Path
        >>> from eigenbatch.runs import RunDirectory
        >>> RunDirectory(Path("runs/mine")).metrics.name
        'metrics.jsonl'
    """

    path: Path

    @property
    def manifest(self) -> Path:
        """Settings, commit, versions and device, written once."""
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        """Append-only, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoint.pt"

    def check_free(self, *, checkpoints: bool = False) -> None:
        """Raise if the directory already holds a run, or cannot hold one.

        Args:
            checkpoints: checkpoints will be written, too: there must be none.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose another folder for the run")
        if self.manifest.exists():
            raise RunError(f"{self.path} already holds a run: resume it, or choose another folder")
        for file in (self.metrics, *(self.path.glob("checkpoint*.pt") if checkpoints else ())):
            if file.exists():
                raise RunError(f"{file} exists already: move it, or choose another folder")

    def create(self, config: object, **facts: Any) -> None:
        """Write the manifest; refuses to touch a directory that already holds a run.

        Args:
            config: settings as a dataclass or mapping; anything JSON cannot hold becomes text.
            **facts: further entries, e.g. `device="cpu"`.
        """
        self.check_free()
        manifest = {"format": FORMAT, "config": plain(config)} | facts | provenance()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self.manifest.touch(exist_ok=False)  # of several processes one makes it
        except FileExistsError:
            raise RunError(
                f"{self.path} was just taken by another process: of several, only rank 0 may "
                "record a run"
            ) from None
        try:
            self._write(manifest)
        except BaseException:
            self.manifest.unlink()
            raise

    def update_manifest(self, **entries: Any) -> None:
        """Replace entries of the manifest, e.g. when a run is extended."""
        self._write(self.read_manifest() | entries)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest; raises a RunError that says what is wrong with it."""
        if not self.manifest.exists():
            raise RunError(f"{self.path} holds no run: there is nothing to resume or load")
        content, problem = read_object(self.manifest)
        if problem or not isinstance(content.get("config"), dict):
            problem = problem or f'{self.manifest.name} has no "config"'
            raise RunError(f"{self.path}: {problem}. Restore the file, or choose another folder")
        return content

    def _write(self, manifest: dict[str, Any]) -> None:
        write_atomically(self.manifest, (json.dumps(manifest, indent=2) + "\n").encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the run while this one works on it.

        The lock is not inherited by child processes, so that loader workers of a killed run do not
        keep it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        place = self.path.resolve()
        in_use = RunError(f"{self.path} is in use by another process: wait for it, or stop it")
        if place in _held:
            raise in_use
        with _own_file(self.path / "lock") as file:
            try:
                import fcntl

                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # no such locks on this system
                pass
            except (BlockingIOError, PermissionError):
                raise in_use from None
            _held.add(place)
            for left in self.path.glob(".checkpoint.pt.*.partial"):
                left.unlink()  # of a run that was killed: this process alone works here
            try:
                yield
            finally:
                _held.discard(place)


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """Read a JSON object; a damaged file gives a sentence and no exception.

    Args:
        path: the file.

    Returns:
        The object and "", or an empty object and what is wrong with the file.

    Examples:
        >>> from eigenbatch.runs import read_object
        >>> _ = (tmp_path / "manifest.json").write_text('{"seed": 3}')
        >>> read_object(tmp_path / "manifest.json")
        ({'seed': 3}, '')
    """
    try:
        if path.exists() and not path.is_file():
            return {}, f"{path.name} is not a regular file"
        content = json.loads(path.read_bytes(), parse_constant=str)
    except FileNotFoundError:
        return {}, f"{path.name} is missing"
    except OSError as error:
        return {}, f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return {}, f"{path.name} is not valid JSON"
    if not isinstance(content, dict):
        return {}, f"{path.name} is not a JSON object"
    return content, ""


def write_atomically(path: Path, content: bytes) -> None:
    """Write, flush to disk, rename: a crash leaves the old file or the new one.

    Args:
        path: the file.
        content: its new content.

    Examples:
        >>> from eigenbatch.runs import write_atomically
        >>> write_atomically(tmp_path / "note.txt", b"whole")
        >>> (tmp_path / "note.txt").read_text()
        'whole'
    """
    if path.is_dir():
        raise RunError(f"{path} is a folder: name a file in it, or another one")
    with beside(path) as file:
        file.write(content)


@contextmanager
def beside(path: Path) -> Iterator[BinaryIO]:
    """A new file beside `path` that takes its place once all is written; gone after an error.

    It is created exclusively under a name of its own: nothing of the user's is opened, and two
    writers never share one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _own_file(path: Path) -> BinaryIO:
    """A lock file, opened for writing but not truncated; raises if it is a link or not regular."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.fdopen(os.open(path, flags, 0o666), "r+b")
    except OSError as error:
        raise RunError(
            f"{path} cannot be used as a lock ({error.strerror}): it must be a plain file of this "
            "run. Move it away"
        ) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RunError(f"{path} is no plain file, so it cannot be a lock: move it away")
    return file


def plain(config: object) -> dict[str, Any]:
    """Settings as JSON values."""
    if is_dataclass(config) and not isinstance(config, type):
        config = asdict(config)
    if config is None:
        config = {}
    if not isinstance(config, Mapping):
        raise RunError(
            f"config must be a mapping or a dataclass, got {type(config).__name__}: pass e.g. "
            "config={'lr': 1e-3}"
        )
    text = json.dumps(_with_text_keys(config), default=str)
    values: dict[str, Any] = json.loads(text, parse_constant=str)  # JSON has no Infinity
    return values


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _with_text_keys(one) for key, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list | tuple) else value
