"""Checkpoints: everything a run needs to continue bit-identically.

The file is what `torch.save` writes, followed by a line with its SHA-256. Nothing of a file is
loaded before the checksum was verified, and never anything that could run code. A new checkpoint is
read back before it replaces the old one, which is kept as `checkpoint.previous.pt`.
"""

import hashlib
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from eigenbatch.errors import CheckpointError
from eigenbatch.runs.record import Mark
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.selector import Stateful
from eigenbatch.train.loop import Observer, Training

VERSION = 2
SEAL = b"\neigenbatch checkpoint sha256 "
SEAL_LENGTH = len(SEAL) + 64 + 1


class Checkpoint(Observer):
    """Saves after every `every` epochs, and at the end or on an interruption by the user.

    Args:
        path: the file; the one before is kept beside it.
        sampler: its position in the epoch is saved.
        parts: what else has a state: the cache, a monitor.
        mark: how far the record on disk reaches; the checkpoint counts on it.
        every: epochs between checkpoints.

    """

    def __init__(
        self,
        path: Path,
        sampler: SpectralBatchSampler,
        parts: Mapping[str, Stateful],
        *,
        mark: Callable[[], Mark] | None = None,
        every: int = 1,
    ) -> None:
        self.path, self.sampler, self.parts = path, sampler, parts
        self.mark, self.every = mark, every

    def on_epoch(self, training: Training) -> None:
        """Save when it is due."""
        if training.epoch % self.every == 0:
            self.save(training)

    def on_end(self, training: Training) -> None:
        """Save the state of the run; after an error the last whole epoch's checkpoint stays."""
        if not training.failed:
            self.save(training)

    def save(self, training: Training) -> None:
        """Write the checkpoint; every process calls it, only rank 0 touches the disk."""
        generators = _gathered_generators(training)
        if training.fabric.global_rank == 0:
            save_checkpoint(self._state(training, generators), self.path)

    def restore(self, training: Training, state: dict[str, Any]) -> None:
        """Put `training`, sampler, cache and random state back to where `state` was taken."""
        try:
            training.method.load_state_dict(state["method"])
            training.optimizer.load_state_dict(state["optimizer"])
            if training.scheduler is not None:
                training.scheduler.load_state_dict(state["scheduler"])
            for name, part in self.parts.items():
                part.load_state_dict(state["parts"][name])
            self.sampler.load_state_dict(state["sampler"])
            place = [int(state[name]) for name in ("epoch", "batch", "step")]
            rank = training.fabric.global_rank
            if rank < len(state["generators"]):
                torch.set_rng_state(state["generators"][rank])
            if torch.cuda.is_available() and state["cuda_generators"]:
                torch.cuda.set_rng_state_all(state["cuda_generators"])
        except Exception as reason:  # any exception means a state that does not fit
            detail = (str(reason).splitlines() or [type(reason).__name__])[0]
            raise CheckpointError(
                f"{self.path} does not fit this run: {detail}. Was it written with other settings?"
            ) from reason
        training.epoch, training.batch, training.step = place

    def _state(self, training: Training, generators: list[torch.Tensor]) -> dict[str, Any]:
        finished = training.batch == 0
        return {
            "version": VERSION,
            "epoch": training.epoch,
            "batch": training.batch,
            "step": training.step,
            "method": training.method.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "scheduler": training.scheduler.state_dict() if training.scheduler else {},
            "sampler": self.sampler.state_dict(None if finished else training.batch),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "generators": generators,
            "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "record": asdict(self.mark()) if self.mark is not None else None,
        }


def _gathered_generators(training: Training) -> list[torch.Tensor]:
    """The state of torch's generator in every process: each draws views of its own."""
    state = torch.get_rng_state()
    if training.fabric.world_size == 1:
        return [state]
    states: list[Any] = [None] * training.fabric.world_size
    dist.all_gather_object(states, state)
    return states


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write, flush, read back, then replace the checkpoint; the old one becomes the previous."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(payload)
        file.write(_seal(payload))
        file.flush()
        os.fsync(file.fileno())
    _payload(partial)
    if path.exists():
        path.replace(previous(path))
    partial.replace(path)


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
