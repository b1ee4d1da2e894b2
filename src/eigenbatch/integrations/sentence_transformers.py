"""Planned batches for SentenceTransformerTrainer, from the embeddings that training makes anyway.

hard = HardBatches(model)
args = SentenceTransformerTrainingArguments(..., batch_sampler=hard)
trainer = SentenceTransformerTrainer(model, args, ..., callbacks=[hard])
"""

import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from eigenbatch.batches.auto import Auto
from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.neighbours import Neighbours
from eigenbatch.batches.planner import Planner, Random, Selector, as_planner
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.checks import described, whole
from eigenbatch.errors import ArgumentTypeError, ParameterError
from eigenbatch.integrations.carried import Refresher, early_fill
from eigenbatch.integrations.columns import LABELS, check_not_split, encoded_names, joined
from eigenbatch.missing import missing
from eigenbatch.processes import rank_and_world

try:
    from transformers import TrainerCallback
except ImportError as reason:
    raise missing("transformers") from reason

logger = logging.getLogger("eigenbatch")

PAIRS = 512
"""Pairs that Auto compares, of those held out and of those trained on."""


class SavedHardBatches(NamedTuple):
    """What is pickled of a `HardBatches`: its settings, without model, data and embeddings."""

    planner: str
    encode_after: int | str | None


class HardBatches(TrainerCallback):
    """Batch sampler and callback in one: plans batches by cached anchors and positives.

    The first two columns are two towers of a cache that every training step updates, without extra
    forward passes; further columns, such as hard negatives, are trained on only. Data sets to
    evaluate have random batches; a DatasetDict to train on is refused. A loss may encode a column
    in pieces, as the Cached... family does. From a Matryoshka loss without the full size nothing is
    captured: the batches then stay as the cache was, and a warning says so. Cache and sampler are
    saved in checkpoints: a resumed run continues with the batches of the whole one.

    Args:
        model: the SentenceTransformer that is trained.
        planner: such as `Neighbours()`, the default without `held_out`, or `Greedy()`.
        held_out: a Dataset of pairs that are not trained on. Batches are then hard only while what
            they teach carries over to these (`Auto`).
        tau: temperature of the loss, 1 / scale: 0.05 is the default of sentence-transformers.
        encode_after: encode all samples once after so many steps, so that the first epoch is
            planned too; 0: before training, for a pretrained model; None: never. "auto": after 100
            steps, where it takes at most 5 % of the training time.
        groups: one integer per sample; samples of one group are kept apart.
    """

    def __init__(
        self,
        model: Any,
        planner: Planner | Selector | None = None,
        *,
        held_out: Any = None,
        tau: float | Callable[[], float] = 0.05,
        encode_after: int | Literal["auto"] | None = "auto",
        groups: Any = None,
    ) -> None:
        if encode_after not in (None, "auto"):
            whole(encode_after, "encode_after", least=0)
        names = ("get_embedding_dimension", "get_sentence_embedding_dimension")  # new and old name
        dimension = next((getattr(model, name) for name in names if hasattr(model, name)), None)
        sparse = hasattr(model, "sparsity")  # a SparseEncoder
        if sparse or dimension is None or not hasattr(model, "register_forward_hook"):
            raise ArgumentTypeError(f"model must be a SentenceTransformer, got {described(model)}")
        self._model, self._dim = model, int(dimension())
        if held_out is not None:
            if planner is not None:
                raise ParameterError("held_out= makes batches by Auto: give it or planner=")
            _two_columns(held_out)
            planner = Auto(
                tau,
                held_out=lambda: self._some(held_out),
                trained=lambda: self._some(self._dataset),
            )
        self._planner = Neighbours() if planner is None else as_planner(planner)
        self._tau, self._groups, self._encode_after = tau, groups, encode_after
        self._fill_at: int | None = None  # the step after which all samples are encoded
        self._dataset: Any = None  # that is trained on
        self.cache: EmbeddingCache | None = None
        self.sampler: SpectralBatchSampler | None = None
        self._refresher: Refresher | None = None
        self._batches: _Batches | None = None  # that are trained on
        self._done = 0  # batches of this epoch that this process has trained on
        self._hook: Any = None
        self._captured: list[Tensor] = []
        self._warned = False
        self._prompts: Any = None  # of the training: by column, or one for all
        self._tasks: dict[str, str] = {}  # of a Router, by column

    def __reduce__(self) -> tuple[type[SavedHardBatches], tuple[Any, ...]]:
        """The trainer pickles its arguments, and so its batch sampler, into every checkpoint."""
        return SavedHardBatches, (self._planner.name, self._encode_after)

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
        return _Batches(dataset, batch_size, drop_last, self._model, generator, seed)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        """Plan the batches of the training data, hook the model, continue from a checkpoint."""
        check_not_split(args)
        self._release()
        self._prompts = getattr(args, "prompts", None)
        self._tasks = getattr(args, "router_mapping", None) or {}
        self._bind(_batches_of(train_dataloader))
        assert self.cache is not None
        assert self.sampler is not None
        size, n = self.cache.size, self.sampler.batch_size * rank_and_world()[1]
        random = isinstance(self._planner, Random)
        self._fill_at = None if random else early_fill(self._encode_after, size, n, state.max_steps)
        if self._fill_at is not None:
            _two_columns(self._dataset)  # raises now rather than after so many steps
        self._done = 0
        if state.global_step:
            self._resume(args, state, len(train_dataloader))
        self._warn_of_random_batches(state)
        self._encode_if_due(args, state)
        self._hook = self._model.register_forward_hook(self._capture)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the batches of this epoch; a resumed one begins where it was saved."""
        assert self._batches is not None
        self._done, self._batches.skipped = self._batches.skipped, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the embeddings of the step."""
        self._refresh()
        self._encode_if_due(args, state)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store those of a micro-batch, with gradient accumulation."""
        self._refresh()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep cache and sampler in the checkpoint; every process calls this."""
        if self.cache is None or self.sampler is None:
            return
        self.cache.gather()
        file = _state_file(args, state)
        if state.is_world_process_zero and file.parent.is_dir():
            sampler = self.sampler.state_dict()
            consumed = min(self._done * rank_and_world()[1], sampler["consumed"])
            sampler |= {"consumed": consumed, "ended": False}
            torch.save({"cache": self.cache.state_dict(), "sampler": sampler}, file)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the model as it was."""
        self._release()

    def _bind(self, batches: "_Batches") -> None:
        """Let a sampler plan these batches; its cache is kept from one training to the next."""
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
            self._planner,
            tau=self._tau,
            groups=self._groups,
            seed=batches.seed,
            drop_last=batches.drop_last,
            shard=False,
        )
        self._batches = batches

    def _warn_of_random_batches(self, state: Any) -> None:
        assert self.cache is not None
        never = self._fill_at is None or self._fill_at >= state.max_steps
        single = state.num_train_epochs <= 1 and not isinstance(self._planner, Random)
        if never and single and state.is_world_process_zero and not self.cache.filled.any():
            logger.warning(
                "all batches will be random: no sample is known before the second epoch, and there "
                "is one epoch of %d steps. Say HardBatches(..., encode_after=0), or a smaller "
                "number of steps",
                state.max_steps,
            )

    def _resume(self, args: Any, state: Any, batches: int) -> None:
        """Continue from a checkpoint, in an epoch of so many batches for each process."""
        assert self._batches is not None
        assert self.cache is not None
        assert self.sampler is not None
        world, each = rank_and_world()[1], args.gradient_accumulation_steps
        done = state.global_step % math.ceil(batches / each) * each
        self._batches.skipped = done
        saved = _state_file(args, state)
        if not saved.is_file():
            logger.warning(
                "there is no %s: the run is resumed without the embeddings of the one before", saved
            )
            return
        known = torch.load(saved, weights_only=True)
        self.cache.load_state_dict(known["cache"])
        sampler = known["sampler"]
        if not args.ignore_data_skip:  # then the trainer draws and drops what was trained on
            if sampler["consumed"] not in (done * world, batches * world if not done else -1):
                raise ParameterError(
                    f"the checkpoint was saved after {sampler['consumed']} batches of an epoch, "
                    f"but the trainer would skip {done * world}, perhaps because the number of "
                    "processes or of accumulated batches was changed: resume with "
                    "ignore_data_skip=True"
                )
            sampler |= {"consumed": 0} if done else {}
        self.sampler.load_state_dict(sampler)

    def _capture(self, module: Any, inputs: Any, output: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._captured.append(output["sentence_embedding"].detach())

    def _refresh(self) -> None:
        pieces, self._captured = self._captured, []
        if self.sampler is None or self._refresher is None:
            return
        if getattr(self._model, "truncate_dim", None) == self._dim:  # cut by encode() only
            pieces = [rows[:, : self._dim] for rows in pieces]
        rank, world = rank_and_world()
        ids = self.sampler.ids(self._done * world + rank)
        self._done += 1
        shape = (len(ids), self._dim)
        columns = joined(pieces, len(ids))[:2]
        completed = world > 1 and len(ids) < self.sampler.batch_size  # with samples of other ones
        if [rows.shape for rows in columns] == [shape, shape] and not completed:
            self._refresher(torch.tensor(ids, dtype=torch.int64), *columns)
        elif not (self._warned or completed):
            self._warned = True
            logger.warning(
                "a training step gave embeddings of shapes %s, expected two of %s: batches stay "
                "random. %s",
                [tuple(rows.shape) for rows in pieces],
                shape,
                "Matryoshka losses may shorten the embeddings: they cannot be used then"
                if len(columns) == 2
                else "Are there two columns of texts, and is the model of this HardBatches the "
                "one that is trained?",
            )

    def _encode_if_due(self, args: Any, state: Any) -> None:
        """Encode all samples, once, when it is time; a resumed run may have done so."""
        assert self.cache is not None
        if self._fill_at is None or self.cache.fills or state.global_step < self._fill_at:
            return
        columns = {name: self._dataset[name] for name in _two_columns(self._dataset)}

        def embed(ids: Tensor) -> tuple[Tensor, Tensor]:
            first, second = (
                self._encoded([texts[i] for i in ids.tolist()], name)
                for name, texts in columns.items()
            )
            return first, second

        quiet = args.disable_tqdm or not state.is_local_process_zero
        parts = [(ids, ids) for ids in torch.split(torch.arange(self.cache.size), 1024)]
        self.cache.fill(embed, parts, progress=not quiet)

    def _some(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Embeddings of some pairs of a data set, evenly spaced."""
        step = -(-len(dataset) // PAIRS)
        some = dataset.select(range(0, len(dataset), step))
        first, second = (self._encoded(list(some[name]), name) for name in _two_columns(some))
        return first, second

    def _encoded(self, texts: list[str], column: str) -> Tensor:
        """Embeddings of texts of a column, with the prompt and the task that training gives it."""
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


class _RandomOrder(Sampler[int]):
    """Passes the epoch on: with several processes accelerate tells it to the innermost sampler.

    It is no `RandomSampler`, because accelerate puts its own in place of those.
    """

    def __init__(
        self, dataset: Any, generator: torch.Generator, tell: Callable[[int], None]
    ) -> None:
        self.generator, self._tell = generator, tell
        self._order = RandomSampler(dataset, generator=generator)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def set_epoch(self, epoch: int) -> None:
        self._tell(epoch)


class _Batches(BatchSampler):
    """Batches of one data set: random ones, or those of a sampler.

    The trainer asks for batches of every data set, to train and to evaluate. Which of them it
    trains on is known when training begins: only that one gets a sampler.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        drop_last: bool,
        model: torch.nn.Module,
        generator: torch.Generator | None,
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed) if generator is None else generator
        order = _RandomOrder(dataset, generator, self.set_epoch)
        super().__init__(order, batch_size, drop_last)
        self.dataset, self.seed, self._model = dataset, seed, model
        self.chosen: SpectralBatchSampler | None = None
        self.skipped = 0  # batches of each process that a resumed run skips in its first epoch
        self._warned = False

    def __iter__(self) -> Iterator[list[int]]:
        if self.chosen is not None:
            return iter(self.chosen)
        return self._random()

    def _random(self) -> Iterator[list[int]]:
        yield from super().__iter__()
        # The trainer puts a model into evaluation mode before it evaluates.
        if self._model.training and not self._warned:
            self._warned = True
            logger.warning(
                "an epoch was trained on random batches, because the trainer does not know that "
                "HardBatches is also a callback: pass callbacks=[hard]"
            )

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before an epoch."""
        if self.chosen is not None:
            self.chosen.set_epoch(epoch)


def _batches_of(loader: Any) -> _Batches:
    """Ours among the samplers that the trainer and accelerate put around each other."""
    sampler = getattr(loader, "batch_sampler", None)
    while sampler is not None and not isinstance(sampler, _Batches):
        if hasattr(sampler, "batch_samplers"):
            raise ParameterError(
                "HardBatches trains on one Dataset, got a DatasetDict: join its parts with "
                "datasets.concatenate_datasets(list(parts.values()))"
            )
        sampler = getattr(sampler, "batch_sampler", None)
    if sampler is None:
        raise ParameterError(
            "the trainer does not train on the batches of this HardBatches: pass it in the "
            "training arguments too, batch_sampler=hard, and train on a Dataset with a length"
        )
    return sampler


def _two_columns(dataset: Any) -> list[str]:
    """Names of the two columns that are cached."""
    names = _first_columns(dataset)
    if len(names) < 2:
        raise ParameterError(
            "to encode samples the first two columns must be texts or pictures, found "
            f"{', '.join(names) or 'none'} among {', '.join(dataset.column_names)}"
        )
    if scored := LABELS & set(dataset.column_names):
        logger.warning(
            "the data has a column %r: its pairs are taken as positives, whatever it says",
            min(scored),
        )
    return names


def _first_columns(dataset: Any) -> list[str]:
    """Those of the first two columns that are encoded whose entries can be encoded one by one."""
    names = encoded_names(dataset.column_names)[:2]
    return [name for name in names if not isinstance(dataset[0][name], int | float | list)]


def _state_file(args: Any, state: Any) -> Path:
    return Path(str(args.output_dir), f"checkpoint-{state.global_step}", "hard_batches.pt")
