"""The monitor: one line in a training loop that now and then takes a reading."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch.distributed as dist
from torch import Tensor

from eigenbatch.checks import (
    check_callable,
    check_choice,
    check_entries,
    check_flags,
    check_tensor,
    check_type,
    is_count,
    is_dict,
    whole,
)
from eigenbatch.core.band import Method
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.precision import positive_scalar
from eigenbatch.errors import ParameterError
from eigenbatch.monitor.history import History
from eigenbatch.monitor.measure import inputs_of, read_batch
from eigenbatch.monitor.ranks import ProcessGroup, gathered_pairs, give_up
from eigenbatch.monitor.reading import Reading

logger = logging.getLogger(__name__)

Temperature = float | Tensor | Callable[[], float | Tensor]
Views = tuple[Tensor, Tensor]


class SpectralMonitor:
    """Reads every `every`-th batch it is shown; the others cost a counter and a comparison.

        monitor = SpectralMonitor(tau=0.1, every=50)
        ...
        reading = monitor(z1, z2)           # None on skipped steps
        if reading:
            log(reading.scalars())
            print(reading.diagnoses)

    tau: the softmax temperature that logits are *divided* by: a number, a tensor that is read anew
        at each reading, or a callable. A learned scale that logits are *multiplied* by is
        `tau=lambda: 1 / model.logit_scale.exp()`.
    method: which band `reading.gradient.band` is. "certified" also gives the paper's band by its
        sigma-hat proxy (for a queue: by sampled keys); "theorem" computes the exact sigma* of each
        anchor and costs about half as much again.
    strict: raise when a batch cannot be read. Otherwise the first failure is logged and such
        batches give None: a monitor never ends a run by itself.
    sync: read the union of all processes' batches (NT-Xent). Every process must then call the
        monitor at the same steps, with equally many pairs.
    """

    def __init__(
        self,
        tau: Temperature,
        *,
        every: int = 50,
        method: Method = "certified",
        strict: bool = False,
        sync: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        whole(every, "every", least=1)
        check_choice(method, get_args(Method), "method")
        check_flags(strict=strict, sync=sync)
        check_type(group, (dist.ProcessGroup, type(None)), "group")
        if not isinstance(tau, Tensor) and not callable(tau):
            positive_scalar(tau, "tau")
        if group is not None and not sync:
            raise ParameterError("group is only used with sync=True")
        self._tau, self._every, self._method = tau, every, method
        self._strict, self._sync, self._group = strict, sync, group
        self._step = 0
        self._history = History()
        self._has_failed = False

    @property
    def due(self) -> bool:
        """Whether the next call takes a reading."""
        return self._step % self._every == 0

    def __call__(
        self,
        z1: Tensor | None = None,
        z2: Tensor | None = None,
        *,
        views: Callable[[], Views] | None = None,
        contrast: Contrast | Callable[[], Contrast] | None = None,
        ids: Tensor | None = None,
        queue_ids: Tensor | None = None,
    ) -> Reading | None:
        """A reading of two views (NT-Xent) or of any contrast; None on skipped steps.

        views: makes z1 and z2, called only when a reading is due; if it raises, the batch cannot
            be read.
        contrast: pass a callable to build it only when a reading is due.
        ids, queue_ids: for `Contrast.queued`, the sample id of each anchor and of each slot of the
            queue (negative: empty); they give queue fill and self-negative rate.
        """
        given = None if z1 is None or z2 is None else (z1, z2)
        sources = (given is not None) + (views is not None) + (contrast is not None)
        if sources != 1 or (z1 is None) != (z2 is None):
            raise ParameterError("pass either both views z1 and z2, or views=, or contrast=")
        if self._sync and contrast is not None:
            raise ParameterError("sync=True reads two views: pass z1 and z2, or views=")
        step, due = self._step, self.due
        self._step += 1
        if not due:
            return None
        try:
            reading = self._read(given or views, contrast, ids, queue_ids)
        except Exception:
            if self._strict:
                raise
            if not self._has_failed:
                logger.warning(
                    "batch %d cannot be read; further failures are silent", step, exc_info=True
                )
            self._has_failed = True
            return None
        return replace(reading, step=step, trend=self._history.add(reading.gradient.measured))

    def state_dict(self) -> dict[str, Any]:
        """Step, moving average and rolling window, as plain numbers."""
        return {"step": self._step, "history": self._history.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        check_entries(state, "monitor", {"step": is_count, "history": is_dict})
        self._history.load_state_dict(state["history"])
        self._step = state["step"]

    def _read(
        self,
        views: Views | Callable[[], Views] | None,
        contrast: Contrast | Callable[[], Contrast] | None,
        ids: Tensor | None,
        queue_ids: Tensor | None,
    ) -> Reading:
        try:
            if views is not None and not isinstance(views, tuple):
                check_callable(views, "views", "lambda: (z1, z2)")
            tau = self._tau() if callable(self._tau) else self._tau
            views = views() if callable(views) else views
        except Exception:
            if self._sync:
                give_up(self._group)
            raise
        ranks = inputs = None
        if views is not None:
            z1, z2 = views
            check_tensor(z1, "z1")
            check_tensor(z2, "z2")
            if self._sync:
                ranks = ProcessGroup(self._group, z1.device)
                contrast = gathered_pairs(z1, z2, ranks)
            else:
                contrast = Contrast.paired(z1, z2)
            inputs = inputs_of(z1, z2)
        elif callable(contrast):
            contrast = contrast()
        assert contrast is not None
        return read_batch(
            contrast,
            tau,
            method=self._method,
            ids=ids,
            queue_ids=queue_ids,
            inputs=inputs,
            ranks=ranks,
        )
