"""Lightning: a callback that reads the embeddings which `training_step` returns."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from eigenbatch.checks import check_callable, check_type
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.sinks import Sink, check_callback
from eigenbatch.missing import missing
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.stopping import StopOn

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as reason:
    raise missing("lightning") from reason

logger = logging.getLogger(__name__)


def returned_views(outputs: Any) -> tuple[Tensor, Tensor]:
    """The entries "z1" and "z2" of what `training_step` returned."""
    try:
        return outputs["z1"], outputs["z2"]
    except (KeyError, TypeError, IndexError) as reason:
        raise ParameterError(
            'training_step must return {"loss": loss, "z1": z1, "z2": z2}, '
            "or give the callback embeddings="
        ) from reason


class SpectralCallback(Callback):
    """Logs every reading with `log_dict` and, if asked, stops the trainer.

    embeddings: from what `training_step` returned to the two views.
    layout: how they are contrasted, such as `Contrast.cross`; None is NT-Xent.
    name: what logged numbers begin with; two callbacks in one trainer need two names.
    """

    def __init__(
        self,
        monitor: SpectralMonitor,
        *,
        embeddings: Callable[[Any], tuple[Tensor, Tensor]] = returned_views,
        layout: Callable[[Tensor, Tensor], Contrast] | None = None,
        sinks: Sequence[Sink] = (),
        stop_on: StopOn | None = None,
        name: str = "spectral",
    ) -> None:
        check_callback(monitor, sinks, stop_on)
        check_callable(embeddings, "embeddings", "a function of what training_step returned")
        if layout is not None:
            check_callable(layout, "layout", "Contrast.cross")
        check_type(name, str, "name")
        self.monitor, self._name = monitor, name
        self._embeddings, self._layout = embeddings, layout
        self._sinks, self._stop_on = sinks, stop_on

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Show the batch to the monitor; a step that returned None was skipped and is not one."""
        if outputs is None or outputs == {}:
            return
        if (layout := self._layout) is None:
            reading = self.monitor(views=lambda: self._embeddings(outputs))
        else:
            reading = self.monitor(contrast=lambda: layout(*self._embeddings(outputs)))
        if reading is None:
            return
        numbers = reading.scalars().items()
        pl_module.log_dict({key.replace("spectral", self._name, 1): one for key, one in numbers})
        for sink in self._sinks:
            sink(reading)
        if self._stop_on is not None and self._stop_on(reading):
            logger.warning("stopping: %s", ", ".join(self._stop_on.reasons))
            trainer.should_stop = True

    @property
    def state_key(self) -> str:
        """Where a checkpoint keeps the state of this one."""
        return self._generate_state_key(name=self._name)

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, saved with every checkpoint."""
        return self.monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the monitor."""
        self.monitor.load_state_dict(state_dict)
