"""One pass over an epoch: its start, the batches drawn so far, and its saved state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eigenbatch.checks import check_entries, is_count, is_dict, is_flag, is_integer_tensor
from eigenbatch.sampling.coverage import Coverage
from eigenbatch.sampling.errors import StateError


class EpochPass:
    """The batches of one epoch, drawn one after the other and recorded.

    The state of a pass is its beginning, how many batches were consumed, and the journal of those
    drawn. The journal is *shared* by all states of the pass, as parameters are by the states of a
    module: a loader that draws ahead takes the state of a batch when it is drawn, and by the time
    that batch is trained on and saved, the journal also holds the batches drawn since. So a
    resumed run repeats them, although it could not choose them again from a newer cache.
    """

    def __init__(
        self,
        epoch: int,
        coverage: Coverage,
        *,
        batches: int,
        batch_size: int,
        selector_state: dict[str, Any],
    ) -> None:
        self.epoch, self.coverage = epoch, coverage
        self.start = coverage.state_dict()
        self.drawn = 0  # batches yielded
        self.ended = False  # True once StopIteration was raised
        self._journal = torch.full((batches, batch_size), -1, dtype=torch.int32)  # -1: not drawn
        self.selector_state = selector_state  # after the last choice

    @property
    def finished(self) -> bool:
        """Whether every batch was yielded."""
        return self.drawn == len(self._journal)

    @property
    def recorded(self) -> Tensor | None:
        """(n,) ids of the next batch, if they were chosen before a resume."""
        row = self._journal[self.drawn]
        return row[row >= 0].long() if row[0] >= 0 else None

    def hand_out(self, ids: Tensor) -> None:
        """The next batch is `ids`."""
        self.coverage.take(ids.tolist())
        self._journal[self.drawn, : len(ids)] = ids
        self.drawn += 1

    def keep_selector_state(self, state: dict[str, Any]) -> None:
        """Remember the selector as it is after the last choice."""
        self.selector_state.clear()
        self.selector_state.update(state)

    def state_dict(self, consumed: int) -> dict[str, Any]:
        """The state after `consumed` batches; those drawn since will be repeated."""
        return {
            "epoch": self.epoch,
            "consumed": consumed,
            "start": self.start,
            "journal": self._journal,
            "selector": self.selector_state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Continue from `state`, with a journal of our own; returns the selector's state."""
        self.start = state["start"]
        self.coverage.load_state_dict(self.start)
        self._journal = state["journal"].clone()
        self.selector_state = dict(state["selector"])  # ours: see keep_selector_state
        for _ in range(state["consumed"]):
            if self.finished or (ids := self.recorded) is None:
                raise StateError(
                    f"{state['consumed']} batches are said to be consumed but only {self.drawn} "
                    "are recorded: the state is damaged"
                )
            self.hand_out(ids)
        return self.selector_state


def check_state(state: dict[str, Any], journal_shape: tuple[int, int], size: int) -> None:
    """Raise StateError unless `state` has all that resuming needs, with ids below `size`."""
    valid: dict[str, Callable[[Any], bool]] = {
        "epoch": is_count,
        "consumed": is_count,
        "ended": is_flag,
        "selector": is_dict,
        "start": lambda value: value is None or is_dict(value),
        "journal": lambda value: _is_journal(value, journal_shape, size),
    }
    check_entries(
        {name: state.get(name, ...) for name in valid}, "sampler", valid, error=StateError
    )


def _is_journal(value: object, shape: tuple[int, int], size: int) -> bool:
    """Whether each row is a batch of distinct ids, then -1 up to the end of the row."""
    if not is_integer_tensor(value, shape):
        return False
    low, high = value.aminmax()
    ascending = value.sort(1).values  # -1 comes first
    repeated = (ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0)
    after_end = (value[:, 1:] >= 0) & (value[:, :-1] < 0)
    return bool(low >= -1 and high < size and not repeated.any() and not after_end.any())
