"""Write a run that the report and comparisons can read, from any training loop.

    with Recorder("runs/mine", config={"lr": 1e-3}) as run:
        for step, batch in enumerate(loader):
            ...
            run.log(step, loss=loss, knn=accuracy)
            run.reading(monitor(z1, z2))

Our own trainer writes its record through the same class.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from operator import index
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

from eigenbatch.errors import ArgumentTypeError, ParameterError, RunError
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.runs.record import Mark, RecordFile, check_regular, closing_line, is_whole

if TYPE_CHECKING:
    from eigenbatch.monitor.reading import Reading

logger = logging.getLogger("eigenbatch")

Line = dict[str, Any]
OWN = {
    "step", "seconds", "cpu_seconds", "finished", "record", "stopped", "eigenvalues", "findings",
}  # fmt: skip
"""Names in a line that are not the caller's."""

SHARES = ("knn", "mrr", "accuracy")
"""What a run is judged by: numbers from 0 to 1."""


class Recorder:
    """One run directory, written line by line.

    A line holds the step, the time so far and whatever was logged. Numbers that are not finite are
    left out (a loss becomes null). Leaving the `with` block marks the run as finished; after an
    error, or `stop`, it stays unfinished and its record says why.

    Args:
        path: the run directory; it must not hold a run yet, unless `resume` is set.
        config: settings, shown by the report; runs that differ in nothing but "seed" are grouped.
        resume: continue the run in `path`, its clock included.
        until: with `resume`, drop the lines of later steps first, and what says that the run
            ended: the step that your checkpoint was saved at, or the `mark` saved in it.
        device: for the manifest.
        also: called with every line that is written, e.g. to log it elsewhere.

    Examples:
        >>> from eigenbatch import Recorder
        >>> with Recorder(tmp_path / "mine", config={"lr": 0.1, "seed": 0}) as run:
        ...     run.log(1, loss=2.5)
        ...     run.log(2, loss=2.25, knn=0.5)
        >>> from eigenbatch.runs import read_run
        >>> read_run(tmp_path / "mine").final("knn")
        0.5
    """

    def __init__(
        self,
        path: str | Path,
        config: object = None,
        *,
        resume: bool = False,
        until: Mark | int | None = None,
        device: str | None = None,
        also: Callable[[Line], None] | None = None,
    ) -> None:
        self.directory, self.also = RunDirectory(_folder(path)), also
        if not resume:
            self.directory.create(config, **({"device": device} if device else {}))
        check_regular(self.directory.metrics)
        if resume and not self.directory.metrics.exists():
            self.directory.read_manifest()  # raises if there is no run
        if resume and until is None and is_whole(self.directory.metrics):
            raise RunError(f"{self.directory.path} is finished: there is nothing to resume")
        self._open()
        if until is not None:
            self._cut(until if isinstance(until, Mark) else self._file.mark_at(_step(until)))

    def _open(self) -> None:
        self._file = RecordFile(self.directory.metrics)
        self._wall = self._cpu = 0.0  # clock readings at which the run would have begun
        self._epoch: float | None
        self._step, self._epoch, self._logged = 0, None, False
        self._end: Literal["", "stopped", "finished"] = ""
        self._back = self._percent = False  # whether steps went back, and shares above 1 came
        self._start_clocks(last_line(self.directory.metrics))

    @property
    def mark(self) -> Mark:
        """How far the record reaches, for a checkpoint; every line is on disk afterwards."""
        self._file.sync()
        return self._file.mark

    def log(
        self,
        step: SupportsIndex,
        values: Mapping[str, Any] | None = None,
        /,
        *,
        epoch: float | None = None,
        **more: Any,
    ) -> None:
        """Append one line.

        Args:
            step: updates made so far, over all epochs: not smaller than the one before.
            values: numbers by name, for names that are no Python words ("val/recall").
            epoch: finished epochs, if the loop has any.
            **more: numbers by name. `loss` and `knn` (or `mrr`, `accuracy`, all from 0 to 1) have
                charts of their own in the report.
        """
        number = _step(step)
        named = {**(values or {}), **more}
        if taken := OWN & set(named):
            raise ParameterError(
                f"the record has a {min(taken)} of its own: log it as another name"
            )
        finished_epochs = self._epoch if epoch is None else _epoch(epoch)
        self._go_to(number)
        self._epoch, self._logged = finished_epochs, True
        self._write(named)

    def reading(self, reading: "Reading | None", step: SupportsIndex | None = None) -> None:
        """Append a reading of the monitor: scalars, leading eigenvalues, findings in full.

        None, which the monitor returns between two readings, writes nothing.

        Args:
            reading: what the monitor returned.
            step: of the reading; by default that of the last `log`, and before any the monitor's
                own count. Give it in a loop that logs less often than the monitor reads.
        """
        if reading is not None:
            if not hasattr(reading, "scalars"):
                raise ArgumentTypeError(
                    f"reading must be a Reading or None, got {type(reading).__name__}: pass what "
                    "the monitor returned"
                )
            if step is not None:
                self._go_to(_step(step))
            elif not self._logged and reading.step is not None:
                self._step = reading.step
            self._write(reading_values(reading))

    def finish(self, **values: Any) -> None:
        """Append the last line, if there is none; a run without it counts as unfinished."""
        if self._end == "finished":
            return
        line = self._line(values)
        self._end = "finished"
        self._file.append(closing_line(line, self._file.mark), sync=True)
        self._tell(line | {"finished": 1})

    def stop(self, reason: str) -> None:
        """Append why the run ended early; it stays unfinished."""
        if not isinstance(reason, str):
            raise ArgumentTypeError(f"reason must be a text, got {type(reason).__name__}")
        self._write({"stopped": reason})
        self._end = "stopped"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock, e.g. while evaluating: times are those of training."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self._wall += time.perf_counter() - wall
            self._cpu += time.process_time() - cpu

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if kind is None and not self._end:
            self.finish()
        elif kind is not None and self._end != "finished":
            self.stop(f"{kind.__name__}: {error}".rstrip(": "))

    def _cut(self, mark: Mark) -> None:
        """Drop the lines after a checkpoint's mark and set the clock back to it."""
        self._file.cut(mark)
        self._start_clocks(last_line(self.directory.metrics))

    def _go_to(self, step: int) -> None:
        if step < self._step and not self._back:
            self._back = True
            logger.warning(
                "%s: step %d was logged after step %d. Count steps over all epochs, or curves and "
                "final values are wrong", self.directory.path, step, self._step,
            )  # fmt: skip
        self._step = step

    def _write(self, values: Mapping[str, Any]) -> None:
        line = self._line(values)
        self._warn_of_percent(line)
        self._file.append(line)
        self._tell(line)

    def _line(self, values: Mapping[str, Any]) -> Line:
        if self._end == "finished":
            raise RunError(f"{self.directory.path} is finished: log before the `with` block ends")
        place: Line = {"step": self._step}
        if self._epoch is not None:
            place["epoch"] = self._epoch
        clocks = {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }
        return place | clocks | plain_values(values)

    def _warn_of_percent(self, line: Line) -> None:
        above = [name for name in SHARES if _number(line.get(name)) > 1]
        if above and not self._percent:
            self._percent = True
            logger.warning(
                "%s: %s = %g was logged. Log shares from 0 to 1, not percent: the report shows "
                "them as percent", self.directory.path, above[0], line[above[0]],
            )  # fmt: skip

    def _tell(self, line: Line) -> None:
        if self.also is not None:
            self.also(line)

    def _start_clocks(self, before: Line) -> None:
        """Let the clocks continue from a line of the record."""
        self._wall = time.perf_counter() - _number(before.get("seconds"))
        self._cpu = time.process_time() - _number(before.get("cpu_seconds"))
        self._step = int(_number(before.get("step")))
        self._epoch = _number(before["epoch"]) if "epoch" in before else None


def reading_values(reading: "Reading") -> Line:
    """What a line says about a reading."""
    return reading.scalars() | {
        "eigenvalues": list(reading.leading),
        "findings": [asdict(one) for one in reading.findings],
    }


def plain_values(values: Mapping[str, Any]) -> Line:
    """Values as JSON: tensors of one element become numbers, what is not finite is left out."""
    line: Line = {}
    for name, value in values.items():
        number = _plain(name, value)
        if number is not None or value is None or name == "loss":
            line[name] = number
    return line


def _plain(name: str, value: Any) -> Any:
    """A value as JSON, null for a number that is not finite; also inside lists and mappings."""
    if hasattr(value, "item"):  # a tensor or numpy scalar
        if math.prod(value.shape) != 1:
            raise ParameterError(f"{name} must be one number, got shape {tuple(value.shape)}")
        value = value.item()
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, int | float | str | None):
        raise ParameterError(f"{name} must be a number, got {value!r:.60}")
    return value


def last_line(path: Path) -> Line:
    """The last complete line of a metrics file; empty if there is none."""
    import json

    if not path.is_file():
        return {}
    for line in reversed(path.read_bytes().splitlines()):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            return content
    return {}


def _step(value: SupportsIndex) -> int:
    try:
        number = -1 if isinstance(value, bool) else index(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ParameterError(f"step must be a whole number from 0 on, got {value!r}")
    return number


def _epoch(value: Any) -> float:
    number = value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
    if type(number) not in (int, float) or not 0 <= number < math.inf:
        raise ParameterError(f"epoch must be a number from 0 on, got {value!r}")
    return number  # type: ignore[no-any-return]


def _number(value: Any) -> float:
    return value if type(value) in (int, float) and math.isfinite(value) else 0.0


def _folder(path: object) -> Path:
    if not isinstance(path, (str, Path)) or not str(path).strip() or str(path) == ".":
        raise ParameterError(f"path must name a folder for the run, e.g. runs/mine, got {path!r}")
    return Path(path).absolute()  # a training loop may change the working directory
