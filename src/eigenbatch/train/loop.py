"""The one training loop. It knows no method, no selector and no data: it calls `method(batch)`."""

import signal
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from eigenbatch.train.devices import Devices
from eigenbatch.train.methods.method import Outcome


class Scheduler(Protocol):
    """A learning-rate schedule, stepped once per update."""

    def step(self) -> None:
        """Advance by one update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        ...


class Loader(Protocol):
    """Yields (ids, batch) on the device; its batch sampler takes the epoch."""

    @property
    def batch_sampler(self) -> Any:
        """Something with `set_epoch`."""
        ...

    def __iter__(self) -> Any:
        """One epoch."""
        ...

    def __len__(self) -> int:
        """Batches per epoch."""
        ...


@dataclass(slots=True)
class Training:
    """The state of a run: what observers look at, and checkpoints save."""

    fabric: Devices
    method: nn.Module
    optimizer: Optimizer
    scheduler: Scheduler | None
    loader: Loader
    epochs: int
    epoch: int = 0
    batch: int = 0  # consumed in this epoch
    step: int = 0  # updates made
    stop: bool = False  # set by an observer: end after this batch
    failed: bool = False  # an error ended the run, perhaps in the middle of a step


@dataclass(frozen=True, slots=True)
class Step:
    """One update, for observers."""

    ids: Tensor  # (b,) samples of this process
    outcome: Outcome
    seconds: float  # forward, backward and update
    waited: float  # for the loader: selection, reading and views


class Observer:
    """Watches a run; does nothing by default."""

    def on_start(self, training: Training) -> None:
        """Called before the first batch."""

    def on_step(self, training: Training, step: Step) -> None:
        """Called after every update."""

    def on_epoch(self, training: Training) -> None:
        """Called after every epoch; `training.epoch` counts finished ones."""

    def on_end(self, training: Training) -> None:
        """Called once at the end, also after an interruption or an error."""


def fit(training: Training, observers: Sequence[Observer] = ()) -> None:
    """Train until `training.epochs` epochs are done, from the state that `training` is in.

    Ctrl-C is answered after the step or evaluation that it falls into, a second one at once.
    """
    with _Interruption(training):
        for observer in observers:
            observer.on_start(training)
        try:
            _epochs(training, observers)
        except BaseException:
            training.failed = True
            raise
        finally:
            for observer in observers:
                observer.on_end(training)


def _epochs(training: Training, observers: Sequence[Observer]) -> None:
    while training.epoch < training.epochs and not _stopped(training):
        training.loader.batch_sampler.set_epoch(training.epoch)
        training.method.train()
        for ids, outcome, seconds, waited in _updates(training):
            training.batch += 1
            training.step += 1
            step = Step(ids, outcome, seconds, waited)
            for observer in observers:
                observer.on_step(training, step)
            if _stopped(training):
                return
        training.epoch, training.batch = training.epoch + 1, 0
        for observer in observers:
            observer.on_epoch(training)


def _stopped(training: Training) -> bool:
    """Whether any process asked to stop; all stop at the same step, or the others would hang."""
    if training.fabric.world_size > 1:
        wanted = torch.tensor(int(training.stop), device=training.fabric.device)
        dist.all_reduce(wanted, dist.ReduceOp.MAX)
        training.stop = bool(wanted)
    return training.stop


class _Interruption:
    """Turns Ctrl-C into `training.stop`, and raises KeyboardInterrupt once the run is saved."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._noted = False

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)

    def _note(self, *_: object) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = self._training.stop = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)
        if self._noted and (kind is None or issubclass(kind, Exception)):
            raise KeyboardInterrupt


def _updates(training: Training) -> Iterable[tuple[Tensor, Outcome, float, float]]:
    """One epoch of updates."""
    ready = time.perf_counter()
    for ids, batch in training.loader:
        arrived = time.perf_counter()
        training.optimizer.zero_grad(set_to_none=True)
        outcome: Outcome = training.method(batch)
        training.fabric.backward(outcome.loss)
        training.optimizer.step()
        if training.scheduler is not None:
            training.scheduler.step()
        done = time.perf_counter()
        detached = outcome._replace(loss=outcome.loss.detach())
        yield ids, detached, done - arrived, arrived - ready
        ready = time.perf_counter()
