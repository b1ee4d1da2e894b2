"""Hugging Face Trainer and sentence-transformers: a callback that captures embeddings by a hook."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.checks import check_callable, check_flags, described
from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError
from eigenbatch.integrations.carried import (
    LAYOUTS,
    Carried,
    RunRecord,
    StopTogether,
    check_layout,
    shown,
)
from eigenbatch.integrations.columns import Captured, check_not_split, encoded_columns
from eigenbatch.integrations.sinks import Sink, check_callback
from eigenbatch.missing import missing
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.monitor.online_probe import OnlineProbe
from eigenbatch.monitor.reading import Reading

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
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}", "spectral_monitor.pt")


class SpectralTrainerCallback(TrainerCallback):
    """Reads the embeddings that the model makes in a training step.

    Sentence losses encode one text column after the other: anchors, then positives. In-batch
    losses such as MultipleNegativesRankingLoss contrast them as `Contrast.cross`, and their
    `scale` is 1 / tau. Columns of hard negatives are negatives of every anchor in a reading, too,
    if the data set names its columns (not with `sync=True`). With gradient accumulation the last
    micro-batch is read. Losses of the Cached... family, which encode a column in pieces, need a
    data set that names its columns.

    Readings are entries of `trainer.state.log_history`; after `attach(trainer)` they go through
    `trainer.log`, hence to every reporter. A new finding is said once, through Python logging.

    Args:
        monitor: takes the readings.
        embedding: from the model's output to its (rows, d) embeddings; if one call makes both, as
            in CLIP, to the pair `lambda out: (out.image_embeds, out.text_embeds)`.
        layout: how the two are contrasted.
        sinks: further places for readings.
        stop_on: ends training on a finding; the record then says why.
        record: a folder for a run that `eigenbatch report` shows, with what the Trainer logs.
        cache: refreshed with the anchors of every step (and the positives, if it has two towers)
            if `ids` is given, saved in checkpoints.
        sampler: saved in checkpoints; resume with `ignore_data_skip=True`, because the sampler
            itself continues with the batches that are left.
        ids: from the model's inputs to the sample ids of the anchors. Inputs are the tuple of
            positional ones (`lambda inputs: inputs[0]["ids"]`) or, if there are none, the dict of
            keyword ones (`lambda inputs: inputs["ids"]`). The Trainer passes such a column on only
            with remove_unused_columns=False or label_names=["ids"].
        probe: judges the anchors of every step by their labels; logged with readings and written
            to the record as "online_knn" and "online_linear".
        labels: from the model's inputs to the labels of the anchors; needed with `probe`.
        log_all: send every scalar to the reporters, not the dozen to look at.
    """

    def __init__(
        self,
        monitor: SpectralMonitor,
        *,
        embedding: Callable[[Any], Tensor | tuple[Tensor, Tensor]] = sentence_embedding,
        layout: Callable[[Tensor, Tensor], Contrast] = Contrast.cross,
        sinks: Sequence[Sink] = (),
        stop_on: StopOn | None = None,
        record: str | Path | None = None,
        cache: EmbeddingCache | None = None,
        sampler: SpectralBatchSampler | None = None,
        ids: Callable[[Any], Tensor] | None = None,
        probe: OnlineProbe | None = None,
        labels: Callable[[Any], Tensor] | None = None,
        log_all: bool = False,
    ) -> None:
        check_flags(log_all=log_all)
        check_callback(monitor, sinks, stop_on)
        check_callable(embedding, "embedding", "a function of the model's output")
        check_layout(monitor, layout)
        for name, given in (("ids", ids), ("labels", labels)):
            if given is not None:
                check_callable(given, name, "a function of the model's inputs")
        if (probe is None) != (labels is None):
            raise ParameterError("probe= and labels= belong together: give both or neither")
        self.monitor, self._log_all = monitor, log_all
        self._embedding, self._layout = embedding, layout
        self._ids, self._labels = ids, labels
        self._sinks, self._stop = sinks, StopTogether(stop_on)
        self._carried = Carried(monitor, cache, sampler, probe)
        self._record = RunRecord(record)
        self._trainer: Any = None
        self._resumed = False
        self._captured = Captured()
        self._hook: Any = None

    def attach(self, trainer: Any) -> None:
        """Log readings through `trainer.log` from now on."""
        if not hasattr(trainer, "log"):
            raise ArgumentTypeError(f"trainer must be a Trainer, got {described(trainer)}")
        self._trainer = trainer

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
        check_not_split(args)
        self._release()
        if state.global_step:
            saved = _state_file(args, state)
            known = (
                torch.load(saved, weights_only=True)
                if saved.exists()
                else self.monitor.state_dict()
            )
            self._resumed = True
            self._carried.load_state_dict(known | {"step": state.global_step})
        if state.is_world_process_zero:
            config: dict[str, Any] = {}
            if args is not None:
                config = args.to_dict()  # type: ignore[no-untyped-call]  # without tokens
            self._record.open(config, step=state.global_step)
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        self._captured.texts = hasattr(kwargs["model"], "encode")  # a SentenceTransformer
        self._captured.columns = encoded_columns(dataset)
        self._captured.batch = getattr(args, "train_batch_size", None)
        self._hook = kwargs["model"].register_forward_hook(self._capture, with_kwargs=True)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Keep the states of monitor, cache, sampler and probe in the checkpoint."""
        file = _state_file(args, state)
        known = self._carried.state_dict()
        if state.is_world_process_zero and file.parent.is_dir():
            torch.save(known, file)

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count the batches of this epoch; a resumed one begins where it was saved."""
        if not self._resumed or self._carried.ended:
            self._carried.consumed = 0
        self._resumed = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write what the Trainer logs into the record."""
        own = {
            name: value
            for name, value in (logs or {}).items()
            if isinstance(value, int | float) and not name.startswith(("spectral/", "online_"))
        }
        self._record.metrics(state.global_step, own)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Leave the model as it was; close the record, which stays open to a resumed run."""
        self._release()
        reason = self._stop.reason
        if not reason and state is not None and state.global_step < state.max_steps:
            reason = f"ended at step {state.global_step} of {state.max_steps}"
        self._record.close(reason)

    def on_substep_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Forget all but the last micro-batch."""
        self._use()
        self._captured.clear()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Show the captured embeddings to the monitor."""
        self._use()
        due = self.monitor.due
        if self._layout == Contrast.cross and self._captured.has_more and not self.monitor.sync:
            reading = self.monitor(contrast=self._with_hard_negatives)
        else:
            reading = shown(self.monitor, self._layout, self._two_embeddings)
        self._captured.clear()
        if reading is not None:
            self._tell(state, reading)
        if due and self._stop(reading):
            logger.warning("stopping: %s", self._stop.reason)
            control.should_training_stop = True

    def _tell(self, state: TrainerState, reading: Reading) -> None:
        judged = self._carried.judged
        numbers = reading.scalars(all=self._log_all) | judged
        if self._trainer is not None:
            self._trainer.log(numbers)
        else:
            state.log_history.append(numbers | {"step": state.global_step})
        self._record.reading(state.global_step, reading, **judged)
        for sink in self._sinks:
            sink(reading)

    def _capture(self, module: nn.Module, inputs: Any, named: dict[str, Any], output: Any) -> None:
        wanted = self.monitor.due or self._ids is not None or self._labels is not None
        if module.training and wanted:
            self._captured.add(self._embedding, inputs or named, output)

    def _use(self) -> None:
        """Count the batch; show it to cache and probe."""
        self._carried.consumed += 1
        if not self._captured or self._ids is self._labels is None:
            return
        columns = self._captured.two_columns()
        rows = len(columns[0])
        if self._ids is not None:
            self._carried.refresh(self._captured.of_anchors(self._ids, rows), *columns)
        if self._labels is not None:
            self._carried.judge(columns[0], self._captured.of_anchors(self._labels, rows))

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._captured.clear()

    def _two_embeddings(self) -> tuple[Tensor, Tensor]:
        columns = self._captured.two_columns()
        if len(columns) < 2:
            raise ShapeError(
                f"the model made {len(columns)} embeddings in this step, 2 are needed: anchors and "
                "positives. If one call makes both, let embedding= return the pair"
            )
        if self._embedding is sentence_embedding and self._layout in LAYOUTS:
            # Its losses normalise, the model need not.
            columns = [normalize(rows.float(), dim=1).to(rows.dtype) for rows in columns]
        return columns[0], columns[1]

    def _with_hard_negatives(self) -> Contrast:
        """Anchors against the positives of all, and against the negatives of all."""
        anchors, positives, *negatives = self._captured.all_columns()
        return Contrast.queued(anchors, positives, torch.cat(negatives), batch_negatives=True)
