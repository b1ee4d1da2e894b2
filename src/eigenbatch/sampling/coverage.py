"""Which samples may enter the next batch: three ways to cover the data.

A coverage offers candidates and records what was taken; it does not use embeddings. `Buffer` is for
"epoch" and "stream", `FreshPools` for "free".
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenbatch.checks import check_entries, is_count, is_integer_tensor
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.order import POOL, ShuffledEpochs, key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Distinct ids, the longest buffered first; the first `due` of them must be taken.

    A selector may start from the first `seeds` of them: their neighbours are among the candidates.
    """

    ids: Tensor  # (k,)
    due: int
    seeds: int = 0


Places = NDArray[np.int64]
NO_PLACES: Places = np.empty((0, 2), dtype=np.int64)


class Coverage(Protocol):
    """What the sampler asks of a way to cover the data."""

    def candidates(self, batch: int, batch_size: int, random_pool: int | None = None) -> Candidates:
        """The ids from which batch number `batch` may take `batch_size`.

        random_pool: the batch will be random; offer what a pool of this size would hold.
        """

    def take(self, ids: list[int]) -> None:
        """Record that these candidates are in a batch."""

    def state_dict(self) -> dict[str, Any] | None:
        """Everything needed to continue identically, or None."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from a saved state."""


class Buffer:
    """A buffer of ids, filled in the order of `ShuffledEpochs`.

    Half of every batch consists of the ids that were buffered longest. So every id leaves within
    `max_wait` batches, and samples that a selector avoids are at most twice as frequent in the
    buffer as in the data. While the buffer runs empty at the end of an epoch, this share grows:
    more choice would only collect the worst samples in the last batches.

    The place of an id is its position in all epochs laid end to end.
    """

    def __init__(
        self,
        epochs: ShuffledEpochs,
        capacity: int,
        *,
        start: int,
        stop: int | None = None,
        due: int | None = None,
    ) -> None:
        """Places `start` up to `stop` (None: for ever) of all epochs laid end to end.

        `due`: how many of a batch must be those buffered longest; None: half, as above.
        """
        self._epochs, self._capacity, self._due = epochs, capacity, due
        self._position, self._stop = start, stop
        self._waiting = NO_PLACES  # (w, 2) buffered ids with places, the longest buffered first
        self._deferred = NO_PLACES  # (w, 2) next places of ids that are still buffered
        self._is_buffered = np.zeros(len(epochs), dtype=bool)
        self._lap, self._order = -1, torch.empty(0)

    @staticmethod
    def max_wait(capacity: int, batch_size: int, due: int | None = None) -> int:
        """Batches after which every id has left the buffer.

        When it enters, at most capacity - 1 - (freely chosen ids) ids stay before it, and every
        batch takes the ids that were buffered longest.
        """
        least = batch_size - batch_size // 2 if due is None else min(due, batch_size)
        return 1 + -(-(capacity - batch_size) // least)

    def candidates(self, batch: int, batch_size: int, random_pool: int | None = None) -> Candidates:
        """All buffered ids, after the buffer was filled up; or those a small buffer would hold."""
        self._fill(batch_size)
        capacity = min(random_pool or self._capacity, self._capacity)
        count = min(len(self._waiting), capacity)
        if self._due is not None and random_pool is None:
            due = min(self._due, batch_size)
        else:
            due = batch_size - batch_size // 2 * count**2 // capacity**2
        return Candidates(ids=torch.from_numpy(self._waiting[:count, 0].copy()), due=due)

    def take(self, ids: list[int]) -> None:
        """Remove ids; raises StateError for one that is not buffered."""
        self._fill(len(ids))
        for taken in ids:
            if not self._is_buffered[taken]:
                raise StateError(
                    f"a batch takes id {taken}, which is not in the buffer: "
                    "the recorded batches are damaged, or from another sampler or version"
                )
            self._is_buffered[taken] = False
        left = self._is_buffered[self._waiting[:, 0]]
        self._waiting = self._waiting.compress(left, axis=0)  # nine times as fast as [left]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the constructor's arguments."""
        return {
            "position": self._position,
            "waiting": torch.from_numpy(self._waiting.copy()),  # (w, 2)
            "deferred": torch.from_numpy(self._deferred.copy()),  # (w, 2)
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Hold the same ids as the buffer that `state` was taken from."""
        if state is None:
            raise StateError("this state has no 'start': it is from coverage='free'")
        entries = {"position": is_count, "waiting": self._are_places, "deferred": self._are_places}
        check_entries(state, "sampler's 'start'", entries, error=StateError)
        waiting, deferred = (
            state[name].to("cpu", torch.int64, copy=True).numpy()
            for name in ("waiting", "deferred")
        )
        if not len(np.unique(waiting[:, 0])) == len(waiting) <= self._capacity:
            raise StateError("the state holds one id twice or more ids than fit: it is damaged")
        self._position = state["position"]
        self._waiting, self._deferred = waiting, deferred
        self._is_buffered[:] = False
        self._is_buffered[waiting[:, 0]] = True

    def _are_places(self, value: object) -> bool:
        """Whether a saved value has rows (id, place) with ids of this data set."""
        if isinstance(value, Tensor) and value.shape == (0, 2):
            return True  # once saved without a dtype of its own
        if not is_integer_tensor(value, (None, 2)):
            return False
        return bool((value >= 0).all() and (value[:, 0] < len(self._epochs)).all())

    def _fill(self, least: int) -> None:
        """Add ids; one whose next place comes while it is still buffered is deferred."""
        deferred, self._deferred = self._deferred, NO_PLACES
        self._admit(deferred)
        while len(places := self._read(self._room(least))):
            self._admit(places)

    def _admit(self, places: Places) -> None:
        """Buffer ids that are not there yet while there is room; defer the others."""
        if not len(places):
            return
        _, first = np.unique(places[:, 0], return_index=True)  # an id may stand there twice
        fresh = np.sort(first[~self._is_buffered[places[first, 0]]])
        entering = fresh[: self._capacity - len(self._waiting)]
        self._is_buffered[places[entering, 0]] = True
        self._waiting = np.concatenate([self._waiting, places[entering]])
        self._deferred = np.concatenate([self._deferred, np.delete(places, entering, axis=0)])

    def _room(self, least: int) -> int:
        """How many ids to add: only what a batch needs once the buffer is two epochs ahead.

        Otherwise an id that a selector avoids would never catch up where epochs are short.
        """
        room = self._capacity - len(self._waiting)
        if room == 0 or self._stop is not None:  # one epoch is never ahead of itself
            return room
        first = min(
            (int(part[:, 1].min()) for part in (self._waiting, self._deferred) if len(part)),
            default=None,
        )
        size = len(self._epochs)
        ahead = first is not None and self._position // size - first // size > 1
        return max(0, least - len(self._waiting)) if ahead else room

    def _read(self, count: int) -> Places:
        """Up to `count` (id, place), none at the end; stops early at the border of two epochs."""
        if count == 0 or self._position == self._stop:
            return NO_PLACES
        lap, start = divmod(self._position, len(self._epochs))
        if lap != self._lap:
            self._lap, self._order = lap, self._epochs.order(lap)
        if self._stop is not None:
            count = min(count, self._stop - self._position)
        ids = self._order[start : start + count].numpy()
        self._position += len(ids)
        return np.stack([ids, np.arange(self._position - len(ids), self._position)], axis=1)


class FreshPools:
    """A new random pool for each batch, as in the paper: it guarantees no coverage."""

    def __init__(self, epochs: ShuffledEpochs, capacity: int, *, epoch: int) -> None:
        self._epochs, self._capacity, self._epoch = epochs, capacity, epoch

    def candidates(self, batch: int, batch_size: int, random_pool: int | None = None) -> Candidates:
        """Distinct ids, all equally likely."""
        random = np.random.default_rng(key(POOL, self._epochs.seed, self._epoch, batch))
        ids = random.choice(len(self._epochs), random_pool or self._capacity, replace=False)
        return Candidates(ids=torch.from_numpy(ids), due=0)

    def take(self, ids: list[int]) -> None:
        """Nothing is recorded."""

    def state_dict(self) -> None:
        """None: there is no state."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Nothing to restore."""
