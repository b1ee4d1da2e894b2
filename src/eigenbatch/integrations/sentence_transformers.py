"""Chosen batches for SentenceTransformerTrainer, from the embeddings that training makes anyway.

hard = HardBatches(model, Neighbours(4))
args = SentenceTransformerTrainingArguments(..., batch_sampler=hard)
trainer = SentenceTransformerTrainer(model, args, ..., callbacks=[hard])
"""

import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from eigenbatch.checks import check_callable, check_choice, check_flags, described, whole
from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.integrations.carried import Refresher, with_direction
from eigenbatch.integrations.columns import LABELS, check_not_split, encoded_names, joined
from eigenbatch.integrations.drawn_batches import DrawnBatches, drawn_batches_of
from eigenbatch.missing import missing
from eigenbatch.processes import rank_and_world
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.auto import Auto
from eigenbatch.selectors.offer import parts_of
from eigenbatch.selectors.random import Random
from eigenbatch.selectors.selector import Selector

try:
    from transformers import TrainerCallback
except ImportError as reason:
    raise missing("transformers") from reason

logger = logging.getLogger("eigenbatch")


class SavedHardBatches(NamedTuple):
    """What is pickled of a `HardBatches`: its settings, without model, data and embeddings."""

    selector: str
    coverage: str
    pool_size: int | None
    encode_after: int | None


class HardBatches(TrainerCallback):
    """Batch sampler and callback in one: chooses batches by cached anchors and positives.

    The first two columns are two towers of a cache that every training step refreshes, without
    extra forward passes; further columns, such as hard negatives, are trained on only. The first
    epoch has random batches, unless all samples are encoded once. Data sets to evaluate have random
    batches; a DatasetDict to train on is refused. A loss may encode a column in pieces, as the
    Cached... family does. From a Matryoshka loss without the full size nothing is captured: the
    batches then stay as the cache was, and a warning says so.
    Cache and sampler are saved in checkpoints: a resumed run continues with the batches that the
    whole one would have had. `Auto` is shown four batches of the `eval_dataset` at every
    evaluation: while they are hard, its batches are random. An `eval_dataset` with labels or scores
    is not shown to it: its pairs need not be positives.

    Args:
        model: the SentenceTransformer that is trained.
        selector: such as `Neighbours(4)`, or `NoNearDuplicates(Neighbours(4))`.
        coverage: "epoch" uses every sample once per epoch, "free" draws a fresh pool per batch.
        pool_size: candidates per batch; None: as the selector needs.
        encode_first: encode every sample once before training, so that the first batch is chosen
            already. Pays for a pretrained model that is trained for an epoch or two.
        encode_after: encode every sample that is unknown once after so many steps, e.g. 100, for a
            model that is trained from scratch; for `Auto` once unseen samples are easy.
    """

    def __init__(
        self,
        model: Any,
        selector: Selector,
        *,
        coverage: str = "epoch",
        pool_size: int | None = None,
        encode_first: bool = False,
        encode_after: int | None = None,
    ) -> None:
        check_callable(selector, "selector", "Neighbours(4)")
        check_flags(encode_first=encode_first)
        if encode_after is not None:
            whole(encode_after, "encode_after", least=1)
            if encode_first:
                raise ParameterError(
                    "samples are encoded once: give encode_first=True or encode_after, not both"
                )
        check_choice(coverage, ("epoch", "stream", "free"), "coverage")
        names = ("get_embedding_dimension", "get_sentence_embedding_dimension")  # new and old name
        dimension = next((getattr(model, name) for name in names if hasattr(model, name)), None)
        sparse = hasattr(model, "sparsity")  # a SparseEncoder
        if sparse or dimension is None or not hasattr(model, "register_forward_hook"):
            raise ArgumentTypeError(f"model must be a SentenceTransformer, got {described(model)}")
        self._model, self._dim = model, int(dimension())
        self._selector, self._coverage, self._pool_size = selector, coverage, pool_size
        self._encode_after = 0 if encode_first else encode_after  # steps; None: never
        self._dataset: Any = None  # that is trained on
        self.cache: EmbeddingCache | None = None
        self._refresher: Refresher | None = None
        self.sampler: SpectralBatchSampler | None = None
        self._batches: DrawnBatches | None = None  # that are trained on
        self._hook: Any = None
        self._captured: list[Tensor] = []
        self._warned = False
        self._encoded_all = False
        self._prompts: Any = None  # of the training: by column, or one for all
        self._tasks: dict[str, str] = {}  # of a Router, by column
        self._shown: tuple[int, list[tuple[Tensor, Tensor]]] = (-1, [])  # step, pairs of its sets

    def __reduce__(self) -> tuple[type[SavedHardBatches], tuple[Any, ...]]:
        """The trainer pickles its arguments, and so its batch sampler, into every checkpoint."""
        name = type(self._selector).__name__
        return SavedHardBatches, (name, self._coverage, self._pool_size, self._encode_after)

    def __call__(
        self,
        dataset: Any,
        *,
        batch_size: int,
        drop_last: bool,
        generator: torch.Generator | None = None,
        seed: int = 0,
        **_: Any,
    ) -> BatchSampler:
        """Batches of a data set, as the trainer asks for them; random if it is to evaluate."""
        return DrawnBatches(
            dataset, batch_size, drop_last, model=self._model, generator=generator, seed=seed
        )

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Choose the batches of the training data, hook the model, continue from a checkpoint."""
        check_not_split(args)
        self._release()
        self._prompts = getattr(args, "prompts", None)
        self._tasks = getattr(args, "router_mapping", None) or {}
        self._bind(drawn_batches_of(train_dataloader))
        encodes = self._encode_after is not None and not isinstance(self._selector, Random)
        if encodes:
            _two_columns(self._dataset)  # raises now rather than after so many steps
        self._encoded_all = not encodes
        if state.global_step:
            self._resume(args, state, len(train_dataloader))
        self._warn_of_random_batches(state)
        if self._encode_after == 0:  # later it is done at the end of a step, also if resumed there
            self._encode_if_due(args, state)
        self._hook = self._model.register_forward_hook(self._capture)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the embeddings of the step."""
        self._refresh()
        self._encode_if_due(args, state)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store those of a micro-batch, with gradient accumulation."""
        self._refresh()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, eval_dataloader: Any = None, **_: Any
    ) -> None:
        """Show Auto how hard pairs are that it is not trained on; of several sets the hardest."""
        told = self._autos
        if self._batches is None or not told:
            return
        size = self._batches.batch_size
        dataset: Any = getattr(eval_dataloader, "dataset", None)
        if not hasattr(dataset, "__len__"):  # also an IterableDataset
            return
        if len(dataset) < size or len(_first_columns(dataset)) < 2:
            return
        if LABELS & set(dataset.column_names):  # scored pairs: not all of them are positives
            return
        count = min(len(dataset), 4 * size)  # from all over it: adjacent samples may be alike
        some = dataset.select([i * len(dataset) // count for i in range(count)])
        first, second = (self._encoded(list(some[name]), name) for name in _two_columns(some))
        usable = with_direction(first, second)
        if int(usable.sum()) < size:
            return
        if self._shown[0] != state.global_step:
            self._shown = (state.global_step, [])
        self._shown[1].append((first[usable], second[usable]))
        for one in told:
            misses = [one.held_out(*pairs, size) for pairs in self._shown[1]]
            one.held_out(*self._shown[1][misses.index(max(misses))], size)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep cache and sampler in the checkpoint."""
        file = _state_file(args, state)
        if state.is_world_process_zero and file.parent.is_dir() and self._batches is not None:
            assert self.cache is not None
            states = {"cache": self.cache.state_dict(), "sampler": self._batches.state_dict()}
            torch.save(states | {"encoded": self._encoded_all}, file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the model as it was."""
        self._release()

    def _bind(self, batches: DrawnBatches) -> None:
        """Let a sampler choose these batches; its cache is kept from one training to the next."""
        if self.cache is None:
            self._dataset = batches.dataset
            self.cache = EmbeddingCache(len(batches.dataset), self._dim, towers=2)
            self._refresher = Refresher(self.cache)
        elif self._dataset is not batches.dataset:
            raise ParameterError(
                f"this HardBatches holds embeddings of another data set, of {self.cache.size} "
                "samples: make one HardBatches for each data set that is trained on"
            )
        self.sampler = batches.chosen = SpectralBatchSampler(
            self.cache,
            batches.batch_size,
            self._selector,
            coverage=self._coverage,  # type: ignore[arg-type]
            pool_size=self._pool_size,
            seed=batches.seed,
            drop_last=batches.drop_last,
            num_replicas=1,
            rank=0,
        )
        self._batches = batches

    def _warn_of_random_batches(self, state: Any) -> None:
        assert self.cache is not None
        never = self._encode_after is None or self._encode_after >= state.max_steps
        once = self._coverage != "free" and state.num_train_epochs <= 1
        if not (never and once) or isinstance(self._selector, Random):
            return
        if state.is_world_process_zero and not self.cache.filled.any():
            logger.warning(
                "all batches will be random: no sample is known before the second epoch, and there "
                "is one epoch of %d steps. Say HardBatches(..., encode_first=True), or a smaller "
                "encode_after",
                state.max_steps,
            )

    def _resume(self, args: Any, state: Any, batches: int) -> None:
        """Continue from a checkpoint, in an epoch of so many batches for each process."""
        assert self._batches is not None
        assert self.cache is not None
        if not args.ignore_data_skip:  # then the trainer skips what was trained on
            each = args.gradient_accumulation_steps
            self._batches.skip(state.global_step % math.ceil(batches / each) * each)
        saved = _state_file(args, state)
        if not saved.is_file():
            logger.warning(
                "there is no %s: the run is resumed without the embeddings of the one before", saved
            )
            return
        known = torch.load(saved, weights_only=True)
        self.cache.load_state_dict(known["cache"])
        self._batches.load_state_dict(known["sampler"])
        self._encoded_all |= known.get("encoded", False)

    def _capture(self, module: Any, inputs: Any, output: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._captured.append(output["sentence_embedding"].detach())

    def _refresh(self) -> None:
        pieces, self._captured = self._captured, []
        if self._batches is None or self._refresher is None:
            return
        if getattr(self._model, "truncate_dim", None) == self._dim:  # cut by encode() only
            pieces = [rows[:, : self._dim] for rows in pieces]
        ids = self._batches.next_ids()
        shape = (len(ids), self._dim)
        columns = joined(pieces, len(ids))[:2]
        fits = [rows.shape for rows in columns] == [shape, shape]
        several = rank_and_world()[1] > 1
        completed = several and len(ids) < self._batches.batch_size  # with samples of other batches
        if completed or not fits:
            if not (self._warned or completed):
                self._warned = True
                logger.warning(
                    "a training step gave embeddings of shapes %s, expected two of %s: batches "
                    "stay random. %s",
                    [tuple(rows.shape) for rows in pieces],
                    shape,
                    "Matryoshka losses may shorten the embeddings: they cannot be used then"
                    if len(columns) == 2
                    else "Are there two columns of texts, and is the model of this HardBatches "
                    "the one that is trained?",
                )
            if not several:
                return
            ids, columns = [], [torch.empty(0, self._dim)] * 2  # every process has to take part
        self._refresher(torch.tensor(ids, dtype=torch.int64), *columns)

    @property
    def _autos(self) -> list[Auto]:
        return [one for one in parts_of(self._selector) if isinstance(one, Auto)]

    def _encode_if_due(self, args: Any, state: Any) -> None:
        """Encode what is unknown, once, when it is time."""
        if self._encoded_all or self._encode_after is None:
            return
        early = state.global_step < self._encode_after
        if early or (self._encode_after and not all(auto.ready for auto in self._autos)):
            return
        self._encoded_all = True
        self._encode_all(quiet=args.disable_tqdm or not state.is_local_process_zero)

    def _encode_all(self, *, quiet: bool) -> None:
        """Embed the samples that are unknown; every process encodes its share."""
        from tqdm.auto import tqdm  # the trainer's own progress bar

        assert self.cache is not None
        assert self._refresher is not None
        columns = {name: self._dataset[name] for name in _two_columns(self._dataset)}
        rank, world = rank_and_world()
        unknown = (~self.cache.filled).nonzero().squeeze(1)  # (m,)
        parts = torch.split(unknown, 1024 * world) if len(unknown) else ()
        for ids in tqdm(parts, desc="Encoding samples", disable=quiet):
            mine = ids[rank::world]
            towers = [
                self._encoded([texts[i] for i in mine.tolist()], name)
                for name, texts in columns.items()
            ]
            self._refresher(mine, *towers, trained=False)

    def _encoded(self, texts: list[str], column: str) -> Tensor:
        """Embeddings of texts of a column, with the prompt and the task that training gives it."""
        if not texts:
            return torch.empty(0, self._dim)
        prompts, task = self._prompts, self._tasks.get(column)
        prompt = prompts.get(column) if isinstance(prompts, dict) else prompts
        rows: Tensor = self._model.encode(
            texts,
            prompt=prompt or "",  # None would be the model's default prompt, which training omits
            convert_to_tensor=True,
            show_progress_bar=False,
            **({} if task is None else {"task": task}),
        )
        return rows.float().cpu()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._captured = None, []


def _two_columns(dataset: Any) -> list[str]:
    """Names of the two columns that are cached."""
    names = _first_columns(dataset)
    if len(names) < 2:
        raise ParameterError(
            "to encode samples the first two columns must be texts or pictures, found "
            f"{', '.join(names) or 'none'} among {', '.join(dataset.column_names)}"
        )
    return names


def _first_columns(dataset: Any) -> list[str]:
    """Those of the first two columns that are encoded whose entries can be encoded one by one."""
    names = encoded_names(dataset.column_names)[:2]
    return [name for name in names if not isinstance(dataset[0][name], int | float | list)]


def _state_file(args: Any, state: Any) -> Path:
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}", "hard_batches.pt")
