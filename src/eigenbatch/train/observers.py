"""What can observe a run: the cache, the record, the monitor, evaluation."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.runs.recorder import Recorder
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.auto import Auto
from eigenbatch.selectors.plateau import LossPlateau
from eigenbatch.train.loader import BatchLoader
from eigenbatch.train.loop import Observer, Step, Training
from eigenbatch.train.methods.method import Method

PART = 2**16
"""Samples that are embedded before the cache is written, by all processes together."""

HELD_OUT_EVERY = 100
"""Steps between two looks at held-out pairs."""


class RefreshCache(Observer):
    """Writes the embeddings of every step into the cache that batches are selected from."""

    def __init__(self, cache: EmbeddingCache) -> None:
        self.cache = cache

    def on_step(self, training: Training, step: Step) -> None:
        """Store the first view's embeddings, and those of a second tower, of all processes."""
        second = step.outcome.second if self.cache.towers == 2 else None
        self.cache.update_synchronized(
            step.ids,
            step.outcome.embeddings.float().cpu(),
            None if second is None else second.float().cpu(),
        )


class FillCache(Observer):
    """Embeds all samples that are unknown, once, so that the next batch is selected from all.

    The method reads views as in training, with the statistics of the batch in its norms. Its state
    and the random state are left as they were.

    Args:
        cache: to fill.
        method: embeds.
        loader: reads samples.
        recorder: whose clock stands still while the cache is filled before the first step.
        after: steps before it is filled.
        autos: it waits until these expect hard batches to pay.
        told: observers whose `on_fill` hears how far it is.
    """

    def __init__(
        self,
        cache: EmbeddingCache,
        method: Method,
        loader: BatchLoader,
        recorder: Recorder | None,
        *,
        after: int = 0,
        autos: Sequence[Auto] = (),
        told: Sequence[Observer] = (),
    ) -> None:
        self.cache, self.method, self.loader, self.recorder = cache, method, loader, recorder
        self.after, self.autos, self.told = after, autos, told
        self._done = False

    def on_start(self, training: Training) -> None:
        """Fill at once if there are no steps to wait for, unless the run was resumed."""
        if self.after == 0:
            self._done = True
            if not training.resumed:
                with _paused(self.recorder):
                    self._fill(training)

    def on_step(self, training: Training, step: Step) -> None:
        """Fill when it is time; a resumed run may know all samples by then."""
        if self._done or training.step < self.after or not all(auto.ready for auto in self.autos):
            return
        self._done = True
        self._fill(training)

    def _fill(self, training: Training) -> None:
        """Every process embeds its share of each part, so that all write equally often."""
        rank, world = training.fabric.global_rank, training.fabric.world_size
        unknown = (~self.cache.filled).nonzero().flatten()  # (m,)
        total = len(unknown)
        with torch.random.fork_rng(), torch.no_grad():
            state = {name: value.clone() for name, value in self.method.state_dict().items()}
            self.method.train()
            for start in range(0, total, PART):
                own = unknown[start : start + PART][rank::world]
                tell = partial(self._tell, training, start, total)
                ids, *towers = self._embedded(own.tolist(), tell)
                self.cache.update_synchronized(ids, *towers, trained=False)
            self.method.load_state_dict(state)

    def _tell(self, training: Training, start: int, total: int, own: int) -> None:
        """After `start` samples of earlier parts, this process has embedded `own` of this one."""
        done = min(start + own * training.fabric.world_size, total)
        for observer in self.told:
            observer.on_fill(training, done, total)

    def _embedded(self, ids: list[int], tell: Callable[[int], None]) -> tuple[Tensor, ...]:
        """Those samples, and a second one if there is one only: (n,) ids, (n, dim) of each tower.

        Batch norms cannot read a batch of one.
        """
        ids += [(ids[0] + 1) % self.cache.size] if len(ids) == 1 else []
        empty = torch.empty(0, self.cache.dim)
        found = [[torch.empty(0, dtype=torch.int64)], *([empty] for _ in range(self.cache.towers))]
        for index, batch in self.loader.once(ids, self.loader.batch_sampler.batch_size):
            views = (batch.first, batch.second)[: self.cache.towers]
            rows = [self.method.embed(view, i).float().cpu() for i, view in enumerate(views)]
            for parts, new in zip(found, [index, *rows], strict=True):
                parts.append(new)
            tell(sum(map(len, found[0])))
        return tuple(map(torch.cat, found))


class TellLoss(Observer):
    """Tells the mean loss of every step over all processes to what selection depends on."""

    def __init__(self, plateau: LossPlateau) -> None:
        self.plateau = plateau

    def on_step(self, training: Training, step: Step) -> None:
        """Every process tells the same loss, so that all select the same batches."""
        loss = training.fabric.all_reduce(step.outcome.loss)
        assert isinstance(loss, torch.Tensor)
        self.plateau.observe(loss.item())


class TellHeldOut(Observer):
    """Tells `Auto` now and then how hard pairs are that it is not trained on."""

    def __init__(
        self, auto: Auto, pairs: Callable[[], tuple[Tensor, Tensor] | None], batch_size: int
    ) -> None:
        self.auto, self.pairs, self.batch_size = auto, pairs, batch_size

    def on_step(self, training: Training, step: Step) -> None:
        """Every process embeds the same pairs, so that all select the same batches."""
        if training.step % HELD_OUT_EVERY == 0 and (pairs := self.pairs()) is not None:
            self.auto.held_out(*pairs, self.batch_size)


class RecordSteps(Observer):
    """Writes loss, times and selection of every step."""

    def __init__(self, recorder: Recorder, sampler: SpectralBatchSampler) -> None:
        self.recorder, self.sampler = recorder, sampler

    def on_step(self, training: Training, step: Step) -> None:
        """Write one line."""
        self.recorder.log(
            training.step,
            self.sampler.statistics(training.batch - 1),
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
