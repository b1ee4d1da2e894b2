"""What can watch a run: the cache, a metrics file, evaluation, a progress bar."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.train.loop import Observer, Step, Training


class RefreshCache(Observer):
    """Writes the embeddings of every step into the cache that batches are selected from."""

    def __init__(self, cache: EmbeddingCache) -> None:
        self.cache = cache
        self.seconds = 0.0

    def on_step(self, training: Training, step: Step) -> None:
        """Store the first view's embeddings, of all processes."""
        started = time.perf_counter()
        self.cache.update_synchronized(step.ids, step.outcome.embeddings.float().cpu())
        self.seconds += time.perf_counter() - started


class Metrics(Observer):
    """Appends one JSON line for every `every`-th step, and one for whatever is recorded."""

    def __init__(self, path: Path, sampler: SpectralBatchSampler, *, every: int = 1) -> None:
        self.path, self.sampler, self.every = path, sampler, every
        self._seconds = 0.0

    def on_start(self, training: Training) -> None:
        """Begin the clock where the run before an interruption left it."""
        self._seconds = last_seconds(self.path)
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall-clock time of the run so far, all overheads included, across resumes."""
        return self._seconds + time.perf_counter() - self._started

    def on_step(self, training: Training, step: Step) -> None:
        """Write loss and selection."""
        if training.step % self.every:
            return
        chosen = self.sampler.last
        self.record(
            training,
            loss=float(step.outcome.loss),
            step_seconds=step.seconds,
            waited_seconds=step.waited,
            **(chosen.scalars() if chosen is not None else {}),
        )

    def record(self, training: Training, **values: float) -> None:
        """Append one line; only rank 0 writes."""
        if training.fabric.global_rank:
            return
        line = {"step": training.step, "epoch": training.epoch, "seconds": self.seconds} | {
            name: value for name, value in values.items() if math.isfinite(value)
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def last_seconds(path: Path) -> float:
    """`seconds` of the last complete line of a metrics file; 0 if there is none."""
    if not path.is_file():
        return 0.0
    for line in reversed(path.read_text().splitlines()):
        try:
            return float(json.loads(line)["seconds"])
        except (json.JSONDecodeError, KeyError):
            continue
    return 0.0


class Evaluate(Observer):
    """Calls `measure` every `every` epochs and at the last, and records what it returns."""

    def __init__(
        self, measure: Callable[[], dict[str, float]], metrics: Metrics, *, every: int = 1
    ) -> None:
        self.measure, self.metrics, self.every = measure, metrics, every

    def on_epoch(self, training: Training) -> None:
        """Evaluate when it is due; the random state of training is left as it was."""
        if training.epoch % self.every and training.epoch != training.epochs:
            return
        state = torch.get_rng_state()
        values = self.measure()
        torch.set_rng_state(state)
        self.metrics.record(training, **values)
