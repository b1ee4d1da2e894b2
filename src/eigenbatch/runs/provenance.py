"""Commit and versions behind a run."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("eigenbatch", "torch", "numpy", "lightning", "kornia")


def provenance() -> dict[str, Any]:
    """Commit, package versions and machine type, as plain JSON."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"commit": commit(), "versions": versions, "machine": platform.machine()}


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
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # the tree may be another project
        changed = _git("status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()
