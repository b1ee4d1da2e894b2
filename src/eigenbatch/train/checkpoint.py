"""Checkpoints: everything a run needs to continue bit-identically."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.errors import CheckpointError
from eigenbatch.processes import of_all_processes
from eigenbatch.runs.record import Mark
from eigenbatch.train.checkpoint_file import VERSION, save_checkpoint
from eigenbatch.train.devices import loss_scaler, random_state, set_random_state
from eigenbatch.train.loop import Observer, Training


class Checkpoint(Observer):
    """Saves after every epoch, and at the end or on an interruption by the user.

    Args:
        path: the file; the one before is kept beside it.
        sampler: its position in the epoch is saved.
        parts: what else has a state: the cache, a monitor.
        mark: how far the record on disk reaches; the checkpoint counts on it.
    """

    def __init__(
        self,
        path: Path,
        sampler: SpectralBatchSampler,
        parts: Mapping[str, Any],
        *,
        mark: Callable[[], Mark] | None = None,
    ) -> None:
        self.path, self.sampler, self.parts, self.mark = path, sampler, parts, mark

    def on_epoch(self, training: Training) -> None:
        """Save."""
        self.save(training)

    def on_end(self, training: Training) -> None:
        """Save the state of the run; after an error the last whole epoch's checkpoint stays."""
        if not training.failed:
            self.save(training)

    def save(self, training: Training) -> None:
        """Write the checkpoint; every process calls it, only rank 0 touches the disk."""
        self.sampler.cache.gather()
        alone = training.fabric.world_size == 1
        generators = [random_state()] if alone else of_all_processes(random_state())
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
                own = state["generators"][rank]
                if not isinstance(own, dict):  # of an older run
                    devices = dict(enumerate(state["cuda_generators"]))
                    own = {"torch": own, "cuda": devices.get(rank)}
                set_random_state(own)
            scaler = loss_scaler(training.fabric)
            if scaler is not None and state.get("scaler"):
                scaler.load_state_dict(state["scaler"])
        except Exception as reason:  # any exception means a state that does not fit
            detail = (str(reason).splitlines() or [type(reason).__name__])[0]
            raise CheckpointError(
                f"{self.path} does not fit this run: {detail}. Was it written with other settings?"
            ) from reason
        training.epoch, training.batch, training.step = place
        training.resumed = True

    def _state(self, training: Training, generators: list[Any]) -> dict[str, Any]:
        finished = training.batch == 0
        scaler = loss_scaler(training.fabric)
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
            "scaler": {} if scaler is None else scaler.state_dict(),
            "generators": generators,
            "record": asdict(self.mark()) if self.mark is not None else None,
        }
