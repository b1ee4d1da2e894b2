"""A run on disk: manifest.json says what it is, metrics.jsonl grows line by line."""

import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


class RunError(ValueError):
    """A run directory that cannot be used as asked; the text says what to do."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where one run keeps its files."""

    path: Path

    @property
    def manifest(self) -> Path:
        """Config, commit, versions, seed and device, written once."""
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        """Append-only, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoint.pt"

    @property
    def finished(self) -> bool:
        """Whether the run wrote its last line."""
        return any(line.get("finished") for line in self.read_metrics()[-1:])

    def check_free(self) -> None:
        """Raise if the directory already holds a run."""
        if self.manifest.exists():
            raise RunError(
                f"{self.path} already holds a run: resume it with --resume, or choose another --out"
            )
        if self.metrics.exists():
            raise RunError(
                f"{self.metrics} belongs to no run of eigenbatch: move it, or choose another --out"
            )

    def create(self, config: Any, *, device: str) -> None:
        """Begin a run; refuses to touch a directory that already holds one."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        content = {"config": _plain(config), "device": device} | provenance()
        partial = self.manifest.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        partial.replace(self.manifest)

    def check_same(self, config: Any) -> None:
        """Raise unless the run on disk was begun with this config."""
        if not self.manifest.exists():
            raise RunError(f"{self.path} holds no run: there is nothing to resume")
        try:
            stored: dict[str, Any] = dict(json.loads(self.manifest.read_text())["config"])
        except (ValueError, KeyError, TypeError) as reason:
            raise RunError(
                f"{self.manifest} is damaged, or not of eigenbatch: choose another --out"
            ) from reason
        given = _plain(config)
        both = {name: (stored.get(name), given.get(name)) for name in stored | given}
        changed = {name: pair for name, pair in both.items() if pair[0] != pair[1]}
        if changed:
            differences = ", ".join(f"{k}: {old} -> {new}" for k, (old, new) in changed.items())
            raise RunError(f"{self.path} was begun with other settings ({differences})")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the run while this one works on it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # no such locks on this system
                pass
            except BlockingIOError:
                raise RunError(f"{self.path} is in use by another process") from None
            yield

    def forget_after(self, step: int) -> None:
        """Drop metrics later than a checkpoint: a resumed run writes them again, the same."""
        kept = [line for line in self.read_metrics() if line.get("step", 0) <= step]
        partial = self.metrics.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
        partial.replace(self.metrics)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines; a line cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        lines = []
        for line in self.metrics.read_text().splitlines():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(found, dict):
                lines.append(found)
        return lines


def provenance() -> dict[str, Any]:
    """Commit and versions behind a run."""
    versions = {"python": platform.python_version()}
    for package in ("eigenbatch", "torch", "numpy", "lightning", "kornia"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"commit": commit(), "versions": versions, "machine": platform.machine()}


@cache
def commit() -> str | None:
    """The commit of our source tree, with "+" if it was changed; None for an installed package.

    Asked once: what is committed later is not what this process runs.
    """
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # the tree may be another's
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _plain(config: Any) -> dict[str, Any]:
    assert is_dataclass(config)
    assert not isinstance(config, type)
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return plain
