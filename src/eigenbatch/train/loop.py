"""The one training loop. It knows no method, no selector and no data: it calls `method(batch)`."""

import signal
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
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
    """The state of a run: what observers look at, and checkpoints save.

    Args:
        fabric: Lightning's Fabric, or one process on the CPU.
        method: an `nn.Module` whose forward takes a batch and returns an `Outcome`.
        optimizer: of the method's parameters.
        scheduler: of the learning rate; None: it is constant.
        loader: yields (ids, batch); its `batch_sampler` has `set_epoch`.
        epochs: how many to train in all.
        epoch: epochs done.
        batch: batches of the present epoch that were used.
        step: updates made.
        stop: set by an observer: end after this batch.
        resumed: whether the run continues from a checkpoint.
        failed: an error ended the run, perhaps in the middle of a step.

    Examples:
        >>> import torch
        >>> from eigenbatch.train import Training
        >>> from eigenbatch.train.devices import SingleCPU
        >>> method = torch.nn.Linear(8, 4)  # `fit` shows a real one
        >>> optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
        >>> training = Training(SingleCPU(), method, optimizer, None, loader=[], epochs=3)
        >>> training.epoch, training.step, training.stop
        (0, 0, False)
    """

    fabric: Devices
    method: nn.Module
    optimizer: Optimizer
    scheduler: Scheduler | None
    loader: Loader
    epochs: int
    epoch: int = 0
    batch: int = 0
    step: int = 0
    stop: bool = False
    resumed: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One update, for observers.

    Args:
        ids: (b,) samples of this process.
        outcome: loss and embeddings.
        seconds: time of forward, backward and update.
        waited: time spent waiting for the loader: selection, reading and views.

    Examples:
        >>> from eigenbatch.train import Observer, Step
        >>> class Slowest(Observer):
        ...     seconds = 0.0
        ...     def on_step(self, training, step: Step):
        ...         self.seconds = max(self.seconds, step.seconds + step.waited)
    """

    ids: Tensor
    outcome: Outcome
    seconds: float
    waited: float


class Observer:
    """Watches a run; does nothing by default.

    Examples:
        >>> from eigenbatch.train import Observer
        >>> class StopAt(Observer):
        ...     def __init__(self, step):
        ...         self.last = step
        ...     def on_step(self, training, step):
        ...         training.stop = training.step >= self.last
        >>> observers = [StopAt(1000)]  # for `fit` or `train`
    """

    def on_start(self, training: Training) -> None:
        """Called before the first batch."""

    def on_step(self, training: Training, step: Step) -> None:
        """Called after every update."""

    def on_epoch(self, training: Training) -> None:
        """Called after every epoch; `training.epoch` counts finished ones."""

    def on_fill(self, training: Training, done: int, total: int) -> None:
        """Called while samples are embedded for the cache, perhaps before `on_start`."""

    def on_end(self, training: Training) -> None:
        """Called once at the end, also after an interruption or an error, even of `on_start`."""


def fit(training: Training, observers: Sequence[Observer] = ()) -> None:
    """Train until `training.epochs` epochs are done, from the state that `training` is in.

    Ctrl-C is answered after the step or evaluation that it falls into, a second one at once.

    Args:
        training: method, optimiser, loader and progress.
        observers: called at the start, after every update and epoch, and at the end.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from eigenbatch import Contrast, EmbeddingCache, IndexedDataset, Random
        >>> from eigenbatch import SpectralBatchSampler
        >>> from eigenbatch.train import Training, fit
        >>> from eigenbatch.train.devices import SingleCPU
        >>> from eigenbatch.train.methods.method import Outcome
        >>> class Pairs(torch.nn.Linear):  # your own method: a loss from a batch
        ...     def forward(self, batch):
        ...         z1, z2 = (super(Pairs, self).forward(side) for side in batch)
        ...         loss = torch.nn.functional.cross_entropy(z1 @ z2.T, torch.arange(len(z1)))
        ...         a, b = z1.detach(), z2.detach()
        ...         return Outcome(loss=loss, embeddings=a, contrast=lambda: Contrast.cross(a, b))
        >>> data = IndexedDataset(TensorDataset(torch.randn(64, 8), torch.randn(64, 8)))
        >>> sampler = SpectralBatchSampler(EmbeddingCache(64, dim=4), 16, Random())
        >>> method = Pairs(8, 4)
        >>> training = Training(
        ...     fabric=SingleCPU(),
        ...     method=method,
        ...     optimizer=torch.optim.SGD(method.parameters(), lr=0.1),
        ...     scheduler=None,
        ...     loader=DataLoader(data, batch_sampler=sampler),
        ...     epochs=2,
        ... )
        >>> fit(training)
        >>> training.step
        8
    """
    with _Interruption(training), ExitStack() as ends:  # all are ended, also if one cannot be
        for observer in reversed(observers):
            ends.callback(_end, observer, training)
        try:
            for observer in observers:
                observer.on_start(training)
            _epochs(training, observers)
        except BaseException:
            training.failed = True
            raise


def _end(observer: Observer, training: Training) -> None:
    try:
        observer.on_end(training)
    except BaseException:
        training.failed = True  # for those that end after it
        raise


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
    """Whether any process asked to stop; all stop at the same step, or the others would hang.

    A request that comes during the exchange counts at the next step.
    """
    if training.fabric.world_size == 1:
        return training.stop
    wanted = torch.tensor(int(training.stop), device=training.fabric.device)
    dist.all_reduce(wanted, dist.ReduceOp.MAX)
    training.stop = training.stop or bool(wanted)
    return bool(wanted)


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
