"""Commit and versions behind a run."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("eigenbatch", "torch", "numpy", "lightning", "kornia")


def provenance() -> dict[str, Any]:
    """Commit of the project in the working directory, versions and machine type, as plain JSON."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "commit": _commit_at(Path()),
        "eigenbatch_commit": commit(),
        "versions": versions,
        "machine": platform.machine(),
    }


@cache
def commit() -> str | None:
    """The commit of our source tree, with "+" if it was changed.

    Read once per process: a later commit is not what this process runs.

    Returns:
        Twelve digits; None for an installed package.

    Examples:
        >>> from eigenbatch.runs import commit
        >>> found = commit()
        >>> found is None or len(found) in (12, 13)
        True
    """
    here = Path(__file__)
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # it may be another project's
    except (OSError, subprocess.CalledProcessError):
        return None
    return _commit_at(here.parent)


def _commit_at(folder: Path) -> str | None:
    try:
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
