"""Batches for any DataLoader, an epoch planned at once: `DataLoader(data, batch_sampler=...)`.

An epoch is one array of ids, batch after batch. It begins as a random permutation. When a part of
it is reached, a planner arranges the ids of that part by their cached embeddings; after a
`cache.fill` it arranges what is left anew. Rows that were handed out never change. Letters: N
samples, n samples of a batch, K of them known (with an embedding).
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from dataclasses import replace as changed
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, Dataset

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.plan import Plan, arranged
from eigenbatch.batches.planner import Planner, Random, Selector, as_planner
from eigenbatch.checks import (
    check_entries,
    check_flags,
    check_type,
    described,
    ids_tensor,
    is_count,
    is_dict,
    is_flag,
    is_integer_tensor,
    whole,
)
from eigenbatch.core.contrast import positive_scalar
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError, StateError
from eigenbatch.processes import (
    check_alike,
    in_all_processes,
    in_first_process,
    rank_and_world,
)

logger = logging.getLogger("eigenbatch")

MADE_BY = 2
"""Raised by hand when the same embeddings begin to give other batches; golden runs tell."""

T_co = TypeVar("T_co", covariant=True)

ORDER, PLAN = 0, 1  # what random numbers are for
DRAWN, PLANNED, FILLS = 0, 1, 2
"""Entries of the progress of an epoch: batches handed out, batches planned, fills of the cache when
they were."""


class SpectralBatchSampler(BatchSampler):
    """Batches of ids, an epoch planned at once from cached embeddings; no forward passes.

    Every sample comes once per epoch. Samples without an embedding share random batches. The plan
    is made when the epoch begins, and again for the rest of it after `cache.fill`.

    With several processes all draw alike: before a plan the newest embeddings are gathered, one
    process plans, all receive the plan.

    Args:
        cache: embeddings to plan by; update it in the training step.
        batch_size: samples per batch, over all processes.
        planner: `Neighbours()` for retrieval, `Auto(...)` with held-out pairs, `Random()`; or a
            selector such as `Greedy()`, which takes batches in turn from a window of samples.
        tau: temperature of the loss (or a function that returns it): the miss is predicted with it.
        groups: (N,) integers; samples of one group (captions of one picture) are kept apart.
        seed: of everything random.
        drop_last: False: the epoch ends with a short batch of the samples left over.
        shard: each process yields its slice of every batch; False: all yield whole batches, for
            wrappers that split (accelerate, sentence-transformers).
        horizon: samples planned at once, as an upper bound on memory; a longer epoch is planned
            part by part as it is reached.
        pool_size: window of a selector, or with `replace` its pool; ten batches by default.
        replace: for selectors: every batch from a fresh random pool, as printed in the paper; then
            samples may come several times per epoch or never.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Neighbours, SpectralBatchSampler
        >>> cache = EmbeddingCache(100, 8, towers=2)
        >>> batches = SpectralBatchSampler(cache, 20, Neighbours())
        >>> for ids in batches:
        ...     z1, z2 = torch.randn(2, 20, 8)  # embeddings of your training step
        ...     cache.update(ids, z1, z2)
        >>> len(batches), bool(cache.filled.all())
        (5, True)
    """

    def __init__(
        self,
        cache: EmbeddingCache,
        batch_size: int,
        planner: Planner | Selector,
        *,
        tau: float | Callable[[], float] = 0.07,
        groups: Tensor | Sequence[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
        shard: bool = True,
        horizon: int = 262_144,
        pool_size: int | None = None,
        replace: bool = False,
    ) -> None:
        check_type(cache, EmbeddingCache, "cache")
        n = whole(batch_size, "batch_size", least=1)
        check_flags(drop_last=drop_last, shard=shard, replace=replace)
        if n > cache.size:
            raise ShapeError(
                f"batch_size is {n} but the cache has {cache.size} samples: make batches of at "
                f"most {cache.size}, or EmbeddingCache(len(dataset), ...)"
            )
        if whole(horizon, "horizon") < n:
            raise ShapeError(f"horizon is {horizon} but batch_size is {n}: plan at least one batch")
        if pool_size is not None and whole(pool_size, "pool_size") < n:
            raise ShapeError(
                f"pool_size is {pool_size} but batch_size is {n}: a batch is chosen from a pool at "
                "least as large (None: ten batches)"
            )
        if not callable(tau):
            positive_scalar(tau, "tau")
        self.cache, self.batch_size, self.drop_last = cache, n, drop_last
        self.sampler: Any = self  # Lightning looks for `set_epoch` there
        self.planner, self._replace = as_planner(planner), replace
        self.planner.draw_from(pool_size, replace=replace)
        self.tau, self.shard, self.groups = tau, shard, _groups(groups, cache.size)
        self.seed, self.horizon = whole(seed, "seed", least=0), whole(horizon, "horizon") // n * n
        self.epoch = 0
        self.ahead = 0  # epochs that a trainer counts more than were drawn
        self.plan: Plan | None = None
        self._begun: _Epoch | None = None
        self._warned: set[str] = set()
        check_shards(self)

    def __len__(self) -> int:
        full, rest = divmod(self.cache.size, self.batch_size)
        return full if self.drop_last else full + (rest > 0)

    def set_epoch(self, epoch: int) -> None:
        """Use another order from the next iteration on."""
        self.epoch = max(0, whole(epoch, "epoch", least=0) - self.ahead)

    def __iter__(self) -> Iterator[list[int]]:
        check_shards(self)
        _check_wrapper(self.shard)
        return self._batches()

    def _batches(self) -> Iterator[list[int]]:
        current = self._begin()
        begin, current.begin = current.begin, None
        rank, world = rank_and_world() if self.shard else (0, 1)
        n, full = self.batch_size, self.cache.size // self.batch_size
        for batch in range(begin or 0, len(self)):
            if batch >= current.progress[DRAWN]:
                late = batch >= current.progress[PLANNED]
                filled = current.progress[FILLS] != self.cache.fills
                if batch < full and (late or (filled and not isinstance(self.planner, Random))):
                    self._arrange(current, batch, min(full, batch + self.horizon // n))
                current.progress[DRAWN] = batch + 1
            ids = current.order[batch * n : (batch + 1) * n]
            yield (ids if world == 1 else ids.tensor_split(world)[rank]).tolist()
        current.ended = True
        if not self.cache.updates and not isinstance(self.planner, Random):
            self._warn(
                "forgotten",
                "the embedding cache is still empty after an epoch, so batches are random: call "
                "cache.update(ids, z1, z2) with the embeddings of every training step",
            )

    def ids(self, batch: int) -> list[int]:
        """The ids of a batch of this epoch, of all processes, if it was handed out."""
        current, batch = self._begun, whole(batch, "batch")
        if current is None or not 0 <= batch < current.progress[DRAWN]:
            return []
        return current.order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist()

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The progress of this epoch, for `load_state_dict`; the same in all processes.

        All states of an epoch share its array of ids, as states of a module share its parameters:
        a loader with workers draws ahead, and what it drew is repeated after a resume.

        Args:
            consumed: batches of this epoch that training has used; all that were drawn by default.
                A DataLoader with workers draws ahead: pass the number of batches it returned, or
                use torchdata's StatefulDataLoader, which counts for you.
        """
        current = self._begun
        if current is None or current.epoch != self.epoch:
            current = self._begun = self._new_epoch()
        drawn = int(current.progress[DRAWN])
        used = drawn if consumed is None else whole(consumed, "consumed")
        if not 0 <= used <= drawn:
            raise ParameterError(
                f"consumed must be between 0 and the {drawn} batches drawn in epoch "
                f"{current.epoch}, got {consumed}"
            )
        current.keep(self.planner)
        return {
            "sampler": self._identity(),
            "epoch": current.epoch,
            "consumed": used,
            "ended": current.ended and consumed is None,
            "order": current.order,
            "progress": current.progress,
            "planner": current.planner,
            "plan": current.plan,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from `state`; on bad input nothing is changed.

        The number of processes may differ. Restore the cache too: later plans depend on it.
        """
        own = self._identity()
        if not isinstance(state, dict):
            raise StateError(f"the state of a sampler must be a dict, got {described(state)}")
        if (found := state.get("sampler")) != own:
            raise StateError(f"this state belongs to a sampler with {found}, this one has {own}")
        entries: dict[str, Callable[[Any], bool]] = {
            "sampler": is_dict,
            "epoch": is_count,
            "consumed": is_count,
            "ended": is_flag,
            "order": self._is_order,
            "progress": lambda progress: is_integer_tensor(progress, (3,)),
            "planner": is_dict,
            "plan": _is_plan,
        }
        check_entries(state, "sampler", entries, error=StateError)
        consumed, drawn = state["consumed"], int(state["progress"][DRAWN])
        if not consumed <= drawn <= len(self):
            raise StateError(
                f"{consumed} batches are said to be consumed and {drawn} drawn, of {len(self)}: "
                "the state is damaged"
            )
        self.planner.load_state_dict(state["planner"])
        with torch.inference_mode(False):
            order, progress = (state[name].to("cpu", copy=True) for name in ("order", "progress"))
        begin = None if state["ended"] else consumed
        self._begun = _Epoch(state["epoch"], order, progress, begin, plan=dict(state["plan"]))
        self.plan = Plan(**state["plan"]) if state["plan"] else None
        # Of a finished epoch nothing is left: a later one may have been set already.
        over = consumed == len(self)
        self.epoch = max(self.epoch, state["epoch"]) if over else state["epoch"]

    def _begin(self) -> "_Epoch":
        """The epoch that was resumed, or a new one."""
        current = self._begun
        if current is not None and current.epoch == self.epoch:
            if current.begin is not None:
                return current
            if current.ended:
                self._warn(
                    "epoch",
                    f"epoch {self.epoch} begins a second time, with the order it had: call "
                    "set_epoch(epoch) before each",
                )
        self._begun = self._new_epoch()
        return self._begun

    def _new_epoch(self) -> "_Epoch":
        generator = _generator(ORDER, self.seed, self.epoch)
        with torch.inference_mode(False):  # or it could never be changed outside of it
            order = torch.randperm(self.cache.size, generator=generator, dtype=torch.int32)
            return _Epoch(self.epoch, order, torch.zeros(3, dtype=torch.int64), begin=0)

    def _arrange(self, current: "_Epoch", first: int, stop: int) -> None:
        """Plan the batches `first` to `stop` of an epoch, from its ids at these places."""
        n, cache, planner = self.batch_size, self.cache, self.planner
        part, fills = slice(first * n, stop * n), cache.fills
        ids = current.order[part].long().sort().values  # a file is read in its order
        planner.handed_out = current.epoch * len(self) + first
        random = isinstance(planner, Random)  # no embeddings: all processes draw the same batches
        if not random:
            place = {"epoch": current.epoch, "batch": first, "fills of the cache": fills}
            check_alike("sampler", place | self._identity())
            cache.gather(ids)
            if int((cache.age(ids) >= 0).sum()) >= n:
                in_all_processes(lambda: planner.prepare(n))

        def make() -> tuple[Tensor, Plan, dict[str, Any]]:
            order, plan = arranged(
                ids,
                n,
                cache,
                planner,
                tau=self.tau() if callable(self.tau) else self.tau,
                groups=self.groups,
                replace=self._replace,
                generator=_generator(PLAN, self.seed, current.epoch, first, fills),
            )
            return order.int(), plan, planner.state_dict()

        order, plan, state = in_first_process(make, everywhere=random)
        planner.load_state_dict(state)
        self.plan = changed(plan, epoch=current.epoch, first=first)
        current.order[part] = order.flatten()
        current.plan.update(asdict(self.plan))
        current.progress[PLANNED], current.progress[FILLS] = stop, fills
        current.keep(planner)
        if plan.together:
            self._warn(
                "together",
                f"{plan.together} samples of {len(ids)} stand with a near-duplicate or a sample of "
                "their group: there are too many of them to be kept apart",
            )

    def _identity(self) -> dict[str, Any]:
        return {
            "size": self.cache.size,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "planner": self.planner.name,
            "horizon": self.horizon,
        }

    def _is_order(self, order: object) -> bool:
        if not is_integer_tensor(order, (self.cache.size,)):
            return False
        low, high = order.aminmax()
        if low < 0 or high >= self.cache.size:
            return False
        return self._replace or bool((order.long().bincount() == 1).all())

    def _warn(self, kind: str, text: str) -> None:
        """Say something of a kind once, in the first process."""
        if kind not in self._warned and rank_and_world()[0] == 0:
            logger.warning(text)
        self._warned.add(kind)


@dataclass(slots=True, eq=False)
class _Epoch:
    """One epoch: its ids, how far it is, the plan and its planner, shared with saved states."""

    epoch: int
    order: Tensor  # (N,) int32
    progress: Tensor  # (3,) batches handed out, planned, and fills of the cache
    begin: int | None  # the batch that the next iteration begins with; None: it has begun
    ended: bool = False  # StopIteration was raised
    planner: dict[str, Any] = field(default_factory=dict)  # its state
    plan: dict[str, Any] = field(default_factory=dict)  # in force, for loggers

    def keep(self, planner: Planner) -> None:
        """Remember the planner as it is now."""
        self.planner.clear()
        self.planner.update(planner.state_dict())


class IndexedDataset(Dataset[tuple[int, T_co]]):
    """Any map-style dataset, whose items become `(index, item)`.

    The index is the id under which the training step updates the cache.

    Args:
        dataset: anything with `__getitem__` and `__len__`.

    Examples:
        >>> from eigenbatch import IndexedDataset
        >>> IndexedDataset(["cat", "dog"])[1]
        (1, 'dog')
    """

    def __init__(self, dataset: Dataset[T_co]) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise ArgumentTypeError(
                "dataset must be a map-style dataset, with __getitem__ and __len__, got "
                f"{described(dataset)}"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, T_co]:
        self._check(index)
        return index, self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, T_co]]:
        """A whole batch, by the dataset's own batched read where it has one."""
        for index in indices:
            self._check(index)
        read: Any = getattr(self.dataset, "__getitems__", None)
        items = read(indices) if read else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(
                f"sample {index} was asked for but the dataset has {len(self)}: an EmbeddingCache "
                "and its sampler need size=len(dataset)"
            )


def check_shards(sampler: SpectralBatchSampler) -> None:
    """Raise unless every batch can be divided among the processes."""
    world = rank_and_world()[1] if sampler.shard else 1
    if sampler.batch_size % world:
        raise ShapeError(
            f"batch_size is {sampler.batch_size} for {world} processes: it is the global batch "
            "and must be a multiple of their number"
        )
    rest = sampler.cache.size % sampler.batch_size
    if not sampler.drop_last and 0 < rest < world:
        raise ShapeError(
            f"the last batch has {rest} samples for {world} processes: use drop_last=True"
        )


def _check_wrapper(shard: bool) -> None:
    """Raise if accelerate would take slices or batches away from what a process draws."""
    if rank_and_world()[1] == 1 or "accelerate" not in sys.modules:
        return
    frame = sys._getframe(1)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        owner = frame.f_code.co_qualname.partition(".")[0]
        if owner == "DataLoaderDispatcher":
            raise ParameterError(
                "with dispatch_batches=True one process draws for all, but a plan needs all: use "
                "DataLoaderConfiguration(dispatch_batches=False)"
            )
        if owner == "BatchSamplerShard" and shard:
            raise ParameterError(
                "accelerate divides batches among processes, and so would this sampler: pass "
                "SpectralBatchSampler(..., shard=False)"
            )


def _is_plan(entries: object) -> bool:
    names = {entry.name for entry in fields(Plan)}
    return isinstance(entries, dict) and (not entries or set(entries) == names)


def _groups(groups: Tensor | Sequence[int] | None, size: int) -> Tensor | None:
    if groups is None:
        return None
    tensor = ids_tensor(groups, "groups")
    if tensor.shape != (size,) or tensor.is_floating_point():
        raise ShapeError(
            f"groups must hold one integer for each of {size} samples, got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}"
        )
    return tensor.long().cpu()


def _generator(*key: int) -> torch.Generator:
    """Randomness that depends on these numbers only, the same in every process."""
    sequence = np.random.SeedSequence(key)
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
