"""A progress bar for a run: epoch, loss, effective rank of the batch, selection time, ETA.

Without a terminal, a line now and then.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.train.loop import Observer, Step, Training

if TYPE_CHECKING:
    from eigenbatch.train.assembly import Assembled


def progress_bar(console: Console, title: str) -> "Callable[[Assembled], list[Observer]]":
    """Makes the progress bar of an assembled run; its findings are printed above the bar.

    Only rank 0 shows one.
    """

    def of(assembled: "Assembled") -> list[Observer]:
        first = assembled.training.fabric.global_rank == 0
        assembled.monitor.say_through(partial(console.print, style="yellow", markup=False))
        return [ProgressBar(assembled.sampler, title, console)] if first else []

    return of


EVERY_SECONDS = 10.0
"""Between two lines where there is no terminal."""


class ProgressBar(Observer):
    """Shows the state of a run; made for one run at a time."""

    def __init__(self, sampler: SpectralBatchSampler, title: str, console: Console) -> None:
        self.sampler, self.title, self.console = sampler, title, console
        self._said = time.monotonic()
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn(title),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.fields[epoch]}  {task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def on_start(self, training: Training) -> None:
        """Begin at the state of the run."""
        self._show(training, "")

    def on_step(self, training: Training, step: Step) -> None:
        """Advance by one."""
        facts, plan = f"loss {float(step.outcome.loss):.3f}", self.sampler.plan
        if plan is not None and not math.isnan(plan.participation_ratio):
            facts += f"  R_eff {plan.participation_ratio:.1f}"
        self._show(training, facts)

    def on_fill(self, training: Training, done: int, total: int) -> None:
        """Say how many samples were embedded for the cache."""
        self._show(training, f"embedded {done:,} of {total:,} samples")

    def on_end(self, training: Training) -> None:
        """Remove the bar."""
        self._bar.stop()

    def _show(self, training: Training, facts: str) -> None:
        """On the bar; without a terminal as a line, if the last one was a while ago."""
        total = training.epochs * len(training.loader)
        if self._task is None:
            self._task = self._bar.add_task("", total=total, epoch=0, facts="")
            self._bar.start()
        self._bar.update(self._task, completed=training.step, epoch=training.epoch, facts=facts)
        if not self.console.is_terminal and time.monotonic() - self._said > EVERY_SECONDS:
            self._said = time.monotonic()
            self.console.print(
                f"{self.title}: epoch {training.epoch} of {training.epochs}, step {training.step} "
                f"of {total}, {facts}"
            )
