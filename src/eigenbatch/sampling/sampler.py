"""Spectrum-aware batches for any DataLoader: `DataLoader(dataset, batch_sampler=...)`.

Over 300 lines because the arguments of the one class here are explained at length.
"""

import logging
import math
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Literal, get_args

from torch import Tensor
from torch.utils.data import BatchSampler

from eigenbatch.checks import (
    check_callable,
    check_choice,
    check_flags,
    check_type,
    described,
    whole,
)
from eigenbatch.errors import ParameterError
from eigenbatch.processes import rank_and_world
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.coverage import Buffer, Coverage, FreshPools
from eigenbatch.sampling.epoch_pass import EpochPass, check_state
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.neighbour_index import IndexedPools, NeighbourIndex, check_index
from eigenbatch.sampling.order import BATCH, ShuffledEpochs, generator_of, key
from eigenbatch.sampling.sampler_arguments import POOL_BATCHES, check_numbers, check_shards
from eigenbatch.sampling.selection import Request, Selection
from eigenbatch.sampling.working import LIMIT
from eigenbatch.selectors.offer import (
    check_data,
    completes,
    draws_at_random,
    observe_training,
    searched_by,
    seeds_of,
)
from eigenbatch.selectors.random import Random
from eigenbatch.selectors.selector import Selector, restore, state_of

logger = logging.getLogger("eigenbatch")

CoverageName = Literal["epoch", "stream", "free"]
VERSION = 1
HALF = 0.5  # of a batch may be unknown samples, where neighbours are searched
Choice = tuple[Selection, dict[str, Any]]  # and the state of the selector after it


class SpectralBatchSampler(BatchSampler):
    """Batches of ids that a selector chooses by cached embeddings; no forward passes.

    Selection is on the *global* batch; each process yields its share of it. What is drawn depends
    on seed, epoch, cache and selector only, so that all processes agree.

    Args:
        cache: embeddings to choose by; update it in the training step.
        batch_size: samples per batch, over all processes.
        selector: how a batch is chosen, e.g. `Greedy()` or `Neighbours()`.
        pool_size: candidates for a batch, at most all the data; ten batches by default. For
            `Neighbours` and `Auto`, also inside a schedule or rule, 65,536 samples, and with
            coverage "free" all of up to 262,144, which are searched in place.
        coverage: "epoch": every sample once per epoch; "stream": the same across epoch borders;
            "free": a fresh random pool for each batch. Rules such as `NoNearDuplicates` and
            `OnePerGroup` cannot hold where every sample must be used: in "epoch" and "stream" a
            batch for which too few rows are left is filled, with one warning per run.
        seed: of everything random.
        drop_last: False: "epoch" ends with a short batch; "stream" and "free" have only full
            batches, and then one more than fits into the data.
        num_replicas: number of processes; by default as torch.distributed has it.
        rank: of this process; by default as torch.distributed has it.
        background: choose each batch in a thread while the one before is in use, from the cache as
            it was when that one was drawn.
        unknown_share: how much of a batch may be samples without an embedding while there are
            enough others to select from; None: half of it for `Neighbours` and `Auto`, which
            gain from the first batches on, and all of it for other selectors, so that these
            select nothing in the first epoch. In coverage "epoch" every sample of the first
            epoch is unknown, unless the cache was filled before.
        index: proposes neighbours of the seeds beside the random candidates, for caches too large
            to search; with coverage "free" and `Neighbours` or `Auto` only.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Greedy, SpectralBatchSampler
        >>> cache = EmbeddingCache(100, 8)
        >>> sampler = SpectralBatchSampler(cache, 20, Greedy())
        >>> for ids in sampler:
        ...     cache.update(ids, torch.randn(20, 8))  # embeddings of your training step
        >>> len(sampler), bool(cache.filled.all())
        (5, True)
    """

    def __init__(
        self,
        cache: EmbeddingCache,
        batch_size: int,
        selector: Selector,
        *,
        pool_size: int | None = None,
        coverage: CoverageName = "epoch",
        seed: int = 0,
        drop_last: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
        background: bool = False,
        unknown_share: float | None = None,
        index: NeighbourIndex | None = None,
    ) -> None:
        check_type(cache, EmbeddingCache, "cache")
        batch_size = whole(batch_size, "batch_size", least=1)  # torch accepts int only
        check_callable(selector, "selector", "Greedy(64)")
        check_choice(coverage, get_args(CoverageName), "coverage")
        check_flags(drop_last=drop_last, background=background)
        self._epochs = ShuffledEpochs(cache.size, seed)
        super().__init__(self._epochs, batch_size, drop_last)
        check_numbers(cache.size, batch_size, pool_size, num_replicas, rank, unknown_share)
        kept_rows = batch_size if coverage == "free" else 0
        check_data(selector, towers=cache.towers, size=cache.size, kept_rows=kept_rows)
        self.cache, self.selector = cache, selector
        self.unknown_share = None if unknown_share is None else float(unknown_share)
        self._seeds = seeds_of(selector)
        self.index = check_index(index, cache, coverage, self._seeds)
        self.coverage, self.background = coverage, background
        self.pool_size = min(int(pool_size or max(batch_size, self._searched())), cache.size)
        self._random_pool = min(int(pool_size or POOL_BATCHES * batch_size), cache.size)
        self._replica = None if rank is None or num_replicas is None else (rank, num_replicas)
        check_shards(self, *self.replica)
        self.last: Selection | None = None  # of the batch drawn last
        self._warned = False  # that nothing updates the cache
        self._warned_of_epoch = False  # that nobody calls set_epoch
        self._pass: EpochPass | None = None  # begun last
        # For the next iteration, if the epoch is still the one set when it was prepared:
        self._prepared: tuple[int, EpochPass] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration; with the seed it determines the order of ids."""
        return self._epochs.epoch

    @property
    def replica(self) -> tuple[int, int]:
        """Rank and number of processes, as given or as torch.distributed has them now."""
        return self._replica or rank_and_world()

    @property
    def max_wait(self) -> int | None:
        """Batches within which a sample leaves the buffer it entered; None: no bound ("free")."""
        if self.coverage == "free":
            return None
        due = self._seeds
        if due is not None and hasattr(self.selector, "draws_at_random"):
            due = min(due, self.batch_size - self.batch_size // 2)  # while its batches are random
        return Buffer.max_wait(self.pool_size, self.batch_size, due)

    def set_epoch(self, epoch: int) -> None:
        """Use another order from the next iteration on; `.sampler.set_epoch` does the same."""
        self._epochs.set_epoch(epoch)

    def count_epochs_from(self, given: int, meant: int) -> None:
        """Let `set_epoch(given)` mean epoch `meant`, and so on, for a trainer that miscounts.

        Args:
            given: an epoch as the trainer counts.
            meant: the same one as this sampler counts.
        """
        self._epochs.ahead = whole(given, "given") - whole(meant, "meant")

    def __len__(self) -> int:
        whole, rest = divmod(self.cache.size, self.batch_size)
        return whole if self.drop_last else whole + (rest > 0)

    def __iter__(self) -> Iterator[list[int]]:
        rank, replicas = self.replica
        check_shards(self, rank, replicas)
        with closing(self._drawn_ahead() if self.background else self._drawn()) as batches:
            for ids in batches:
                yield ids.tensor_split(replicas)[rank].tolist()

    def statistics(self, batch: int) -> dict[str, float]:
        """How a batch of this epoch was selected, for a logger.

        Unlike `last`, it is about the batch asked for: a loader with workers draws ahead. A state
        taken by `state_dict(consumed)` keeps those of batches drawn but not consumed.

        Args:
            batch: its number in the epoch. Earlier ones, and all but the last 256, are forgotten.

        Returns:
            `Selection.scalars()` of the batch; empty if nothing is known about it.
        """
        whole(batch, "batch", least=0)
        return self._pass.statistics(batch) if self._pass else {}

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """The progress of this epoch, for `load_state_dict`.

        `consumed`: batches of this epoch that training has used; all that were drawn if not
        given. A DataLoader with workers draws ahead: pass the number of batches it returned, or
        use torchdata's StatefulDataLoader, which counts for you.
        """
        current = self._pass_of_epoch()
        if consumed is None:
            consumed, ended = current.drawn, current.ended
        else:
            ended = False
        if not 0 <= whole(consumed, "consumed") <= current.drawn:
            raise ParameterError(
                f"consumed must be between 0 and the {current.drawn} batches drawn in epoch "
                f"{current.epoch}, got {consumed}"
            )
        if not self.background:  # what it was told since the last choice; a thread is ahead of it
            current.keep_selector_state(state_of(self.selector))
        identity = {"version": VERSION, "sampler": self._identity()}
        return identity | current.state_dict(consumed) | {"ended": ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from `state`; on bad input nothing is changed.

        The number of processes may differ. Restore the cache too: later batches depend on it.
        """
        own = {"version": VERSION, "sampler": self._identity()}
        if not isinstance(state, dict):
            raise StateError(f"the state of a sampler must be a dict, got {described(state)}")
        if (found := {name: state.get(name) for name in own}) != own:
            raise StateError(f"this state belongs to a sampler with {found}, this one has {own}")
        check_state(state, (len(self), self.batch_size), self.cache.size)
        resumed = self._new_pass(state["epoch"])
        restore(self.selector, resumed.load_state_dict(state))
        self.count_epochs_from(0, 0)
        # Of a finished epoch nothing is left to resume: a later one may have been set already.
        self.set_epoch(max(self.epoch, resumed.epoch) if resumed.finished else resumed.epoch)
        self._pass = resumed
        self._prepared = None if state["ended"] else (self.epoch, resumed)

    def _drawn(self) -> Generator[Tensor, None, None]:
        """Global batches, each chosen when it is asked for."""
        current = self._begin_pass()
        while not current.finished:
            yield self._hand_out(current, self._choose(self._request(current)))
        current.ended = True

    def _drawn_ahead(self) -> Generator[Tensor, None, None]:
        """Global batches, each chosen in a thread while the one before is in use.

        The cache is read outside the thread: what is chosen never depends on timing. If iteration
        ends early, the selector is reset to its state before the unused choice.
        """
        current = self._begin_pass()
        choice: Future[Choice | None] | None = None
        try:
            with ThreadPoolExecutor(1, "eigenbatch-selection") as thread:

                def submit() -> Future[Choice | None]:
                    return thread.submit(self._choose, self._request(current))

                choice = None if current.finished else submit()
                while choice:
                    ids = self._hand_out(current, choice.result())
                    choice = None if current.finished else submit()
                    yield ids
        finally:
            if choice:
                restore(self.selector, current.selector_state)
        current.ended = True

    def _request(self, current: EpochPass) -> Request | None:
        """What the next choice depends on; None if it was made before a resume."""
        if current.recorded is not None:
            return None
        if self.cache.towers == 2:
            observe_training(self.selector, self.cache.latest, self.batch_size)
        batch, size = current.drawn, self.batch_size
        if self.coverage == "epoch":
            size = min(size, self.cache.size - batch * size)
        random = draws_at_random(self.selector)  # then all is as for Random: the batch, too
        share = self.unknown_share
        if share is None:
            searches = searched_by(self.selector) is not None
            share = HALF if searches and (self.coverage == "free" or not random) else 1
        pool = self._random_pool if random else self.pool_size
        everything = self.coverage == "free" and pool == self.cache.size and self._at_once
        candidates = None
        if not everything:
            candidates = current.coverage.candidates(batch, size, pool if random else None)
        return Request.read(
            self.cache,
            candidates,
            self.selector,
            epoch=current.epoch,
            batch=batch,
            batch_size=size,
            most_unknown=math.ceil(share * size),
            in_place=everything or (self._in_place and not random),
            must_fill=self.coverage != "free",
            generator=generator_of(key(BATCH, self._epochs.seed, current.epoch, batch)),
        )

    def _searched(self) -> int:
        """Candidates for a batch by default."""
        searched = None if self.index else searched_by(self.selector)
        if searched is None:
            return POOL_BATCHES * self.batch_size
        if self.coverage == "stream":  # a sample buffered for most of an epoch defers itself
            return min(searched, self.cache.size // 2)
        if self.coverage == "free" and self.cache.size <= LIMIT and self._at_once:
            return self.cache.size  # copying a part would take longer
        return max(searched, POOL_BATCHES * self.batch_size)

    @property
    def _at_once(self) -> bool:
        """Whether a selector that needs no copy chooses before the cache can change."""
        return not self.background and completes(self.selector)

    @property
    def _in_place(self) -> bool:
        """Whether a search for neighbours may use the rows of the cache themselves."""
        small = self.cache.size <= LIMIT and searched_by(self.selector) is not None
        return self._at_once and small

    def _choose(self, request: Request | None) -> Choice | None:
        if request is None:
            return None
        return request.choose(self.selector), state_of(self.selector)

    def _hand_out(self, current: EpochPass, choice: Choice | None) -> Tensor:
        if choice is None:
            self.last, ids = None, current.recorded
            assert ids is not None
        else:
            self.last, selector_state = choice
            ids = self.last.ids
            current.keep_selector_state(selector_state)
        current.hand_out(ids, self.last)
        return ids

    def _begin_pass(self) -> EpochPass:
        if self._pass and self._pass.finished and not self._warned and self._is_forgotten():
            self._warned = True
            logger.warning(
                "the embedding cache is still empty after an epoch, so batches are random: call "
                "cache.update(ids, z) with the embeddings of every training step"
            )
        again = self._pass is not None and self._pass.ended and self._pass.epoch == self.epoch
        if again and not self._prepared_pass() and not self._warned_of_epoch:
            self._warned_of_epoch = True
            logger.warning(
                "epoch %d begins a second time, with the order it had: call set_epoch(epoch) "
                "before each", self.epoch,
            )  # fmt: skip
        if self.index is not None:
            self.index.refresh()
        self._pass, self._prepared = self._prepared_pass() or self._new_pass(self.epoch), None
        return self._pass

    def _is_forgotten(self) -> bool:
        """Whether a selector that needs embeddings has never got any."""
        return not isinstance(self.selector, Random) and not bool(self.cache.filled.any())

    def _prepared_pass(self) -> EpochPass | None:
        return self._prepared[1] if self._prepared and self._prepared[0] == self.epoch else None

    def _pass_of_epoch(self) -> EpochPass:
        """The pass that a state is about: prepared or begun, or else prepared now."""
        if current := self._prepared_pass():
            return current
        if self._pass and self._pass.epoch == self.epoch:
            return self._pass
        self._prepared = self.epoch, self._new_pass(self.epoch)
        return self._prepared[1]

    def _new_pass(self, epoch: int) -> EpochPass:
        return EpochPass(
            epoch,
            self._new_coverage(epoch),
            batches=len(self),
            batch_size=self.batch_size,
            selector_state=state_of(self.selector),
        )

    def _new_coverage(self, epoch: int) -> Coverage:
        if self.index is not None:
            return IndexedPools(
                self._epochs,
                self.pool_size,
                index=self.index,
                seeds=self._seeds or 1,
                epoch=epoch,
            )
        if self.coverage == "free":
            return FreshPools(self._epochs, self.pool_size, epoch=epoch)
        used = len(self) * self.batch_size
        start = epoch * (self.cache.size if self.coverage == "epoch" else used)
        # With drop_last a random rest never enters; otherwise a selector would decide what is left.
        stop = start + min(used, self.cache.size) if self.coverage == "epoch" else None
        buffer = Buffer(self._epochs, self.pool_size, start=start, stop=stop, due=self._seeds)
        if self.coverage == "stream" and self._pass and self._pass.epoch == epoch - 1:
            self._pass.repeat_recorded()
            buffer.load_state_dict(self._pass.coverage.state_dict())
        elif self.coverage == "stream" and self._pass and self._pass.epoch == epoch:
            buffer.load_state_dict(self._pass.start)
        return buffer

    def _identity(self) -> dict[str, Any]:
        return {
            "size": self.cache.size,
            "batch_size": self.batch_size,
            "pool_size": self.pool_size,
            "coverage": self.coverage,
            "seed": self._epochs.seed,
            "drop_last": self.drop_last,
            "selector": type(self.selector).__name__,
        } | ({} if self.unknown_share is None else {"unknown_share": self.unknown_share})
