"""What can watch a run: the cache, a metrics file, evaluation, a progress bar."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    """Appends one JSON line for every `every`-th step, and one for whatever is recorded.

    also: called with every line that is written, e.g. to log it elsewhere.
    """

    def __init__(
        self,
        path: Path,
        sampler: SpectralBatchSampler,
        *,
        every: int = 1,
        also: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.path, self.sampler, self.every, self.also = path, sampler, every, also
        self._wall = self._cpu = 0.0  # when the run would have begun without an interruption

    def on_start(self, training: Training) -> None:
        """Begin the clocks where the run before an interruption left them."""
        before = last_line(self.path)
        self._wall = time.perf_counter() - before.get("seconds", 0.0)
        self._cpu = time.process_time() - before.get("cpu_seconds", 0.0)

    def clocks(self) -> dict[str, float]:
        """Wall-clock and processor time so far, all overheads included, across resumes."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }

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

    def record(self, training: Training, **values: Any) -> None:
        """Append one line, without what is not finite (a loss becomes null); rank 0 only."""
        if training.fabric.global_rank:
            return
        facts = {
            name: value
            for name, value in values.items()
            if not isinstance(value, float) or math.isfinite(value)
        }
        if "loss" in values:
            facts.setdefault("loss", None)
        line = {"step": training.step, "epoch": training.epoch} | self.clocks() | facts
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self.also is not None:
            self.also(line)


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a metrics file; empty if there is none."""
    if not path.is_file():
        return {}
    for line in reversed(path.read_text().splitlines()):
        try:
            content: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        return content
    return {}


class Evaluate(Observer):
    """Calls `measure` before the first step, every `every` epochs and at the last."""

    def __init__(
        self, measure: Callable[[], dict[str, float]], metrics: Metrics, *, every: int = 1
    ) -> None:
        self.measure, self.metrics, self.every = measure, metrics, every

    def on_start(self, training: Training) -> None:
        """Evaluate the untrained encoder: what training is to be compared with."""
        if training.step == 0:
            self._record(training)

    def on_epoch(self, training: Training) -> None:
        """Evaluate when it is due."""
        if training.epoch % self.every == 0 or training.epoch == training.epochs:
            self._record(training)

    def _record(self, training: Training) -> None:
        """Record what `measure` returns; the random state of training is left as it was."""
        state = torch.get_rng_state()
        values = self.measure()
        torch.set_rng_state(state)
        self.metrics.record(training, **values)
