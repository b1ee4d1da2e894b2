"""What one call of the monitor hands over, and how it becomes a contrast."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from eigenbatch.checks import check_callable, check_tensor, ids_tensor
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.contrast import Layout as Layout
from eigenbatch.core.precision import positive_scalar
from eigenbatch.errors import ParameterError
from eigenbatch.monitor.measure import inputs_of
from eigenbatch.monitor.parts import Inputs
from eigenbatch.monitor.ranks import (
    ProcessGroup,
    Ranks,
    gathered_pairs,
    gathered_towers,
    give_up,
)

Temperature = float | Tensor | Callable[[], float | Tensor]
Views = tuple[Tensor, Tensor]


class NotFiniteError(ParameterError):
    """A temperature or a loss with which no training can continue."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ready:
    """A batch that can be read."""

    contrast: Contrast
    tau: float
    loss: float | None
    ids: Tensor | None
    inputs: Inputs | None
    ranks: Ranks | None  # None: the contrast is the whole batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The arguments of one call; nothing is computed yet."""

    views: Views | Callable[[], Views] | None
    contrast: Contrast | Callable[[], Contrast] | None
    layout: Layout
    loss: float | Tensor | None
    ids: Tensor | Sequence[int] | None

    def ready(self, tau: Temperature, *, sync: bool, group: dist.ProcessGroup | None) -> Ready:
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
        except Exception:
            if sync:
                give_up(group)
            raise
        inputs, ranks = None, None
        if views is None:
            contrast = self.contrast() if callable(self.contrast) else self.contrast
            assert contrast is not None
        else:
            z1, z2 = views
            check_tensor(z1, "z1")
            check_tensor(z2, "z2")
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
            inputs = inputs_of(z1, z2)  # last: a batch it cannot take was reported to all above
        return Ready(
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
