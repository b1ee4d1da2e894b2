"""The monitor: one line in a training loop that now and then takes a reading."""

import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    check_tensor,
    check_type,
    ids_tensor,
    is_count,
    is_dict,
    whole,
)
from eigenbatch.core.bands import Method
from eigenbatch.core.contrast import Contrast, positive_scalar
from eigenbatch.core.contrast import Layout as Layout
from eigenbatch.errors import ParameterError, RowError
from eigenbatch.monitor.course import History, RunMemory
from eigenbatch.monitor.findings import NAMES, Finding, diagnose, lasting_names
from eigenbatch.monitor.measure import check_ids, inputs_of, measured
from eigenbatch.monitor.processes import (
    ProcessGroup,
    Ranks,
    check_header,
    gathered_pairs,
    gathered_towers,
)
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.rules import RULES
from eigenbatch.processes import initialized

logger = logging.getLogger("eigenbatch")

Temperature = float | Tensor | Callable[[], float | Tensor]
Views = tuple[Tensor, Tensor]
Say = Callable[[str], None]

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
        method: which band `reading.band` is. "certified" also gives the paper's band by
            its sigma-hat proxy (for a queue: by sampled keys); "theorem" computes the exact sigma*
            of each anchor and costs 1.6 to 2 times as much.
        quiet: say nothing; findings are still in `reading.findings`.
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
        >>> names = [finding.name for finding in reading.findings]
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
        return self.reads()

    def reads(self, step: int | None = None) -> bool:
        """Whether a call takes a reading: the next one, or the next one with this `step`."""
        if step is None:
            return self._step % self._every == 0
        return whole(step, "step", least=0) >= self._step and step % self._every == 0

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
        step: int | None = None,
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
            step: the update this batch belongs to, if several micro-batches make one; the first
                of a step is read. Without it calls are counted.
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
        due = self.reads(step)
        step = self._step if step is None else step
        self._step = max(self._step, step + 1)
        if not due:
            return None
        batch = _Batch(views=given or views, contrast=contrast, layout=layout, loss=loss, ids=ids)
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
        self, batch: "_Batch", step: int, queue_ids: Tensor | Sequence[int] | None
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
            reading = Reading(failure=str(error), method=self._method, step=step)
            reading = replace(reading, findings=diagnose(reading))
        self._memory.count(lasting_names(reading))
        try:
            self._announcer(reading.findings, step)
        except Exception:
            logger.warning("a finding of step %d could not be said", step, exc_info=True)
        return reading

    def _read(self, batch: "_Batch", step: int, queue_ids: Any) -> Reading:
        header: dict[str, float] = {"step": step, "method": get_args(Method).index(self._method)}
        sync = self._sync and initialized()
        ready = batch.ready(self._tau, sync=sync, group=self._group, header=header)
        queue = None if queue_ids is None else ids_tensor(queue_ids, "queue_ids")
        check_ids(ready.contrast, ready.ids, queue)
        reading = measured(
            ready.contrast,
            ready.tau,
            method=self._method,
            ids=ready.ids,
            queue_ids=queue,
            loss=ready.loss,
            ranks=ready.ranks,
        )
        marks = self._memory.marks(ready.contrast, ready.ranks)
        course = self._memory.add(marks, reading, step)
        reading = replace(
            reading,
            step=step,
            course=course,
            movement=min(course.movement.values(), default=None),
            **ready.inputs,
            **self._history.add(reading.gradient),
        )
        return replace(reading, findings=diagnose(reading))


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class NotFiniteError(ParameterError):
    """A temperature or a loss with which no training can continue."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ready:
    """A batch that can be read."""

    contrast: Contrast
    tau: float
    loss: float | None
    ids: Tensor | None
    inputs: dict[str, Any]
    ranks: Ranks | None  # None: the contrast is the whole batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Batch:
    """The arguments of one call; nothing is computed yet."""

    views: Views | Callable[[], Views] | None
    contrast: Contrast | Callable[[], Contrast] | None
    layout: Layout
    loss: float | Tensor | None
    ids: Tensor | Sequence[int] | None

    def ready(
        self,
        tau: Temperature,
        *,
        sync: bool,
        group: dist.ProcessGroup | None,
        header: dict[str, float],
    ) -> _Ready:
        """Call what was passed as callables and build the contrast, of all processes if `sync`.

        Raises:
            RowError: a row is NaN, infinite or zero, here or in another process.
            NotFiniteError: so are tau or the loss.
        """
        try:
            temperature = _temperature(tau() if callable(tau) else tau)
            loss = None if self.loss is None else _finite_loss(self.loss)
            views = self._views()
            ids = None if self.ids is None else ids_tensor(self.ids)
            if views is not None:
                check_tensor(views[0], "z1")
                check_tensor(views[1], "z2")
            if sync and views is not None:
                check_ids(Contrast.paired(*views), ids, None)
                header |= {
                    "layout": get_args(Layout).index(self.layout),
                    "tau": temperature,
                    "pairs": len(views[0]),
                    "dimension": views[0].shape[1],
                    "ids": ids is not None,
                    "loss": loss is not None,
                }
        except Exception:
            if sync:
                check_header(None, group)
            raise
        if sync:
            check_header(header, group)
        inputs: dict[str, Any] = {}
        ranks = None
        if views is None:
            contrast = self.contrast() if callable(self.contrast) else self.contrast
            assert contrast is not None
        else:
            z1, z2 = views
            if not sync:
                make = Contrast.cross if self.layout == "cross" else Contrast.paired
                contrast = make(z1, z2)
            elif self.layout == "paired":
                ranks = ProcessGroup(group)
                contrast = gathered_pairs(z1, z2, ranks)
            else:
                everyone = ProcessGroup(group)
                contrast = gathered_towers(z1, z2, everyone)
                ids = None if ids is None else everyone.concatenated(ids)
                loss = None if loss is None else everyone.mean(loss)
            inputs = inputs_of(z1, z2)
        return _Ready(
            contrast=contrast, tau=temperature, loss=loss, ids=ids, inputs=inputs, ranks=ranks
        )

    def _views(self) -> Views | None:
        if self.views is None or isinstance(self.views, tuple):
            return self.views
        check_callable(self.views, "views", "lambda: (z1, z2)")
        return self.views()


def _temperature(tau: float | Tensor) -> float:
    try:
        return positive_scalar(tau, "tau")
    except ParameterError as error:
        raise NotFiniteError(str(error)) from None


def _finite_loss(loss: float | Tensor) -> float:
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ParameterError(f"loss must be one number, got a tensor {tuple(loss.shape)}")
    value = float(loss.detach() if isinstance(loss, Tensor) else loss)
    if not math.isfinite(value):
        raise NotFiniteError(f"your loss is {value}")
    return value


class Announcer:
    """Says every finding of severity warning or higher once, and again only if it gets worse."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.say: Say = logger.warning
        self._said: set[str] = set()

    def __call__(self, findings: tuple[Finding, ...], step: int) -> None:
        """Report new findings; only the first process does."""
        for one in findings:
            key = f"{one.severity}: {one.name}"
            if one.severity == "info" or key in self._said:
                continue
            self._said.add(key)
            if not self.quiet and is_first_process():
                self.say(sentence(one, step))

    def state_dict(self) -> list[str]:
        """What was said, so that a resumed run does not repeat it."""
        return sorted(self._said)

    def load_state_dict(self, said: list[str]) -> None:
        """Continue where `state_dict` was taken."""
        self._said = set(said)


def sentence(one: Finding, step: int) -> str:
    """One finding as a line of a log."""
    return f"step {step}, {one.severity}: {one.name}. {one.evidence}. What to do: {one.advice}"


def is_first_process() -> bool:
    """Whether this process reports for all."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") in ("", "0")


class StopOn:
    """True once one of the named findings was made in `patience` readings in a row.

    Severity "info" does not count: an untrained encoder is not a reason to stop.

    Args:
        *names: names of findings that can be warnings, see docs/diagnosis.md; "not finite" is NaN.
        patience: readings in a row.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor, StopOn
        >>> monitor, stop = SpectralMonitor(0.1, every=1, quiet=True), StopOn("not finite")
        >>> z = torch.full((8, 4), torch.nan)
        >>> stop(monitor(z, z)), stop(monitor(z, z))
        (False, True)
        >>> stop.reasons
        ('not finite',)
    """

    def __init__(self, *names: str, patience: int = 2) -> None:
        for name in names:
            check_type(name, str, "names")
        whole(patience, "patience")
        if unknown := sorted(set(names) - set(NAMES)):
            raise ParameterError(f"no finding is called {unknown}; the names are {NAMES}")
        if "healthy" in names:
            raise ParameterError('"healthy" is said where nothing is wrong: it cannot stop a run')
        if remarks := [rule.name for rule in RULES if rule.remark and rule.name in names]:
            raise ParameterError(f"{remarks} are remarks, never warnings: they cannot stop a run")
        if not names or patience < 1:
            raise ParameterError(
                f"name at least one finding and a patience of at least 1, got {names}, {patience}"
            )
        self._patience = patience
        self._seen = dict.fromkeys(names, 0)
        self._reason = ""

    def __call__(self, reading: Reading | None) -> bool:
        """Whether to stop now; skipped steps (None) change nothing."""
        check_type(reading, (Reading, type(None)), "reading")
        if reading is None:
            return False
        found = {one.name for one in reading.findings if one.severity != "info"}
        self._seen = {name: seen + 1 if name in found else 0 for name, seen in self._seen.items()}
        if self.reasons:
            evidence = "; ".join(
                f"{one.name} ({one.evidence})"
                for one in reading.findings
                if one.name in self.reasons
            )
            self._reason = f"{evidence} at step {reading.step}"
        return bool(self.reasons)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the findings that are a reason to stop."""
        return tuple(name for name, seen in self._seen.items() if seen >= self._patience)

    @property
    def reason(self) -> str:
        """Why to stop, as a text for the record of the run; empty while there is no reason.

        if stop(reading):
            recorder.stop(stop.reason)
            break
        """
        return self._reason
