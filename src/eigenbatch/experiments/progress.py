"""A progress bar for a run: epoch, loss, effective rank of the batch, selection time, ETA."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.train.loop import Observer, Step, Training


class ProgressBar(Observer):
    """Shows where a run stands; made for one run at a time."""

    def __init__(self, sampler: SpectralBatchSampler, title: str, console: Console) -> None:
        self.sampler = sampler
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
        """Begin where the run stands."""
        total = training.epochs * len(training.loader)
        self._task = self._bar.add_task(
            "", total=total, completed=training.step, epoch=training.epoch, facts=""
        )
        self._bar.start()

    def on_step(self, training: Training, step: Step) -> None:
        """Go on by one."""
        chosen = self.sampler.last
        facts = f"loss {float(step.outcome.loss):.3f}"
        if chosen is not None and len(chosen.chosen):
            rank = chosen.participation_ratio
            facts += f"  R_eff {rank:.1f}  selection {1e3 * chosen.seconds:.0f} ms"
        self._bar.update(self._task, completed=training.step, epoch=training.epoch, facts=facts)

    def on_end(self, training: Training) -> None:
        """Take the bar away."""
        self._bar.stop()
