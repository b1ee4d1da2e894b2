"""Hugging Face accelerate: the monitor in a loop of your own, logged and saved by accelerate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.checks import check_flags, check_type
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.carried import Carried, RunRecord, StopTogether
from eigenbatch.integrations.sinks import Sink, check_callback
from eigenbatch.missing import missing
from eigenbatch.monitor.monitor import Layout, SpectralMonitor, StopOn
from eigenbatch.monitor.reading import Reading

try:
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.logging import get_logger  # type: ignore[import-untyped]
except ImportError as reason:
    raise missing("accelerate") from reason


class SpectralWatch:
    """Reads batches, logs with `accelerator.log`, and says findings once, from the main process.

    Its state, and those of cache and sampler, are in everything `accelerator.save_state` writes.
    Use it as a context manager if it writes a record.

    Args:
        accelerator: logs and saves; its trackers are yours.
        monitor: takes the readings.
        sinks: further places for readings.
        stop_on: on such a finding `should_stop` becomes True; the record then says why.
        record: a folder for a run that `eigenbatch report` shows.
        cache: refreshed with every batch that is given with `ids`, from all processes.
        sampler: saved with the run. After `accelerator.load_state` set `loader.iteration =
            watch.epoch`, and skip no batches: the sampler goes on with those that are left.
        log_all: send every scalar to the trackers, not the dozen to look at.

    Examples:
        >>> import torch
        >>> from accelerate import Accelerator
        >>> from eigenbatch import SpectralMonitor
        >>> from eigenbatch.integrations.accelerate import SpectralWatch
        >>> with SpectralWatch(Accelerator(cpu=True), SpectralMonitor(0.1, every=10)) as watch:
        ...     for step in range(20):
        ...         reading = watch(torch.randn(32, 8), torch.randn(32, 8))
        >>> watch.should_stop
        False
    """

    def __init__(
        self,
        accelerator: Accelerator,
        monitor: SpectralMonitor,
        *,
        sinks: Sequence[Sink] = (),
        stop_on: StopOn | None = None,
        record: str | Path | None = None,
        cache: EmbeddingCache | None = None,
        sampler: SpectralBatchSampler | None = None,
        log_all: bool = False,
    ) -> None:
        check_flags(log_all=log_all)
        check_type(accelerator, Accelerator, "accelerator")
        check_callback(monitor, sinks, stop_on)
        if sampler is not None and accelerator.num_processes > 1 and not accelerator.split_batches:
            raise ParameterError(
                f"{accelerator.num_processes} processes take turns with whole batches, so that the "
                "sampler's place in an epoch is not known: pass Accelerator(dataloader_config="
                "DataLoaderConfiguration(split_batches=True))"
            )
        self.monitor, self.should_stop, self._log_all = monitor, False, log_all
        self._accelerator, self._sinks, self._stop = accelerator, sinks, StopTogether(stop_on)
        self._carried = Carried(monitor, cache, sampler)
        self._record = RunRecord(record if accelerator.is_main_process else None)
        self._say = get_logger("eigenbatch").warning  # in the main process only
        self._step = 0
        self._epoch = 0  # that `consumed` is about
        monitor.say_through(self._say)
        accelerator.register_for_checkpointing(self)

    def __call__(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        layout: Layout = "paired",
        loss: float | Tensor | None = None,
        ids: Tensor | None = None,
        **metrics: Any,
    ) -> Reading | None:
        """Count one step and read it if it is due.

        Args:
            z1: the first view or tower (rows, d) of this process.
            z2: the second.
            layout: "paired" or "cross", as for the monitor.
            loss: your own loss; also written to the record.
            ids: sample ids, for the cache and for repeats in a batch.
            **metrics: numbers of your own for the record, such as `knn=0.71`.

        Returns:
            The reading; None on steps that are not read.
        """
        self._record.open({}, step=self._step)  # once it is known whether the run is resumed
        self._step += 1
        self._count_batch()
        if self._carried.cache is not None:
            if ids is None:
                raise ParameterError("a cache is refreshed by sample ids: pass ids=")
            self._carried.refresh(ids, z1.detach(), z2.detach())
        due = self.monitor.due
        reading = self.monitor(z1, z2, layout=layout, loss=loss, ids=ids)
        self._record.metrics(self._step, metrics)
        if due and self._stop(reading):
            self._say(f"stopping: {self._stop.reason}")
            self.should_stop = True
        if reading is None:
            return None
        self._accelerator.log(reading.scalars(all=self._log_all), step=self._step)
        self._record.reading(self._step, reading, **({} if loss is None else {"loss": loss}))
        for sink in self._sinks:
            sink(reading)
        return reading

    @property
    def epoch(self) -> int:
        """The epoch to go on with: the sampler's, or the next if all its batches were used."""
        sampler = self._carried.sampler
        if sampler is None:
            raise ParameterError("epochs are counted by a sampler: pass sampler=")
        return sampler.epoch + (self._carried.consumed >= len(sampler))

    def _count_batch(self) -> None:
        sampler = self._carried.sampler
        if sampler is not None and sampler.epoch != self._epoch:
            self._epoch, self._carried.consumed = sampler.epoch, 0
        self._carried.consumed += 1

    def state_dict(self) -> dict[str, Any]:
        """The states of monitor, cache and sampler."""
        return self._carried.state_dict() | {"watched": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue all of them."""
        parts = dict(state)
        self._step = parts.pop("watched", 0)
        self._carried.load_state_dict(parts)
        if (sampler := self._carried.sampler) is not None:
            self._epoch = sampler.epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        """Close the record: finished, stopped by a finding, or by an error."""
        reason = self._stop.reason
        if kind is not None:
            reason = f"{kind.__name__}: {error}".rstrip(": ")
        self._record.close(reason)
