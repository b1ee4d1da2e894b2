"""How hard random batches of unseen samples would be, from training batches alone.

A sample that is met for the first time is a held-out sample: its embeddings are computed before
the model learns from it. Later visits are easier for two reasons, general learning and memory, and
the two can be told apart: memory depends on how often a sample was visited, general learning on
time. So for the mean miss m of the rows of a batch that are visited the v-th time, at time t:

    logit m(v, t) = g(t) + a(v),    a(1) = 0,

and sigmoid(g) is the miss of unseen samples. a(v) is measured when rows are first visited the v-th
time, relative to the g of that moment; from then on these rows tell how g changes. Where every
sample is visited once per epoch, the a are the steps between epochs, and g changes within them.
"""

import math
from typing import Any

from torch import Tensor

from eigenbatch.checks import is_count, is_number

SETTLED = 256
"""Rows from which a(v) is measured. Of a smaller data set g does not change after the first epoch:
the estimate is then too high, and batches stay random."""

HALF = 128
"""Rows of a batch that have as much weight in g as all batches before. A fixed share would lag
behind where epochs have few batches, and book that as memory."""

VISITS = 16
"""More visits count as so many: what is memorised by then stays so."""

SMALLEST = 1e-6
"""Of a miss: below it the logarithm is mostly noise."""


class UnseenMiss:
    """The miss g of unseen samples, and the offsets a of later visits."""

    def __init__(self) -> None:
        self._level: float | None = None  # g
        self._offsets: dict[int, tuple[int, float]] = {}  # v -> rows it rests on, a(v)

    @property
    def value(self) -> float | None:
        """Miss of random batches of unseen samples; None: no sample was seen the first time."""
        return None if self._level is None else 1 / (1 + math.exp(-self._level))

    def observe(self, misses: Tensor, visits: Tensor) -> None:
        """Learn from one random batch.

        Args:
            misses: (n,) of its rows, with embeddings from before the training step.
            visits: (n,) how often each sample was met, this time included.
        """
        visits = visits.clamp(1, VISITS)
        groups = {}
        for visit in sorted(set(visits.tolist())):
            some = misses[visits == visit]
            groups[visit] = (len(some), _logit(some.mean().item()))
        known = [(n, m - a) for v, (n, m) in groups.items() if (a := self._settled(v)) is not None]
        if known:
            rows = sum(n for n, _ in known)
            mean = sum(n * level for n, level in known) / rows
            before = mean if self._level is None else self._level
            self._level = before + rows / (rows + HALF) * (mean - before)
        if self._level is None:
            return
        for visit, (n, m) in groups.items():
            if self._settled(visit) is None:
                rows, offset = self._offsets.get(visit, (0, 0.0))
                mean = (rows * offset + n * (m - self._level)) / (rows + n)
                self._offsets[visit] = (rows + n, mean)

    def _settled(self, visit: int) -> float | None:
        """a(v) if it rests on enough rows."""
        rows, offset = (SETTLED, 0.0) if visit == 1 else self._offsets.get(visit, (0, 0.0))
        return offset if rows >= SETTLED else None

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        offsets = [[v, rows, offset] for v, (rows, offset) in self._offsets.items()]
        return {"level": self._level, "offsets": offsets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `is_state` accepts."""
        self._level = state["level"]
        self._offsets = {v: (rows, offset) for v, rows, offset in state["offsets"]}


def is_state(value: object) -> bool:
    """Whether this is a state of `UnseenMiss`."""
    if not isinstance(value, dict) or set(value) != {"level", "offsets"}:
        return False
    level, offsets = value["level"], value["offsets"]
    return (level is None or is_number(level)) and isinstance(offsets, list) and all(
        isinstance(one, list) and len(one) == 3 and is_count(one[0]) and is_count(one[1])
        and is_number(one[2]) for one in offsets
    )  # fmt: skip


def _logit(miss: float) -> float:
    miss = min(max(miss, SMALLEST), 1 - SMALLEST)
    return math.log(miss / (1 - miss))
