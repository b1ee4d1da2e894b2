"""The monitor: one line in a training loop that now and then takes a reading."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.checks import (
    check_callable,
    check_choice,
    check_entries,
    check_flags,
    check_type,
    ids_tensor,
    is_count,
    is_dict,
    whole,
)
from eigenbatch.core.band import Method
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.precision import positive_scalar
from eigenbatch.errors import ParameterError, RowError
from eigenbatch.monitor.announce import Announcer, Say
from eigenbatch.monitor.batch import Batch, Layout, NotFiniteError, Temperature, Views
from eigenbatch.monitor.course import RunMemory
from eigenbatch.monitor.diagnose import lasting_names
from eigenbatch.monitor.history import History
from eigenbatch.monitor.measure import read_batch
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.unreadable import unreadable
from eigenbatch.processes import initialized

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _never_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Run as it is inside a compiled training step: compiling a reading takes seconds, each time.

    `torch.compiler.disable` itself would import the compiler, which takes a second.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if "torch._dynamo" in sys.modules:
            eager: Callable[P, T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return eager(*args, **kwargs)
        return function(*args, **kwargs)

    return call


class SpectralMonitor:
    """Reads every `every`-th batch it is shown; the others cost a counter and a comparison.

    A new finding of severity warning or higher is said once through the logger "eigenbatch".

    Args:
        tau: the softmax temperature that logits are *divided* by: a number, a tensor that is read
            anew at each reading, or a callable. A learned scale that logits are *multiplied* by is
            `tau=lambda: 1 / model.logit_scale.exp()`.
        every: steps between two readings.
        method: which band `reading.gradient.band` is. "certified" also gives the paper's band by
            its sigma-hat proxy (for a queue: by sampled keys); "theorem" computes the exact sigma*
            of each anchor and costs 1.6 to 2 times as much.
        quiet: say nothing; findings are still in `reading.diagnoses`.
        strict: raise when a batch cannot be read. Otherwise NaN, infinity and zero rows give a
            reading with the critical finding "not finite"; any other failure is logged once and
            gives None: a monitor never ends a run by itself.
        sync: read the union of all processes' batches, of two views or two towers. Every process
            must then call the monitor at the same steps, with equally many pairs. A process that
            is alone (no torch.distributed) is read as it is.
        group: the processes of `sync`; None is all.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> monitor = SpectralMonitor(tau=0.1, every=50)
        >>> z1, z2 = torch.randn(2, 64, 16)  # your two views
        >>> reading = monitor(z1, z2)  # None on the 49 steps in between
        >>> "spectral/loss" in reading.scalars()
        True
        >>> names = [finding.name for finding in reading.diagnoses]
    """

    def __init__(
        self,
        tau: Temperature,
        *,
        every: int = 50,
        method: Method = "certified",
        quiet: bool = False,
        strict: bool = False,
        sync: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        whole(every, "every", least=1)
        check_choice(method, get_args(Method), "method")
        check_flags(quiet=quiet, strict=strict, sync=sync)
        check_type(group, (dist.ProcessGroup, type(None)), "group")
        if not isinstance(tau, Tensor) and not callable(tau):
            positive_scalar(tau, "tau")
        if group is not None and not sync:
            raise ParameterError("group is only used with sync=True")
        self._tau, self._every, self._method = tau, every, method
        self._strict, self._sync, self._group = strict, sync, group
        self._step = 0
        self._history, self._memory = History(), RunMemory()
        self._announcer = Announcer(quiet=quiet)
        self._has_failed = False

    @property
    def due(self) -> bool:
        """Whether the next call takes a reading."""
        return self._step % self._every == 0

    @property
    def sync(self) -> bool:
        """Whether it reads the batch of all processes together."""
        return self._sync

    def say_through(self, say: Say) -> None:
        """Say findings by this function of a text instead of the logger "eigenbatch"."""
        check_callable(say, "say", "print")
        self._announcer.say = say

    @_never_compiled
    def __call__(
        self,
        z1: Tensor | None = None,
        z2: Tensor | None = None,
        *,
        layout: Layout = "paired",
        views: Callable[[], Views] | None = None,
        contrast: Contrast | Callable[[], Contrast] | None = None,
        loss: float | Tensor | None = None,
        ids: Tensor | Sequence[int] | None = None,
        queue_ids: Tensor | Sequence[int] | None = None,
    ) -> Reading | None:
        """Take a reading of two views, two towers or any contrast; None on skipped steps.

        Args:
            z1: the first view, or the first tower's embeddings (rows, d).
            z2: the second; row i of both is the same sample.
            layout: "paired" is NT-Xent over both views (SimCLR), "cross" two towers (CLIP,
                sentence pairs).
            views: makes z1 and z2, called only when a reading is due; if it raises, the batch
                cannot be read.
            contrast: any other layout; pass a callable to build it only when a reading is due.
            loss: your own loss of this batch. A difference to the measured one is a finding.
            ids: the sample id of each pair. Repeats in a batch are a finding.
            queue_ids: for `Contrast.queued`, the sample id of each slot of the queue (negative:
                empty); gives queue fill and, with `ids`, the self-negative rate.
        """
        given = None if z1 is None or z2 is None else (z1, z2)
        sources = (given is not None) + (views is not None) + (contrast is not None)
        if sources != 1 or (z1 is None) != (z2 is None):
            raise ParameterError("pass either both views z1 and z2, or views=, or contrast=")
        check_choice(layout, get_args(Layout), "layout")
        check_type(loss, (Real, Tensor, type(None)), "loss")
        if self._sync and contrast is not None:
            raise ParameterError(
                "sync=True gathers two views or two towers: pass z1 and z2, or views=, with layout="
            )
        step, due = self._step, self.due
        self._step += 1
        if not due:
            return None
        batch = Batch(views=given or views, contrast=contrast, layout=layout, loss=loss, ids=ids)
        return self._try(batch, step, queue_ids)

    def state_dict(self) -> dict[str, Any]:
        """Step, moving averages, the run's beginning and open findings, as plain numbers."""
        return {
            "step": self._step,
            "history": self._history.state_dict(),
            "course": self._memory.state_dict(),
            "said": self._announcer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        entries = {"step": is_count, "history": is_dict, "course": is_dict, "said": _are_names}
        check_entries(state, "monitor", entries)
        self._history.check_state_dict(state["history"])
        self._memory.load_state_dict(state["course"])
        self._history.load_state_dict(state["history"])
        self._announcer.load_state_dict(state["said"])
        self._step = state["step"]

    def _try(
        self, batch: Batch, step: int, queue_ids: Tensor | Sequence[int] | None
    ) -> Reading | None:
        try:
            reading = self._read(batch, step, queue_ids)
        except Exception as error:
            if self._strict:
                raise
            if not isinstance(error, RowError | NotFiniteError):
                if not self._has_failed:
                    logger.warning(
                        "batch %d cannot be read; further failures are silent", step, exc_info=True
                    )
                self._has_failed = True
                return None
            reading = replace(unreadable(str(error), self._method), step=step)
        self._memory.count(lasting_names(reading))
        self._announcer(reading.diagnoses, step)
        return reading

    def _read(self, batch: Batch, step: int, queue_ids: Tensor | Sequence[int] | None) -> Reading:
        ready = batch.ready(self._tau, sync=self._sync and initialized(), group=self._group)
        reading = read_batch(
            ready.contrast,
            ready.tau,
            method=self._method,
            ids=ready.ids,
            queue_ids=None if queue_ids is None else ids_tensor(queue_ids, "queue_ids"),
            inputs=ready.inputs,
            loss=ready.loss,
            ranks=ready.ranks,
        )
        marks = self._memory.marks(ready.contrast, ready.ranks)
        course = self._memory.add(marks, reading, step)
        trend = self._history.add(reading.gradient.measured)
        return replace(reading, step=step, trend=trend, course=course)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
