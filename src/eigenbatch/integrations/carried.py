"""What a callback carries besides the monitor: cache, sampler, probe and a record of the run."""

import logging
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from eigenbatch.batches.cache import EmbeddingCache, with_direction
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.checks import check_callable, check_type
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError, RunError
from eigenbatch.monitor.monitor import Layout, SpectralMonitor, StopOn
from eigenbatch.monitor.online_probe import OnlineProbe
from eigenbatch.monitor.reading import Reading
from eigenbatch.processes import in_any_process, of_all_processes, rank_and_world
from eigenbatch.runs.directory import RunDirectory
from eigenbatch.runs.record import is_whole
from eigenbatch.runs.recorder import OWN, Recorder

logger = logging.getLogger("eigenbatch")


FILL_AFTER, FILL_SHARE = 100, 0.05


class Refresher:
    """Writes the embeddings of training steps into a cache.

    Rows without a direction (zero, as of an empty text, or not finite) are left out and said once:
    a cache must not end a training that goes on without it. What is wrong the monitor says.
    """

    def __init__(self, cache: EmbeddingCache) -> None:
        self.cache = cache
        self._warned = False

    def __call__(self, ids: Tensor, *towers: Tensor) -> None:
        """Store the rows of this process."""
        ids, rows = ids.cpu(), [one.detach().float().cpu() for one in towers]
        if all(one.ndim == 2 and len(one) == len(ids) for one in rows):  # or the cache will say
            usable = with_direction(*rows)
            if not usable.all() and not self._warned:
                self._warned = True
                logger.warning(
                    "embeddings of samples %s are zero or not finite: they are not stored, here "
                    "and from now on, so that these samples are chosen at random",
                    ids[~usable][:5].tolist(),
                )
            ids, rows = ids[usable], [one[usable] for one in rows]
        self.cache.update(ids, *rows)


def early_fill(asked: int | str | None, size: int, batch_size: int, steps: int) -> int | None:
    """After how many steps all samples are embedded once; None: never.

    "auto": after 100, where it takes at most 5 % of the training time; an embedding takes about a
    third of a training step's time per sample. That is said once.
    """
    if asked != "auto":
        assert not isinstance(asked, str)
        return asked
    share = size / (3 * batch_size * steps) if steps else 1.0
    if share > FILL_SHARE or steps <= FILL_AFTER:
        return None
    if rank_and_world()[0] == 0:
        logger.warning(
            "all %d samples will be embedded once after %d steps (about %.0f %% of the time), so "
            "that batches are planned from then on", size, FILL_AFTER, 100 * share,
        )  # fmt: skip
    return FILL_AFTER


class StopTogether:
    """`StopOn` for all processes: a finding in one of them stops all at the same step.

    A process that stopped alone would leave the others waiting for it.
    """

    def __init__(self, stop_on: StopOn | None) -> None:
        self._stop_on, self.reason = stop_on, ""

    def __call__(self, reading: Reading | None) -> bool:
        """Whether to stop; every process asks at each step whose reading is due."""
        if self._stop_on is None or not in_any_process(self._stop_on(reading)):
            return False
        self.reason = next(filter(None, of_all_processes(self._stop_on.reason)))
        return True


Arrange = Callable[[Tensor, Tensor], Contrast]
LAYOUTS: dict[Arrange, Layout] = {Contrast.paired: "paired", Contrast.cross: "cross"}
"""Those that a monitor can gather from several processes."""


def check_layout(monitor: SpectralMonitor, layout: Arrange) -> None:
    """Raise if it is none, or one that the monitor cannot gather."""
    check_callable(layout, "layout", "Contrast.cross")
    if monitor.sync and layout not in LAYOUTS:
        raise ParameterError(
            "sync=True gathers two views or two towers: give layout=Contrast.paired or "
            "Contrast.cross, or a monitor with sync=False"
        )


def shown(
    monitor: SpectralMonitor,
    layout: Arrange,
    views: Callable[[], tuple[Tensor, Tensor]],
    **more: Any,
) -> Reading | None:
    """What the monitor reads of two views."""
    if (name := LAYOUTS.get(layout)) is not None:
        return monitor(views=views, layout=name, **more)
    return monitor(contrast=lambda: layout(*views()), **more)


class Carried:
    """Monitor, cache, sampler and probe as one state, and the batches used of this epoch."""

    def __init__(
        self,
        monitor: SpectralMonitor,
        cache: EmbeddingCache | None,
        sampler: SpectralBatchSampler | None,
        probe: OnlineProbe | None = None,
    ) -> None:
        check_type(cache, (EmbeddingCache, type(None)), "cache")
        check_type(sampler, (SpectralBatchSampler, type(None)), "sampler")
        check_type(probe, (OnlineProbe, type(None)), "probe")
        self.monitor, self.sampler, self.probe = monitor, sampler, probe
        self.judged: dict[str, float] = {}  # by the probe, after the last batch
        self.cache = sampler.cache if cache is None and sampler is not None else cache
        self._refresher = None if self.cache is None else Refresher(self.cache)
        self.consumed = 0

    def refresh(self, ids: Tensor, z: Tensor, second: Tensor | None = None) -> None:
        """Store the embeddings of a batch; `second` is for a cache of two towers."""
        if self._refresher is not None:
            two = self._refresher.cache.towers == 2
            towers = (z,) if second is None or not two else (z, second)
            self._refresher(ids, *towers)

    @property
    def ended(self) -> bool:
        """Whether all batches of the sampler's epoch were used."""
        return self.sampler is not None and self.consumed >= len(self.sampler)

    def judge(self, z: Tensor, labels: Tensor) -> None:
        """Show a batch to the probe."""
        if self.probe is not None:
            self.judged = self.probe(z, labels)

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, and beside it those of cache, sampler and probe.

        Every process calls it: the newest embeddings of all are brought together.
        """
        state = self.monitor.state_dict()
        if self.probe is not None:
            state["probe"] = self.probe.state_dict()
        if self.cache is not None:
            self.cache.gather()
            state["cache"] = self.cache.state_dict()
        if self.sampler is not None:
            state |= {
                "sampler": self.sampler.state_dict(self.consumed),
                "consumed": self.consumed,
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what is carried; parts that the state lacks stay as they are."""
        parts = dict(state)
        cache, sampler = parts.pop("cache", None), parts.pop("sampler", None)
        consumed, probe = parts.pop("consumed", 0), parts.pop("probe", None)
        self.monitor.load_state_dict(parts)
        if self.cache is not None and cache is not None:
            self.cache.load_state_dict(cache)
        if self.probe is not None and probe is not None:
            self.probe.load_state_dict(probe)
        if self.sampler is not None and sampler is not None:
            self.sampler.load_state_dict(sampler)
            self.consumed = consumed


class RunRecord:
    """A run directory that a callback writes."""

    def __init__(self, path: str | Path | None) -> None:
        check_type(path, (str, Path, type(None)), "record")
        self._path = path
        self._run: Recorder | None = None

    def open(self, config: object, *, step: int) -> None:
        """Begin the record, or continue it from the step of the checkpoint that is resumed.

        A run that begins at step 0 keeps apart what the folder holds of an unfinished one.
        """
        if self._path is None or (self._run is not None and step):
            return
        self.close("training began again")
        directory = RunDirectory(Path(self._path))
        exists = directory.manifest.exists()
        if exists and not step:
            if is_whole(directory.metrics):
                raise RunError(f"{self._path} holds a finished run: give record= another folder")
            logger.warning(
                "%s held an unfinished run: it was moved to %s", self._path, _set_aside(directory)
            )
            exists = False
        self._run = Recorder(self._path, config, resume=exists, until=step if exists else None)

    def reading(self, step: int, reading: Reading, **values: Any) -> None:
        """Write a reading at the trainer's own step."""
        if self._run is not None:
            self._run.log(step, values)
            self._run.reading(reading)

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the user's own metrics."""
        own = {name: value for name, value in values.items() if name not in OWN}
        if self._run is not None and own:
            self._run.log(step, own)

    def close(self, reason: str = "") -> None:
        """Finish the record, or say why the run ended early."""
        if self._run is not None:
            if reason:
                self._run.stop(reason)
            else:
                self._run.finish()
        self._run = None


def _set_aside(directory: RunDirectory) -> Path:
    """Rename the folder of a run by the first number that is free."""
    path = directory.path
    names = (path.with_name(f"{path.name}-unfinished-{number}") for number in count(1))
    return path.rename(next(name for name in names if not name.exists()))
