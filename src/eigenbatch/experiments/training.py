"""One training run in a run directory: begin, watch, save, resume."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

from eigenbatch.errors import RowError
from eigenbatch.experiments.assemble import Assembled, assemble, evaluate
from eigenbatch.experiments.config import Precision, TrainConfig
from eigenbatch.experiments.progress import ProgressBar
from eigenbatch.experiments.run_directory import RunDirectory, RunError
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.selectors.selector import Stateful
from eigenbatch.train.checkpoint import Checkpoint
from eigenbatch.train.loop import Observer, Step, Training, fit
from eigenbatch.train.observers import Evaluate, Metrics, RefreshCache


class Watch(Observer):
    """Takes a reading every so many steps and records its scalars."""

    def __init__(self, monitor: SpectralMonitor, metrics: Metrics) -> None:
        self.monitor, self.metrics = monitor, metrics

    def on_step(self, training: Training, step: Step) -> None:
        """Read when it is due."""
        reading = self.monitor(contrast=step.outcome.contrast)
        if reading is not None:
            self.metrics.record(
                training,
                **reading.scalars(),
                eigenvalues=reading.cloud.leading,
                diagnoses=[asdict(one) for one in reading.diagnoses],
            )


class LastLine(Observer):
    """Marks a run that reached its last epoch, with its final probes."""

    def __init__(self, run: Assembled, metrics: Metrics) -> None:
        self.run, self.metrics = run, metrics

    def on_end(self, training: Training) -> None:
        """Write the closing line unless the run was cut short."""
        if training.epoch >= training.epochs and not training.failed:
            self.metrics.record(training, **evaluate(self.run, probes=True), finished=1)


class Events:
    """The numbers of every metrics line as TensorBoard events in the run directory."""

    def __init__(self, path: Path, step: int) -> None:
        self._writer = SummaryWriter(path, purge_step=step + 1)

    def __call__(self, line: dict[str, Any]) -> None:
        """Write the numbers at the line's step."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, line["step"])
        if "finished" in line:
            self._writer.close()


def train(
    config: TrainConfig,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    console: Console | None = None,
    accelerator: str = "auto",
    devices: int | str = "auto",
) -> RunDirectory:
    """Train as configured, writing to `path`; with `resume`, go on from its checkpoint.

    With a `console`, a progress bar is shown there. Several `devices` train on one batch together
    (DDP); under torchrun its processes do, whatever `devices` says.
    """
    directory = RunDirectory(path)
    fabric = _fabric(accelerator, devices, config.precision)
    fabric.launch()
    if resume:
        directory.check_same(config)
        if directory.finished:
            return directory
    else:
        directory.check_free()
    run = assemble(config, fabric)
    monitor = SpectralMonitor(config.tau, every=config.read_every or max(1, len(run.sampler) // 2))
    parts: dict[str, Stateful] = {"cache": run.cache, "monitor": monitor}
    checkpoint = Checkpoint(directory.checkpoint, run.sampler, parts)
    first = fabric.global_rank == 0
    with directory.locked() if first else nullcontext():
        if not resume and first:
            directory.create(config, device=str(fabric.device))
        if resume and directory.checkpoint.exists():
            checkpoint.load(run.training)
        if resume and first:
            directory.forget_after(run.training.step if run.training.step else -1)
        try:
            _fit(run, directory, monitor, checkpoint, observers, console)
        except RowError as reason:
            raise RunError(f"{path}, step {run.training.step}: {reason}") from reason
        except OSError as reason:  # a full disk names no file
            raise RunError(f"{path}: {reason}") from reason
    return directory


def _fit(
    run: Assembled,
    directory: RunDirectory,
    monitor: SpectralMonitor,
    checkpoint: Checkpoint,
    observers: Sequence[Observer],
    console: Console | None,
) -> None:
    """Train with everything that watches a run."""
    first, config = run.training.fabric.global_rank == 0, run.config
    events = Events(directory.path, run.training.step) if first else None
    metrics = Metrics(directory.metrics, run.sampler, also=events)
    watched: list[Observer] = [
        RefreshCache(run.cache),
        metrics,
        Watch(monitor, metrics),
        Evaluate(partial(evaluate, run, probes=False), metrics, every=config.evaluate_every),
        checkpoint,
        LastLine(run, metrics),
    ]
    if console is not None and first:
        name = f"{directory.path.parent.name}/{directory.path.name}"
        watched.append(ProgressBar(run.sampler, name, console))
    fit(run.training, run.views, [*watched, *observers])


def _fabric(accelerator: str, devices: int | str, precision: Precision) -> Fabric:
    nodes, together = 1, devices not in ("auto", 1)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        together = nodes * devices > 1
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if together else "auto",
        precision=precision,
    )
