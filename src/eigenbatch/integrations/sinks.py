"""Where readings go: JSON lines, TensorBoard, Weights & Biases. A sink is a callable on a reading.

The writer or run is the caller's own: a sink opens nothing that it does not close itself.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from eigenbatch.checks import check_callable, check_flags, check_type, described
from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.monitor.reading import Reading
from eigenbatch.runs.record import check_regular
from eigenbatch.runs.recorder import last_line, plain_values, reading_values

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run


logger = logging.getLogger("eigenbatch")


class Sink(Protocol):
    """Anything that takes a reading."""

    def __call__(self, reading: Reading) -> None:
        """Record the reading."""


def check_callback(monitor: object, sinks: object, stop_on: object) -> None:
    """Raise ArgumentTypeError unless these are the parts of a callback."""
    check_type(monitor, SpectralMonitor, "monitor")
    check_type(sinks, (list, tuple), "sinks")
    for sink in cast(Sequence[object], sinks):
        check_callable(sink, "sinks", "[JsonLines(path)]")
    check_type(stop_on, (StopOn, type(None)), "stop_on")


class JsonLines:
    """The record that our trainer writes, line by line: scalars, eigenvalues, diagnoses in full.

    `JsonLines("runs/mine/metrics.jsonl")` makes runs/mine a run that `eigenbatch report` shows; a
    `Recorder` also keeps settings and the user's own metrics.
    """

    def __init__(self, path: Path | str) -> None:
        check_type(path, (str, Path), "path")
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(self._path)
        self._written = 0  # readings, and the step of those that have none

    def __call__(self, reading: Reading) -> None:
        """Append one line; numbers that are not finite are left out."""
        check_type(reading, Reading, "reading")
        step = self._written if reading.step is None else reading.step
        line = {"step": step} | plain_values(reading_values(reading))
        if not self._written and step <= (last := last_line(self._path).get("step", -1)):
            logger.warning(
                "%s holds readings up to step %d, and step %d is appended: if this is another run, "
                "give it a file of its own", self._path, last, step,
            )  # fmt: skip
        self._written += 1
        with self._path.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")


class TensorBoard:
    """Scalars, and a text whenever the findings change, in the caller's SummaryWriter.

    Args:
        writer: a torch.utils.tensorboard.SummaryWriter.
        all: every scalar, not the dozen to look at.
    """

    def __init__(self, writer: "SummaryWriter", *, all: bool = False) -> None:
        check_flags(all=all)
        _check_method(writer, "add_scalar", "writer", "a torch.utils.tensorboard.SummaryWriter")
        self._writer, self._all = writer, all
        self._last: tuple[str, ...] = ()

    def __call__(self, reading: Reading) -> None:
        """Write the scalars at the reading's step."""
        step = _step(reading)
        for name, value in reading.scalars(all=self._all).items():
            self._writer.add_scalar(name, value, step)
        names = tuple(one.name for one in reading.findings)
        if names != self._last:
            told = (f"**{one.name}** {one.evidence}. {one.advice}" for one in reading.findings)
            text = "\n\n".join(told)
            self._writer.add_text("spectral/findings", text, step)
            self._last = names


class WeightsAndBiases:
    """Scalars in the caller's wandb run, plotted over "spectral/step".

    No step is forced on the run, so the caller's own logging keeps its own count.

    Args:
        run: what wandb.init() returned.
        all: every scalar, not the dozen to look at.
    """

    def __init__(self, run: "Run", *, all: bool = False) -> None:
        check_flags(all=all)
        _check_method(run, "define_metric", "run", "a run that wandb.init() returned")
        self._run, self._all = run, all
        run.define_metric("spectral/step")
        run.define_metric("spectral/*", step_metric="spectral/step")

    def __call__(self, reading: Reading) -> None:
        """Log the scalars and the names of the findings."""
        step = _step(reading)
        names = ", ".join(one.name for one in reading.findings)
        self._run.log(
            {
                "spectral/step": step,
                "spectral/findings": names,
                **reading.scalars(all=self._all),
            }
        )


def _check_method(value: object, method: str, name: str, example: str) -> None:
    if not hasattr(value, method):
        raise ArgumentTypeError(f"{name} must be {example}, got {described(value)}")


def _step(reading: Reading) -> int:
    check_type(reading, Reading, "reading")
    if reading.step is None:
        raise ParameterError("a reading outside a monitor has no step to be logged at")
    return reading.step
