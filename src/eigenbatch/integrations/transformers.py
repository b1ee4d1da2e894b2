"""Hugging Face Trainer and sentence-transformers: a callback that captures embeddings by a hook."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eigenbatch.checks import check_callable
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.integrations.sinks import Sink, check_callback
from eigenbatch.missing import missing
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.stopping import StopOn

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as reason:
    raise missing("transformers") from reason

logger = logging.getLogger(__name__)


def sentence_embedding(output: Any) -> Tensor:
    """The entry "sentence_embedding" of what the model returned."""
    try:
        found: Tensor = output["sentence_embedding"]
    except (KeyError, TypeError, IndexError) as reason:
        raise ParameterError(
            'the model returned no "sentence_embedding": give the callback embedding='
        ) from reason
    return found


def _state_file(args: TrainingArguments, state: TrainerState) -> Path:
    """Beside what the Trainer itself saves at this step."""
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}", "spectral_monitor.json")


class SpectralTrainerCallback(TrainerCallback):
    """Reads the first two embeddings that the model makes in a training step.

    Sentence losses encode one text column after the other: anchors, then positives. In-batch
    losses such as MultipleNegativesRankingLoss contrast them as `Contrast.cross`, and their
    `scale` is 1 / tau. With gradient accumulation the last micro-batch is read. Losses that encode
    a column in several pieces (the Cached... family) cannot be captured this way.

    embedding: from the model's output to its (rows, d) embeddings.
    """

    def __init__(
        self,
        monitor: SpectralMonitor,
        *,
        embedding: Callable[[Any], Tensor] = sentence_embedding,
        layout: Callable[[Tensor, Tensor], Contrast] = Contrast.cross,
        sinks: Sequence[Sink] = (),
        stop_on: StopOn | None = None,
    ) -> None:
        check_callback(monitor, sinks, stop_on)
        check_callable(embedding, "embedding", "a function of the model's output")
        check_callable(layout, "layout", "Contrast.cross")
        self.monitor = monitor
        self._embedding, self._layout = embedding, layout
        self._sinks, self._stop_on = sinks, stop_on
        self._captured: list[Any] = []  # outputs of the model
        self._hook: Any = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Hook the model, once, even if an earlier run was interrupted; go on with a resumed one.

        Without a saved state in the checkpoint at least the steps go on.
        """
        self._release()
        if state.global_step:
            saved = _state_file(args, state)
            known = json.loads(saved.read_text()) if saved.exists() else self.monitor.state_dict()
            self.monitor.load_state_dict(known | {"step": state.global_step})
        self._hook = kwargs["model"].register_forward_hook(self._capture)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Keep the monitor's state in the checkpoint."""
        file = _state_file(args, state)
        if state.is_world_process_zero and file.parent.is_dir():
            file.write_text(json.dumps(self.monitor.state_dict()))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Leave the model as it was."""
        self._release()

    def on_substep_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Forget all but the last micro-batch."""
        self._captured.clear()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Show the captured embeddings to the monitor."""
        reading = self.monitor(contrast=self._contrast)
        self._captured.clear()
        if reading is None:
            return
        for sink in self._sinks:
            sink(reading)
        if self._stop_on is not None and self._stop_on(reading):
            logger.warning("stopping: %s", ", ".join(self._stop_on.reasons))
            control.should_training_stop = True

    def _capture(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training and self.monitor.due and len(self._captured) < 2:
            self._captured.append(output)

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._captured.clear()

    def _contrast(self) -> Contrast:
        if len(self._captured) < 2:
            raise ShapeError(
                f"the model made {len(self._captured)} embeddings in this step, 2 are needed: "
                "anchors and positives"
            )
        anchors, positives = (self._embedding(output).detach() for output in self._captured[:2])
        return self._layout(anchors, positives)
