"""Checkpoints: everything a run needs to continue bit-identically, written atomically."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.selector import Stateful
from eigenbatch.train.loop import Observer, Training

VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the text says why."""


class Checkpoint(Observer):
    """Saves after every `every` epochs, and at the end or on an interruption by the user.

    parts: what else has a state: the cache, a monitor.
    path: the file, replaced each time: a crash leaves the old or the new one, never half of one.
    """

    def __init__(
        self,
        path: Path,
        sampler: SpectralBatchSampler,
        parts: Mapping[str, Stateful],
        *,
        every: int = 1,
    ) -> None:
        self.path, self.sampler, self.parts, self.every = path, sampler, parts, every

    def on_epoch(self, training: Training) -> None:
        """Save when it is due."""
        if training.epoch % self.every == 0:
            self.save(training)

    def on_end(self, training: Training) -> None:
        """Save where the run stands; after an error the last whole epoch's checkpoint stays."""
        if not training.failed:
            self.save(training)

    def save(self, training: Training) -> None:
        """Write the checkpoint; only rank 0 touches the disk."""
        if training.fabric.global_rank == 0:
            save_atomically(self._state(training), self.path)

    def load(self, training: Training) -> None:
        """Put `training`, sampler, cache and random state where the checkpoint was taken."""
        state = load_safely(self.path)
        training.method.load_state_dict(state["method"])
        training.optimizer.load_state_dict(state["optimizer"])
        if training.scheduler is not None:
            training.scheduler.load_state_dict(state["scheduler"])
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        self.sampler.load_state_dict(state["sampler"])
        training.epoch, training.batch, training.step = (
            state[name] for name in ("epoch", "batch", "step")
        )
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def _state(self, training: Training) -> dict[str, Any]:
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
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Write, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_safely(path: Path) -> dict[str, Any]:
    """The saved state; never runs code from the file."""
    import pickle

    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: there is nothing to resume")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as reason:
        raise CheckpointError(f"{path} is no checkpoint of eigenbatch: {reason}") from reason
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise CheckpointError(f"{path} is not a checkpoint of version {VERSION}")
    return state
