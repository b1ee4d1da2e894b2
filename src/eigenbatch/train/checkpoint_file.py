"""The checkpoint file: written with a checksum, verified before anything of it is loaded.

The file is what `torch.save` writes, followed by a line with its SHA-256. Nothing of a file is
loaded before the checksum was verified, and never anything that could run code. A new checkpoint is
read back before it replaces the old one, which is kept as `checkpoint.previous.pt`.
"""

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eigenbatch.errors import CheckpointError
from eigenbatch.runs.directory import beside

VERSION = 2
SEAL = b"\neigenbatch checkpoint sha256 "
SEAL_LENGTH = len(SEAL) + 64 + 1


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write, flush, read back, then replace the checkpoint; the old one becomes the previous."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    with beside(path) as file:
        file.write(payload)
        file.write(_seal(payload))
        file.flush()
        os.fsync(file.fileno())
        _payload(Path(file.name))
        if path.exists():
            path.replace(previous(path))


def load_checkpoint(path: Path, warn: Callable[[str], None]) -> dict[str, Any]:
    """The newest checkpoint that is whole.

    Args:
        path: the newest checkpoint. If it is damaged or missing, the one before is used.
        warn: told, in one line, when that happens.

    Returns:
        The saved state; a CheckpointError names the file and the way out if there is none.
    """
    before = previous(path)
    try:
        return _load(path)
    except CheckpointError as reason:
        if not before.exists():
            raise CheckpointError(
                f"{reason}. Restore the file from a copy, or train again in another folder"
            ) from None
        state = _load(before)
        warn(f"{reason}: resuming from {before.name}, the checkpoint before it")
        return state


def _load(path: Path) -> dict[str, Any]:
    payload = _payload(path)
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception:  # any exception means an invalid file; torch's advice would be unsafe
        raise CheckpointError(f"{path} cannot be read as a checkpoint") from None
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise CheckpointError(f"{path} is not a checkpoint of version {VERSION}")
    return state


def _seal(payload: bytes | memoryview) -> bytes:
    """The line that follows the payload."""
    return SEAL + hashlib.sha256(payload).hexdigest().encode() + b"\n"


def _payload(path: Path) -> bytes:
    """The bytes that `torch.save` wrote, if they are unchanged."""
    if not path.exists():
        raise CheckpointError(f"{path} does not exist")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a regular file")
    content = path.read_bytes()
    payload, seal = content[:-SEAL_LENGTH], content[-SEAL_LENGTH:]
    if not seal.startswith(SEAL):
        raise CheckpointError(f"{path} is damaged, or not a checkpoint of eigenbatch {VERSION}")
    if seal != _seal(payload):
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    return payload
