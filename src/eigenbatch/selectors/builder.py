"""Greedy-m on a stream: candidates are offered as they arrive, the builder keeps the best."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenbatch.checks import ids_tensor, whole
from eigenbatch.core.precision import accumulated, check_matrix, no_autocast, unit_rows
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.selectors.diversity import trace_after_adding


class BatchBuilder:
    """Holds the batch B so far, its trace tr(Sigma_B^2), and up to `probe` candidates.

    Once there are `probe` candidates, the one of smallest q_B is moved to the batch and the others
    are kept, so every pick is the best of `probe`. The source may be a stream or a MoCo queue.

    Args:
        batch_size: rows of the batch.
        probe: candidates that a pick is chosen from.

    Examples:
        >>> import torch
        >>> from eigenbatch.selectors import BatchBuilder
        >>> builder = BatchBuilder(batch_size=8, probe=4)
        >>> for start in range(0, 64, 16):  # a stream of 16 rows at a time
        ...     ids = torch.arange(start, start + 16)
        ...     added = builder.offer(ids, torch.randn(16, 5))
        ...     if builder.full:
        ...         break
        >>> len(builder.ids)
        8
    """

    def __init__(self, batch_size: int, probe: int = 64) -> None:
        self.batch_size = whole(batch_size, "batch_size", least=1)
        self.probe = whole(probe, "probe", least=1)
        self._ids: list[int] = []
        self._trace = 0.0
        self._batch: Tensor | None = None  # (batch_size, d), first b used
        self._candidates = torch.empty(0, 0)  # (w, d)
        self._candidate_ids: list[int] = []
        self._squares = torch.empty(0)  # (w,) sum over B of <z, z'>^2

    @property
    def ids(self) -> list[int]:
        """Ids of the batch so far, in the order they were picked."""
        return list(self._ids)

    @property
    def full(self) -> bool:
        """Whether the batch holds `batch_size` rows."""
        return len(self._ids) == self.batch_size

    @property
    def trace(self) -> float:
        """tr(Sigma_B^2), kept by the one-step lemma."""
        return self._trace

    @property
    def participation_ratio(self) -> float:
        """R_eff of the batch so far."""
        if not self._ids:
            raise ParameterError("the batch is empty: it has no effective rank yet")
        return 1 / self._trace

    @property
    def scores(self) -> dict[int, float]:
        """q_B of every candidate, by id."""
        mean = (self._squares / max(1, len(self._ids))).tolist()
        return dict(zip(self._candidate_ids, mean, strict=True))

    def offer(self, ids: Tensor | Sequence[int], z: Tensor) -> int:
        """Add candidates (c, d) with their ids (c,); returns how many rows were added to the batch.

        Candidates offered after the batch is full are ignored, and so are ids that are already
        candidates or in the batch.
        """
        check_matrix(z, "z")
        ids = ids_tensor(ids)
        if ids.shape != (len(z),) or ids.is_floating_point():
            raise ShapeError(
                f"{len(z)} candidates need {len(z)} whole ids, got {ids.dtype} {tuple(ids.shape)}"
            )
        rows = accumulated(unit_rows(z.detach(), "z"))  # (c, d)
        if self._batch is None:
            self._batch = rows.new_empty(self.batch_size, rows.shape[1])
            self._candidates, self._squares = rows[:0], rows.new_empty(0)
        if rows.shape[1] != self._batch.shape[1]:
            raise ShapeError(
                f"candidates have dimension {rows.shape[1]}, the batch {self._batch.shape[1]}"
            )
        before, held = len(self._ids), {*self._ids, *self._candidate_ids}
        fresh = {name: i for i, name in enumerate(ids.tolist()) if name not in held}
        names, rows = list(fresh), rows[list(fresh.values())]
        while names and not self.full:
            room = self.probe - len(self._candidate_ids)
            self._keep(names[:room], rows[:room])
            names, rows = names[room:], rows[room:]
            if len(self._candidate_ids) == self.probe:
                self._pick()
        return len(self._ids) - before

    def finish(self) -> list[int]:
        """Fill the batch from the remaining candidates, when the stream has ended."""
        missing = self.batch_size - len(self._ids)
        if len(self._candidate_ids) < missing:
            raise ShapeError(
                f"the stream ended with {len(self._ids)} picks and {len(self._candidate_ids)} "
                f"candidates left: batch_size {self.batch_size} cannot be filled"
            )
        while not self.full:
            self._pick()
        return self.ids

    def _keep(self, ids: list[int], rows: Tensor) -> None:
        assert self._batch is not None
        with no_autocast(rows):
            squares = (rows @ self._batch[: len(self._ids)].T).square().sum(1)
        self._candidates = torch.cat([self._candidates, rows])
        self._squares = torch.cat([self._squares, squares])
        self._candidate_ids += ids

    def _pick(self) -> None:
        assert self._batch is not None
        best, size = int(self._squares.argmin()), len(self._ids)
        row = self._candidates[best]
        if size:
            score = self._squares[best] / size
            trace = torch.tensor(self._trace, dtype=torch.float64)
            self._trace = trace_after_adding(trace, size, score.cpu()).item()
        else:
            self._trace = 1.0
        self._batch[size] = row
        self._ids.append(self._candidate_ids.pop(best))
        others = torch.arange(len(self._candidates), device=row.device) != best
        with no_autocast(row):
            self._squares = (self._squares + (self._candidates @ row).square())[others]
        self._candidates = self._candidates[others]
