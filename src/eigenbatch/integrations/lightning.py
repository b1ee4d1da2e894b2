"""Lightning: a callback that reads the embeddings which `training_step` returns."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.checks import check_callable, check_flags, check_type
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.carried import Carried, RunRecord, StopTogether, check_layout, shown
from eigenbatch.integrations.sinks import Sink, check_callback
from eigenbatch.missing import missing
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.monitor.online_probe import OnlineProbe
from eigenbatch.monitor.reading import Reading

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as reason:
    raise missing("lightning") from reason


def returned_views(outputs: Any) -> tuple[Tensor, Tensor]:
    """The entries "z1" and "z2" of what `training_step` returned."""
    try:
        return outputs["z1"], outputs["z2"]
    except (KeyError, TypeError, IndexError) as reason:
        raise ParameterError(
            'training_step must return {"loss": loss, "z1": z1, "z2": z2}, '
            "or give the callback embeddings="
        ) from reason


def returned_ids(outputs: Any) -> Tensor:
    """The entry "ids" of what `training_step` returned."""
    return _entry(outputs, "ids", "the cache to be refreshed (IndexedDataset yields them)")


def returned_labels(outputs: Any) -> Tensor:
    """The entry "labels" of what `training_step` returned."""
    return _entry(outputs, "labels", "the probe")


def _entry(outputs: Any, name: str, purpose: str) -> Tensor:
    try:
        found: Tensor = outputs[name]
    except (KeyError, TypeError, IndexError) as reason:
        raise ParameterError(
            f'training_step must return "{name}" beside "z1" and "z2" for {purpose}, or give the '
            f"callback {name}="
        ) from reason
    return found


class SpectralCallback(Callback):
    """Reads, logs and says what it finds; carries cache and sampler; stops the trainer if asked.

    Every reading goes to the trainer's loggers at its own step, and only then. A new finding is
    printed once beside the progress bar, by the first process.

    Args:
        monitor: takes the readings.
        embeddings: from what `training_step` returned to the two views.
        layout: how they are contrasted, such as `Contrast.cross`; None is NT-Xent.
        sinks: further places for readings.
        stop_on: ends training on a finding; the record then says why.
        name: what logged numbers begin with; two callbacks in one trainer need two names.
        record: a folder for a run that `eigenbatch report` shows, with the metrics you log.
        cache: refreshed with the first view of every batch (with both, if it has two towers),
            saved in checkpoints.
        sampler: saved in checkpoints, so that a resumed run continues with the same batches.
        ids: from what `training_step` returned to the sample ids; needed with `cache`.
        probe: judges the first view of every batch by its labels; logged with readings and written
            to the record as "online_knn" and "online_linear".
        labels: from what `training_step` returned to the labels; needed with `probe`.
        log_all: send every scalar to the loggers, not the dozen to look at.
        compare_loss: hold the loss that `training_step` returned against InfoNCE; False where it
            has further terms.
    """

    def __init__(
        self,
        monitor: SpectralMonitor,
        *,
        embeddings: Callable[[Any], tuple[Tensor, Tensor]] = returned_views,
        layout: Callable[[Tensor, Tensor], Contrast] | None = None,
        sinks: Sequence[Sink] = (),
        stop_on: StopOn | None = None,
        name: str = "spectral",
        record: str | Path | None = None,
        cache: EmbeddingCache | None = None,
        sampler: SpectralBatchSampler | None = None,
        ids: Callable[[Any], Tensor] = returned_ids,
        probe: OnlineProbe | None = None,
        labels: Callable[[Any], Tensor] = returned_labels,
        log_all: bool = False,
        compare_loss: bool = True,
    ) -> None:
        check_callback(monitor, sinks, stop_on)
        check_callable(embeddings, "embeddings", "a function of what training_step returned")
        check_callable(ids, "ids", "a function of what training_step returned")
        check_callable(labels, "labels", "a function of what training_step returned")
        layout = Contrast.paired if layout is None else layout
        check_layout(monitor, layout)
        check_type(name, str, "name")
        check_flags(log_all=log_all, compare_loss=compare_loss)
        self._compares = compare_loss
        self.monitor, self._name, self._log_all = monitor, name, log_all
        self._embeddings, self._layout, self._ids = embeddings, layout, ids
        self._sinks, self._stop, self._labels = sinks, StopTogether(stop_on), labels
        self._carried = Carried(monitor, cache, sampler, probe)
        self._batches: float = math.inf  # of an epoch of the trainer, which may limit them
        self._next: int | None = None  # epoch of the sampler that a resumed run begins with
        self._resumed = False  # until the first batch
        self._record = RunRecord(record)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what Lightning would answer by a TypeError when it makes the loaders."""
        connector = getattr(trainer, "_accelerator_connector", None)
        replaces = getattr(connector, "use_distributed_sampler", False)
        trains = stage == "fit" and self._carried.sampler is not None
        if trains and trainer.world_size > 1 and replaces:
            raise ParameterError(
                f"Lightning puts its own sampler in place of yours for {trainer.world_size} "
                "processes: pass Trainer(use_distributed_sampler=False)"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say findings beside the progress bar; begin the record.

        Lightning counts an epoch that `max_steps` ended as a whole one, and yet goes on with its
        other batches when it is resumed: the sampler stays in that epoch.
        """
        self.monitor.say_through(pl_module.print)
        if (sampler := self._carried.sampler) is not None:
            progress = trainer.fit_loop.epoch_progress.current
            given = progress.processed  # type: ignore[attr-defined]
            sampler.ahead = given - (given if self._next is None else self._next)
            self._next = None
        if trainer.is_global_zero:
            self._record.open(dict(pl_module.hparams), step=trainer.global_step)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the batches of this epoch; a resumed one begins where it was saved."""
        if not self._resumed:
            self._carried.consumed = 0

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Show the batch to the monitor; a step that returned None was skipped and is not one."""
        self._carried.consumed += 1  # batch_idx may go on at the end of an epoch
        self._batches, self._resumed = trainer.num_training_batches, False
        if outputs is None or outputs == {}:
            return
        if self._carried.cache is not None:
            self._carried.refresh(self._ids(outputs), *self._embeddings(outputs))
        if self._carried.probe is not None:
            self._carried.judge(self._embeddings(outputs)[0], self._labels(outputs))
        micro = trainer.accumulate_grad_batches  # batches of an update
        step = trainer.fit_loop.total_batch_idx // micro if micro > 1 else None
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if pl_module.automatic_optimization and loss is not None:
            loss = loss * micro  # Lightning has divided it
        due = self.monitor.reads(step)
        alone = trainer.world_size == 1 or self.monitor.sync  # others may have a gathered loss
        reading = shown(
            self.monitor,
            self._layout,
            lambda: self._embeddings(outputs),
            step=step,
            loss=loss if alone and self._compares else None,
        )
        if reading is not None:
            self._tell(trainer, pl_module, reading, loss)
        if due and self._stop(reading):
            pl_module.print(f"stopping: {self._stop.reason}")
            trainer.should_stop = True

    def _tell(
        self, trainer: Trainer, pl_module: LightningModule, reading: Reading, loss: Tensor | None
    ) -> None:
        judged = self._carried.judged

        def named(numbers: dict[str, float]) -> dict[str, float]:
            found = {key.replace("spectral", self._name, 1): one for key, one in numbers.items()}
            return found | judged

        # For callbacks; repeated until the epoch ends.
        pl_module.log_dict(named(reading.scalars()), logger=False)
        for logger in trainer.loggers:
            sent = named(reading.scalars(all=self._log_all))
            logger.log_metrics(sent, step=trainer.global_step)
        self._record.reading(trainer.global_step, reading, loss=loss, **judged)
        for sink in self._sinks:
            sink(reading)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the user's metrics into the record."""
        if not trainer.sanity_checking:
            own = {
                name: value
                for name, value in trainer.callback_metrics.items()
                if not name.startswith(f"{self._name}/")
            }
            self._record.metrics(trainer.global_step, own)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the record: finished, or stopped by a finding."""
        self._record.close(self._stop.reason)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write why the run ended."""
        self._record.close(f"{type(exception).__name__}: {exception}".rstrip(": "))

    @property
    def state_key(self) -> str:
        """Where a checkpoint keeps the state of this one."""
        return self._generate_state_key(name=self._name)

    def state_dict(self) -> dict[str, Any]:
        """The states of monitor, cache, sampler and probe, saved with every checkpoint."""
        state = self._carried.state_dict()
        if self._carried.sampler is not None:
            state["ended"] = self._carried.ended or self._carried.consumed >= self._batches
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue all of them.

        Lightning lets the workers of a loader draw before it sets the epoch: after the end of one
        the sampler has to be at the next.
        """
        parts = dict(state_dict)
        ended = parts.pop("ended", None)
        self._carried.load_state_dict(parts)
        if (sampler := self._carried.sampler) is not None and "sampler" in parts:
            ended = self._carried.ended if ended is None else ended
            self._next, self._resumed = parts["sampler"]["epoch"] + ended, True
            self._carried.consumed = 0 if ended else self._carried.consumed
            sampler.set_epoch(self._next)
