"""The rows of a cache in float32: products in half precision are slow on a CPU."""

import torch
from torch import Tensor

from eigenbatch.core.precision import unit_rows

LIMIT = 2**18
"""Rows up to which a cache keeps a working copy; of larger ones only candidates are converted."""


def _unit(rows: Tensor, towers: int) -> Tensor:
    """Stored rows as selectors use them: every tower on the sphere to float32 precision."""
    return torch.cat([unit_rows(part, "pool") for part in rows.chunk(towers, 1)], 1)


class WorkingCopy:
    """A float32 copy of stored rows, brought up to date when it is read."""

    def __init__(self, towers: int) -> None:
        self._towers, self._rows, self._tick = towers, torch.empty(0), 0

    def rows(self, stored: Tensor, ticks: Tensor, clock: int, *, shared: bool) -> Tensor:
        """(size, towers * d); rows that were never written are zero.

        If they are shared, rows of the last tick are copied again: another process may have
        written more of them.
        """
        if not len(self._rows):
            with torch.inference_mode(False):  # or it could never be changed outside of it
                self._rows = torch.zeros(stored.shape, dtype=torch.float32, device=stored.device)
        changed = (ticks > self._tick - (shared and self._tick > 0)).nonzero().squeeze(1)
        if len(changed):
            self._rows[changed] = _unit(stored.index_select(0, changed), self._towers).float()
        self._tick = clock
        return self._rows
