"""What can observe a run: the cache, the record, the monitor, evaluation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.batches.schedule import OnLossPlateau
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.runs.recorder import Recorder
from eigenbatch.train.batch import Batch
from eigenbatch.train.loader import BatchLoader
from eigenbatch.train.loop import Observer, Step, Training
from eigenbatch.train.methods.method import Method


class RefreshCache(Observer):
    """Writes the embeddings of every step into the cache that batches are selected from."""

    def __init__(self, cache: EmbeddingCache) -> None:
        self.cache = cache

    def on_step(self, training: Training, step: Step) -> None:
        """Store the first view's embeddings, and those of a second tower."""
        second = step.outcome.second if self.cache.towers == 2 else None
        self.cache.update(
            step.ids,
            step.outcome.embeddings.float().cpu(),
            None if second is None else second.float().cpu(),
        )


class FillCache(Observer):
    """Embeds all samples once, so that the rest of the epoch is planned from all of them.

    The method reads views as in training, with the statistics of the batch in its norms. Its state
    and the random state are left as they were.

    Args:
        cache: to fill.
        method: embeds.
        loader: reads samples.
        recorder: whose clock stands still while the cache is filled before the first step.
        after: steps before it is filled.
        told: observers whose `on_fill` hears how far it is.
    """

    def __init__(
        self,
        cache: EmbeddingCache,
        method: Method,
        loader: BatchLoader,
        recorder: Recorder | None,
        *,
        after: int,
        told: Sequence[Observer] = (),
    ) -> None:
        self.cache, self.method, self.loader, self.recorder = cache, method, loader, recorder
        self.after, self.told = after, told

    def on_start(self, training: Training) -> None:
        """Fill at once if there are no steps to wait for."""
        if self.after == 0 and not self.cache.fills:
            with _paused(self.recorder):
                self._fill(training)

    def on_step(self, training: Training, step: Step) -> None:
        """Fill when it is time; a resumed run may have done so."""
        if training.step >= self.after and not self.cache.fills:
            self._fill(training)

    def _fill(self, training: Training) -> None:
        def embed(batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
            first = self.method.embed(batch.first).float()
            if self.cache.towers == 1:
                return first
            return first, self.method.embed(batch.second, 1).float()

        def tell(done: int, total: int) -> None:
            for observer in self.told:
                observer.on_fill(training, done, total)

        with torch.random.fork_rng(), torch.no_grad():
            state = {name: value.clone() for name, value in self.method.state_dict().items()}
            self.method.train()
            batches = self.loader.everything(self.loader.batch_sampler.batch_size)
            self.cache.fill(embed, batches, progress=tell)
            self.method.load_state_dict(state)


class TellLoss(Observer):
    """Tells the mean loss of every step over all processes to a planner that depends on it."""

    def __init__(self, planner: OnLossPlateau) -> None:
        self.planner = planner

    def on_step(self, training: Training, step: Step) -> None:
        """Every process tells the same loss."""
        loss = training.fabric.all_reduce(step.outcome.loss)
        assert isinstance(loss, torch.Tensor)
        self.planner.observe(loss.item())


class RecordSteps(Observer):
    """Writes loss, times and what was planned of every step."""

    def __init__(self, recorder: Recorder, sampler: SpectralBatchSampler) -> None:
        self.recorder, self.sampler = recorder, sampler

    def on_step(self, training: Training, step: Step) -> None:
        """Write one line."""
        plan = self.sampler.plan
        self.recorder.log(
            training.step,
            {} if plan is None else plan.scalars(training.batch - 1),
            epoch=training.epoch,
            loss=float(step.outcome.loss),
            step_seconds=step.seconds,
            waited_seconds=step.waited,
        )


class RecordReadings(Observer):
    """Takes a reading every so many steps; with a recorder, writes it."""

    def __init__(self, monitor: SpectralMonitor, recorder: Recorder | None) -> None:
        self.monitor, self.recorder = monitor, recorder

    def on_step(self, training: Training, step: Step) -> None:
        """Read when it is due."""
        reading = self.monitor(contrast=step.outcome.contrast)
        if self.recorder is not None:
            self.recorder.reading(reading)


class Evaluate(Observer):
    """Evaluates before the first step, regularly and at the end; time is not counted.

    Args:
        measure: called with True for the final evaluation, which closes the record.
        recorder: where values go; None in processes that do not write.
        every: epochs between evaluations.
        every_steps: steps between evaluations, instead of epochs.
    """

    def __init__(
        self,
        measure: Callable[[bool], dict[str, float]],
        recorder: Recorder | None,
        *,
        every: int = 1,
        every_steps: int | None = None,
    ) -> None:
        self.measure, self.recorder = measure, recorder
        self.every, self.every_steps = every, every_steps

    def on_start(self, training: Training) -> None:
        """Evaluate the untrained encoder: what training is to be compared with."""
        if not training.resumed:
            self._record(training)

    def on_step(self, training: Training, step: Step) -> None:
        """Evaluate when so many steps were made."""
        if self.every_steps is not None and training.step % self.every_steps == 0:
            self._record(training, training.batch / len(training.loader.batch_sampler))

    def on_epoch(self, training: Training) -> None:
        """Evaluate after so many epochs, and after the last one."""
        last = training.epoch == training.epochs
        if self.every_steps is None:
            due = last or training.epoch % self.every == 0
        else:
            due = last and training.step % self.every_steps != 0
        if due:
            self._record(training)

    def _record(self, training: Training, begun: float = 0.0) -> None:
        """Log what `measure` returns; the random state of training is left as it was.

        begun: share of the present epoch that is done.
        """
        with _paused(self.recorder):
            state = torch.get_rng_state()
            values = self.measure(False)
            torch.set_rng_state(state)
        if self.recorder is not None:
            self.recorder.log(training.step, values, epoch=training.epoch + begun)


class Finish(Observer):
    """Writes the final probes as the last line of a run that reached its last epoch."""

    def __init__(
        self, measure: Callable[[bool], dict[str, float]], recorder: Recorder | None
    ) -> None:
        self.measure, self.recorder = measure, recorder

    def on_end(self, training: Training) -> None:
        """Close the record unless the run was cut short."""
        if training.failed or training.epoch < training.epochs:
            return
        with _paused(self.recorder):
            values = self.measure(True)
        if self.recorder is not None:
            self.recorder.finish(**values)


def _paused(recorder: Recorder | None) -> AbstractContextManager[None]:
    """Stop the record's clock. Every process evaluates: none waits for a long time."""
    return nullcontext() if recorder is None else recorder.paused()
