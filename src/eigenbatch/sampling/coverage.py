"""Which samples may enter the next batch: three ways to cover the data.

A coverage offers candidates and is told what was taken; it knows no embeddings. `Buffer` serves
"epoch" and "stream", `FreshPools` serves "free".
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from eigenbatch.checks import check_entries, is_count, is_integer_tensor
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.order import POOL, ShuffledEpochs, key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Distinct ids, the longest waiting first; the first `due` of them must be taken."""

    ids: Tensor  # (k,)
    due: int


class Coverage(Protocol):
    """What the sampler asks of a way to cover the data."""

    def candidates(self, batch: int, batch_size: int) -> Candidates:
        """Whom batch number `batch` may choose `batch_size` ids from."""

    def take(self, ids: list[int]) -> None:
        """These candidates are in a batch now."""

    def state_dict(self) -> dict[str, Any] | None:
        """What it remembers, or None."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Remember the same."""


class Buffer:
    """Ids take turns in the order of `ShuffledEpochs`, and wait here until they are taken.

    Half of every batch goes to those who wait longest. So nobody waits for ever (`max_wait`), and
    what a selector avoids is at most twice as frequent among those left over as in the data. When
    the buffer runs empty at the end of an epoch, ever more seats go that way: to choose there
    would only leave the worst for last.
    """

    def __init__(
        self, epochs: ShuffledEpochs, capacity: int, *, start: int, stop: int | None = None
    ) -> None:
        """Turns `start` up to `stop` (None: for ever) of all epochs laid end to end."""
        self._epochs, self._capacity = epochs, capacity
        self._position, self._stop = start, stop
        self._waiting: dict[int, int] = {}  # id -> turn, the longest waiting first
        self._deferred: list[tuple[int, int]] = []  # the next turn of ids that still wait
        self._lap, self._order = -1, torch.empty(0)

    @staticmethod
    def max_wait(capacity: int, batch_size: int) -> int:
        """Batches after which every id has left.

        When it enters, at most capacity - 1 - (chosen seats) ids stay before it, and every batch
        takes those longest waiting first.
        """
        return 1 + -(-(capacity - batch_size) // (batch_size - batch_size // 2))

    def candidates(self, batch: int, batch_size: int) -> Candidates:
        """All that wait, after the buffer was filled up."""
        self._fill(batch_size)
        chosen = batch_size // 2 * len(self._waiting) ** 2 // self._capacity**2
        waiting = np.fromiter(self._waiting, np.int64, len(self._waiting))
        return Candidates(ids=torch.from_numpy(waiting), due=batch_size - chosen)

    def take(self, ids: list[int]) -> None:
        """Let ids go; raises StateError for one that does not wait."""
        self._fill(len(ids))
        for taken in ids:
            if taken not in self._waiting:
                raise StateError(
                    f"a batch takes id {taken}, which does not wait for its turn: "
                    "the recorded batches are damaged or from another sampler"
                )
            del self._waiting[taken]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the constructor's arguments."""
        return {
            "position": self._position,
            "waiting": _pairs(list(self._waiting.items())),  # (w, 2)
            "deferred": _pairs(self._deferred),  # (w, 2)
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Hold the same ids as the buffer that `state` was taken from."""
        if state is None:
            raise StateError("this state has no 'start': it is from coverage='free'")
        entries = {"position": is_count, "waiting": self._are_turns, "deferred": self._are_turns}
        check_entries(state, "sampler's 'start'", entries, error=StateError)
        waiting = dict(state["waiting"].tolist())
        if not len(waiting) == len(state["waiting"]) <= self._capacity:
            raise StateError("the state holds one id twice or more ids than fit: it is damaged")
        self._position = state["position"]
        self._waiting = waiting
        self._deferred = [(sample, turn) for sample, turn in state["deferred"].tolist()]

    def _are_turns(self, value: object) -> bool:
        """Whether a saved value has rows (id, turn) with ids of this data set."""
        if isinstance(value, Tensor) and value.shape == (0, 2):
            return True  # once saved without a dtype of its own
        if not is_integer_tensor(value, (None, 2)):
            return False
        return bool((value >= 0).all() and (value[:, 0] < len(self._epochs)).all())

    def _fill(self, least: int) -> None:
        """Let ids in; one whose next turn comes while it still waits is deferred."""
        deferred, self._deferred = self._deferred, []
        self._admit(deferred)
        while turns := self._read(self._room(least)):
            self._admit(turns)

    def _admit(self, turns: list[tuple[int, int]]) -> None:
        for sample, turn in turns:
            if sample in self._waiting or len(self._waiting) == self._capacity:
                self._deferred.append((sample, turn))
            else:
                self._waiting[sample] = turn

    def _room(self, least: int) -> int:
        """How many to let in: none two epochs ahead of a pending turn, if a batch can do without.

        Otherwise an id that a selector avoids would fall behind for good where epochs are short.
        """
        if len(self._waiting) == self._capacity:
            return 0
        pending = [*self._waiting.values(), *(turn for _, turn in self._deferred)]
        lead = self._position // len(self._epochs) - min(pending, default=0) // len(self._epochs)
        goal = least if pending and lead > 1 else self._capacity
        return max(0, goal - len(self._waiting))

    def _read(self, count: int) -> list[tuple[int, int]]:
        """Up to `count` (id, turn), none at the end; stops early at the border of two epochs."""
        if count == 0 or self._position == self._stop:
            return []
        lap, start = divmod(self._position, len(self._epochs))
        if lap != self._lap:
            self._lap, self._order = lap, self._epochs.order(lap)
        ids: list[int] = self._order[start : start + count].tolist()
        self._position += len(ids)
        return list(zip(ids, range(self._position - len(ids), self._position), strict=True))


def _pairs(values: list[tuple[int, int]]) -> Tensor:
    """(w, 2) int64, also for w = 0."""
    return torch.tensor(values, dtype=torch.int64).view(-1, 2)


class FreshPools:
    """A new random pool for each batch, the paper's way: no memory, so no coverage promised."""

    def __init__(self, epochs: ShuffledEpochs, capacity: int, *, epoch: int) -> None:
        self._epochs, self._capacity, self._epoch = epochs, capacity, epoch

    def candidates(self, batch: int, batch_size: int) -> Candidates:
        """`capacity` distinct ids, all equally likely."""
        random = np.random.default_rng(key(POOL, self._epochs.seed, self._epoch, batch))
        ids = random.choice(len(self._epochs), self._capacity, replace=False)
        return Candidates(ids=torch.from_numpy(ids), due=0)

    def take(self, ids: list[int]) -> None:
        """Nothing to remember."""

    def state_dict(self) -> None:
        """Nothing remembered."""

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Nothing to remember."""
