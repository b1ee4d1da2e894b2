"""Train a `Run` in a run directory: record, save, resume."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from eigenbatch.batches import sampler
from eigenbatch.batches.planner import Random
from eigenbatch.batches.schedule import OnLossPlateau
from eigenbatch.errors import RowError, RunError
from eigenbatch.runs.comparison import read_if_finished
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.runs.reader import flat
from eigenbatch.runs.record import CHANGEABLE, Mark
from eigenbatch.runs.recorder import Recorder
from eigenbatch.train import methods
from eigenbatch.train.assembly import Assembled, assemble
from eigenbatch.train.checkpoint import Checkpoint
from eigenbatch.train.checkpoint_file import load_checkpoint, previous
from eigenbatch.train.data.source import fingerprint
from eigenbatch.train.devices import open_devices
from eigenbatch.train.loop import Observer, Training, fit
from eigenbatch.train.observers import (
    Evaluate,
    FillCache,
    Finish,
    RecordReadings,
    RecordSteps,
    RefreshCache,
    TellLoss,
)
from eigenbatch.train.run import Run, differences, load_run
from eigenbatch.train.settings import to_plain

logger = logging.getLogger("eigenbatch")

MADE_BY = 2
"""Raised by hand when runs of the same settings begin to differ; golden runs tell."""


def made_by() -> dict[str, int]:
    """Versions of the code that a run's numbers depend on, for those who keep them.

    Returns:
        An integer for each part, raised when runs of the same settings begin to differ.

    Examples:
        >>> from eigenbatch.train import made_by
        >>> sorted(made_by())
        ['methods', 'sampler', 'trainer']
    """
    return {"trainer": MADE_BY, "sampler": sampler.MADE_BY, "methods": methods.MADE_BY}


def train(
    run: Run,
    path: Path,
    *,
    resume: bool = False,
    observers: Sequence[Observer] = (),
    watch: Callable[[Assembled], Sequence[Observer]] | None = None,
    accelerator: str = "auto",
    devices: int | str = "auto",
) -> RunDirectory:
    """Train as set, writing to a run directory.

    Args:
        run: the settings.
        path: the run directory.
        resume: continue the run that `path` holds. Its settings must be the same, except that
            `budget.epochs` may be larger and the same data may lie in another `data.directory`.
        observers: called during training.
        watch: makes further observers of the assembled run, e.g. a progress bar.
        accelerator: as Fabric takes it.
        devices: several train on one batch together (DDP); under torchrun its processes do,
            whatever this says.

    Returns:
        The run directory.

    Examples:
        >>> from eigenbatch.runs import read_run
        >>> from eigenbatch.train import Run, override, train
        >>> small = ["data.train_size=100", "data.test_size=100", "encoder.width=8"]
        >>> run = override(Run(), [*small, "batches.batch_size=50", "budget.epochs=1"])
        >>> directory = train(run, tmp_path / "run", accelerator="cpu")
        >>> read_run(directory.path).finished
        True
    """
    run.validate()
    directory = RunDirectory(path)
    fabric = open_devices(accelerator, devices, run.budget.resolved_precision())
    fabric.launch()
    first = fabric.global_rank == 0
    with directory.locked() if first else nullcontext():
        if not resume:
            directory.check_free(checkpoints=True)
        else:
            finished = check_resumable(run, directory)
            if finished:
                return directory
        recorder = None
        try:
            assembled = assemble(run, fabric)
            state = _saved_state(directory) if resume else None
            recorder = _recorder(assembled, directory, state) if first else None
            if first:
                _say_when_planned(assembled)
            _fit(
                assembled,
                directory,
                recorder,
                state,
                [*observers, *(watch(assembled) if watch else ())],
            )
        except RowError as reason:
            _record_end(recorder, reason)
            raise RunError(f"{path}: {reason}") from reason
        except (OSError, RuntimeError, MemoryError) as reason:
            _record_end(recorder, reason)
            raise _explained(reason, path, fabric.world_size) from reason
    return directory


def check_resumable(run: Run, directory: RunDirectory) -> bool:
    """Raise unless the run on disk has the same settings; True if there is nothing left to do."""
    stored = load_run(directory)
    changed = differences(flat(to_plain(stored)), flat(to_plain(run)))
    others = {name: pair for name, pair in changed.items() if name not in CHANGEABLE}
    if others:
        texts = ", ".join(f"{name}: {old} -> {new}" for name, (old, new) in others.items())
        raise RunError(
            f"{directory.path} was begun with other settings ({texts}): leave them out to resume, "
            "or choose another folder"
        )
    if run.budget.epochs < stored.budget.epochs:
        raise RunError(
            f"{directory.path} trains for {stored.budget.epochs} epochs: budget.epochs may only "
            f"be raised, got {run.budget.epochs}"
        )
    done = read_if_finished(directory.path) is not None
    return done and run.budget.epochs == stored.budget.epochs


def _record_end(recorder: Recorder | None, reason: Exception) -> None:
    """Write why the run ended, if the disk takes it; a resumed run drops that line."""
    if recorder is not None:
        recorder.also = None  # closed by now
        with suppress(OSError, RunError):
            recorder.stop(f"{type(reason).__name__}: {reason}".rstrip(": "))


def _fit(
    assembled: Assembled,
    directory: RunDirectory,
    recorder: Recorder | None,
    state: dict[str, Any] | None,
    observers: Sequence[Observer],
) -> None:
    parts = {"cache": assembled.cache, "monitor": assembled.monitor}
    watched: list[Observer] = [RefreshCache(assembled.cache)]
    if isinstance(assembled.sampler.planner, OnLossPlateau):
        watched.append(TellLoss(assembled.sampler.planner))
    mark = (lambda: recorder.mark) if recorder is not None else None
    checkpoint = Checkpoint(directory.checkpoint, assembled.sampler, parts, mark=mark)
    if state is not None:
        checkpoint.restore(assembled.training, state)
    if _fills(assembled):
        watched.append(
            FillCache(
                assembled.cache,
                assembled.method,
                assembled.loader,
                recorder,
                after=assembled.run.batches.fill_step,
                told=observers,
            )
        )
    events: list[Observer] = []
    if recorder is not None:
        recorder.also = Events(directory.path, assembled.training.step)
        events.append(recorder.also)
        watched.append(RecordSteps(recorder, assembled.sampler))
    watched += [
        RecordReadings(assembled.monitor, recorder),
        Evaluate(
            assembled.evaluate,
            recorder,
            every=assembled.run.evaluation.every,
            every_steps=assembled.run.evaluation.every_steps,
        ),
        checkpoint,
        Finish(assembled.evaluate, recorder),
    ]
    fit(assembled.training, [*watched, *observers, *events])


def _fills(assembled: Assembled) -> bool:
    """Whether all samples are embedded once."""
    steps = assembled.training.epochs * len(assembled.sampler)
    return assembled.run.batches.fills(assembled.cache.size, steps)


def _say_when_planned(assembled: Assembled) -> None:
    """Say that all samples will be embedded once, or that no batch will ever be planned."""
    batches, sampler = assembled.run.batches, assembled.sampler
    if isinstance(sampler.planner, Random):
        return
    if _fills(assembled):
        logger.warning(
            "all %d samples are embedded once after %d steps, so that batches are planned from "
            "then on; batches.fill_cache=no turns it off", assembled.cache.size, batches.fill_step,
        )  # fmt: skip
    elif assembled.training.epochs == 1:
        logger.warning(
            "all batches of %s will be random: no sample has an embedding before its second epoch, "
            "and there is one epoch of %d steps. Set batches.fill_cache=yes with a "
            "batches.fill_step below that, or more epochs", batches.selector, len(sampler),
        )  # fmt: skip


def _saved_state(directory: RunDirectory) -> dict[str, Any] | None:
    """The newest whole checkpoint; None if the run was stopped before its first one."""
    path = directory.checkpoint
    if not path.exists() and not previous(path).exists():
        return None
    return load_checkpoint(path, logger.warning)


def _recorder(
    assembled: Assembled, directory: RunDirectory, state: dict[str, Any] | None
) -> Recorder:
    """The record of the run; of a resumed one, cut back to what the checkpoint counts on."""
    run, samples = assembled.run, fingerprint(assembled.source.train)
    if not directory.manifest.exists():
        device = str(assembled.training.fabric.device)
        recorder = Recorder(directory.path, to_plain(run), device=device)
        directory.update_manifest(samples=samples)
        return recorder
    manifest, stored = directory.read_manifest(), load_run(directory)
    if stored.data != run.data and manifest.get("samples", samples) != samples:
        raise RunError(
            f"{directory.path} was begun with other data than these: resume it with those, or "
            "train in another folder"
        )
    mark = (
        Mark.of(directory.metrics, b"") if state is None else Mark.from_plain(state.get("record"))
    )
    recorder = Recorder(directory.path, resume=True, until=mark)
    if stored != run:
        entries: dict[str, Any] = {"config": to_plain(run)}
        if stored.budget.epochs < run.budget.epochs:
            before = manifest.get("extended_from", [])
            entries["extended_from"] = [*before, stored.budget.epochs]
        directory.update_manifest(**entries)
    return recorder


class Events(Observer):
    """The numbers of every line of the record as TensorBoard events in the run directory.

    The last observer of a run, so that the file is closed after the last line, however it ended: a
    writer that lives until the process exits may end it with an error of its thread.
    """

    def __init__(self, path: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(path, purge_step=step + 1)

    def __call__(self, line: dict[str, Any]) -> None:
        """Write the numbers at the line's step."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, line["step"])

    def on_end(self, training: Training) -> None:
        """Write what waits and close the file."""
        self._writer.close()


def _explained(reason: Exception, path: Path, processes: int) -> Exception:
    """A RunError for what the user can change; anything else as it is."""
    text = str(reason)
    if isinstance(reason, OSError):
        return RunError(f"{path}: {reason}")
    if isinstance(reason, MemoryError) or "allocate" in text or "out of memory" in text:
        return RunError(
            f"{path}: not enough memory for these settings: lower batches.batch_size, "
            "encoder.width, method.dim or method.queue_size"
        )
    if processes > 1 and any(word in text for word in ("gloo", "Connection", "NCCL", "peer")):
        return RunError(
            f"{path}: another process of this run ended. Its own message says why; resume with "
            "--resume"
        )
    return reason
