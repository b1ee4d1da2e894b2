"""One pass over an epoch: its start, the batches drawn so far, and its saved state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eigenbatch.checks import check_entries, is_count, is_dict, is_flag, is_integer_tensor
from eigenbatch.sampling.coverage import Coverage
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.selection import Selection

KEPT = 256
"""Batches whose statistics are kept until they are asked for."""

NUMBERS = 2**24
"""Numbers of embeddings that are kept for them; statistics of earlier batches are computed."""


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
        with torch.inference_mode(False):  # or it could never be changed outside of it
            # (batches, batch_size) ids, -1: not drawn
            self._journal = torch.full((batches, batch_size), -1, dtype=torch.int32)
        self.selector_state = selector_state  # after the last choice
        self._statistics: dict[int, Selection | dict[str, float]] = {}  # by number of the batch

    @property
    def finished(self) -> bool:
        """Whether every batch was yielded."""
        return self.drawn == len(self._journal)

    @property
    def recorded(self) -> Tensor | None:
        """(n,) ids of the next batch, if they were chosen before a resume."""
        row = self._journal[self.drawn]
        return row[row >= 0].long() if row[0] >= 0 else None

    def hand_out(self, ids: Tensor, selection: Selection | None = None) -> None:
        """The next batch is `ids`; how they were selected, unless that was before a resume."""
        self.coverage.take(ids.tolist())
        self._journal[self.drawn, : len(ids)] = ids
        if selection is not None:
            self._statistics[self.drawn] = selection
            self._statistics.pop(self.drawn - KEPT, None)
            self._compute_old(selection.rows.numel() + selection.baseline.numel())
        self.drawn += 1

    def repeat_recorded(self) -> None:
        """Take what was drawn before a resume and is not used: the next epoch begins after it."""
        while not self.finished and (ids := self.recorded) is not None:
            self.hand_out(ids)

    def _compute_old(self, numbers: int) -> None:
        """Keep no more embeddings than `NUMBERS`, if every batch has so many."""
        if KEPT * numbers <= NUMBERS:
            return
        for number, known in self._statistics.items():
            if isinstance(known, Selection) and (self.drawn - number + 1) * numbers > NUMBERS:
                self._statistics[number] = known.scalars()

    def statistics(self, batch: int) -> dict[str, float]:
        """Scalars of a batch; those of batches before it are dropped. Empty if there are none."""
        for earlier in [number for number in self._statistics if number < batch]:
            del self._statistics[earlier]
        known = self._statistics.get(batch, {})
        if isinstance(known, Selection):
            known = self._statistics[batch] = known.scalars()
        return dict(known)

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
            "statistics": {
                number: known.scalars() if isinstance(known, Selection) else known
                for number, known in self._statistics.items()
                if number >= consumed
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Continue from `state`, with a journal of our own; returns the selector's state."""
        self.start = state["start"]
        self.coverage.load_state_dict(self.start)
        with torch.inference_mode(False):
            self._journal = state["journal"].clone()
        self.selector_state = dict(state["selector"])  # ours: see keep_selector_state
        for _ in range(state["consumed"]):
            if self.finished or (ids := self.recorded) is None:
                raise StateError(
                    f"{state['consumed']} batches are said to be consumed but only {self.drawn} "
                    "are recorded: the state is damaged"
                )
            self.hand_out(ids)
        self._statistics = dict(state.get("statistics", {}))
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
    if not _are_statistics(state.get("statistics", {})):  # states of version 0.1 have none
        raise StateError("'statistics' in a sampler state are not numbers by batch: it is damaged")


def _are_statistics(value: object) -> bool:
    """Whether this is a dict of scalars, NaN included, for each of some batches."""
    return isinstance(value, dict) and all(
        is_count(number)
        and isinstance(scalars, dict)
        and all(isinstance(name, str) and isinstance(x, int | float) for name, x in scalars.items())
        for number, scalars in value.items()
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
