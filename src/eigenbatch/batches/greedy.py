"""The greedy element-wise builder, Algorithm 2: pick rows one at a time.

Letters: k rows of the pool, n rows of the batch, m rows of a probe, b rows picked so far (B).
The score of a row is q_B(z) = z^T Sigma_B z, the mean over B of <z, z'>^2: small scores add
diversity. A pick costs one product of the pool with the row picked before (`_search`); over the
whole pool by least score on a CPU, several picks share a product (`_whole_pool`).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenbatch.batches.planner import check_sizes, shuffled
from eigenbatch.batches.pools import check_window
from eigenbatch.checks import check_choice, check_flags, ids_tensor, real, whole
from eigenbatch.core.contrast import accumulated, check_matrix, no_autocast, unit_rows
from eigenbatch.core.spectrum import (
    participation_ratio,
    rayleigh_scores,
    trace_after_adding,
)
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError

Score = Literal["spectral", "centroid"]
Rows = NDArray[np.floating]

COLUMNS = 16
"""Columns that a product has a multiple of: as many as a processor does at once."""

FIRST = 5
"""Picks that are not guessed: the sums of fewer say too little about the next ones."""

GUESSES = 3 * COLUMNS
"""Picks that are guessed at a time, at most, or twice as many where no far row is a rival."""

NEAR, SAMPLE = 512, 8
"""Rows of smallest sums, about, among which the next picks are guessed (a tenth of larger pools);
their limit is looked for in one sum of so many."""

SMALL = 2**18
"""Multiplications of a product for which OpenBLAS, numpy's, starts no threads: they would keep
spinning and slow the training step that follows."""


class Greedy:
    """Pick rows one at a time so that the batch's effective rank R grows fastest.

    The first seed is random, the second the row least similar to it (the paper leaves both open).
    Deviates from Alg. 2: with a window the batch is still filled, because training needs n rows.

    Args:
        probe: rows scored per pick (Greedy-m); None scores the whole pool, which costs less than a
            small probe does in a plain loop, and is better.
        window: steer R so that the full batch ends in the middle of [low, high].
        score: "spectral" minimises q_B(z); "centroid" is the paper's cheaper proxy
            `<z, mean of B>`.
        literal: stop as printed once R enters the window, with fewer than batch_size rows; a
            sampler fills the batch with random rows.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy, participation_ratio, select
        >>> pool = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> batch = pool[select(pool, 20, Greedy(), generator=torch.Generator().manual_seed(1))]
        >>> participation_ratio(batch) > participation_ratio(pool[:20])
        True
    """

    def __init__(
        self,
        probe: int | None = 64,
        window: tuple[float, float] | None = None,
        score: Score = "spectral",
        *,
        literal: bool = False,
    ) -> None:
        if probe is not None:
            whole(probe, "probe", least=1)
        check_choice(score, get_args(Score), "score")
        check_flags(literal=literal)
        if window is not None and score == "centroid":
            raise ParameterError('a window steers the effective rank: it needs score="spectral"')
        if literal and window is None:
            raise ParameterError("literal=True stops inside a window: give window=(low, high)")
        self.probe, self.score, self.literal = probe, score, literal
        self.window = None if window is None else check_window(window)

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; only `literal=True` may return fewer than `batch_size` indices."""
        check_sizes(pool, batch_size)
        rows = unit_rows(pool.detach(), "pool")
        if self.window is None:
            ranking = _least_squares if self.score == "spectral" else _nearest_centroid
            return _search(rows, batch_size, ranking, self.probe, generator)
        low, high = self.window
        attainable = min(batch_size, rows.shape[1])
        if high > attainable:
            raise ParameterError(
                f"window {self.window} is out of reach: {batch_size} rows in dimension "
                f"{rows.shape[1]} have an effective rank of at most {attainable}"
            )
        aim = _path((low + high) / 2, rows, batch_size)

        def off_target(state: _Picked) -> Tensor:
            scores = state.squares / state.size
            ranks = 1 / trace_after_adding(state.trace, state.size, scores)
            return (ranks - aim(state.size + 1)).abs()

        def inside(state: _Picked) -> bool:
            return state.size >= 2 and bool(low <= 1 / state.trace <= high)

        chosen = _search(
            rows,
            batch_size,
            _least_squares if self.literal else off_target,
            self.probe,
            generator,
            stop=inside if self.literal else None,
        )
        reached = participation_ratio(rows[chosen])
        if not low - 1e-6 <= reached <= high + 1e-6:
            warnings.warn(
                f"the batch has an effective rank of {reached:.2f}, outside the window "
                f"{self.window}: no better one was found in this pool",
                NumericalWarning,
                stacklevel=2,
            )
        return chosen


class Blend:
    """From similar to diverse batches: `weight` in [-1, 1], 0 is a random batch.

    Each pick is the least (weight > 0) or most (weight < 0) similar to the batch so far, out of a
    probe of k^|weight| rows: one row at 0, the whole pool at 1. Weight 1 is `Greedy(probe=None)`.

    Args:
        weight: from -1, most similar, to 1, most diverse.

    Examples:
        >>> import torch
        >>> from eigenbatch import Blend, participation_ratio, select
        >>> pool = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> similar, diverse = (pool[select(pool, 20, Blend(w))] for w in (-0.5, 0.5))
        >>> participation_ratio(similar) < participation_ratio(diverse)
        True
    """

    def __init__(self, weight: float) -> None:
        if not -1 <= real(weight, "weight") <= 1:
            raise ParameterError(f"weight must lie in [-1, 1], got {weight}")
        self.weight = weight

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        check_sizes(pool, batch_size)
        rows = unit_rows(pool.detach(), "pool")
        probe = None if abs(self.weight) == 1 else max(1, round(len(rows) ** abs(self.weight)))
        ranking = _least_squares if self.weight >= 0 else _most_similar
        return _search(rows, batch_size, ranking, probe, generator)


class BatchBuilder:
    """Greedy-m on a stream: holds the batch B so far and up to `probe` candidates.

    Once there are `probe` candidates, the one of smallest q_B is moved to the batch and the others
    are kept, so every pick is the best of `probe`. The source may be a stream or a MoCo queue.

    Args:
        batch_size: rows of the batch.
        probe: candidates that a pick is chosen from.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import BatchBuilder
        >>> builder = BatchBuilder(batch_size=8, probe=4)
        >>> for start in range(0, 64, 16):  # a stream of 16 rows at a time
        ...     added = builder.offer(torch.arange(start, start + 16), torch.randn(16, 5))
        ...     if builder.full:
        ...         break
        >>> len(builder.ids)
        8
    """

    def __init__(self, batch_size: int, probe: int = 64) -> None:
        self.batch_size = whole(batch_size, "batch_size", least=1)
        self.probe = whole(probe, "probe", least=1)
        self.ids: list[int] = []  # of the batch so far, in the order they were picked
        self.trace = 0.0  # tr(Sigma_B^2), kept by the one-step lemma
        self._candidate_ids: list[int] = []
        self._batch = self._candidates = torch.empty(0, 0)  # (b, d) and (w, d)

    @property
    def full(self) -> bool:
        """Whether the batch holds `batch_size` rows."""
        return len(self.ids) == self.batch_size

    @property
    def participation_ratio(self) -> float:
        """R_eff of the batch so far."""
        if not self.ids:
            raise ParameterError("the batch is empty: it has no effective rank yet")
        return 1 / self.trace

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
        if not self._batch.shape[1]:
            self._batch = self._candidates = rows[:0]
        if rows.shape[1] != self._batch.shape[1]:
            raise ShapeError(
                f"candidates have dimension {rows.shape[1]}, the batch {self._batch.shape[1]}"
            )
        before, held = len(self.ids), {*self.ids, *self._candidate_ids}
        fresh = {name: i for i, name in enumerate(ids.tolist()) if name not in held}
        for name, i in fresh.items():
            if self.full:
                break
            self._candidate_ids.append(name)
            self._candidates = torch.cat([self._candidates, rows[i : i + 1]])
            if len(self._candidate_ids) == self.probe:
                self._pick()
        return len(self.ids) - before

    def finish(self) -> list[int]:
        """Fill the batch from the remaining candidates, when the stream has ended."""
        if len(self._candidate_ids) < self.batch_size - len(self.ids):
            raise ShapeError(
                f"the stream ended with {len(self.ids)} picks and {len(self._candidate_ids)} "
                f"candidates left: batch_size {self.batch_size} cannot be filled"
            )
        while not self.full:
            self._pick()
        return self.ids

    def _pick(self) -> None:
        best, size = 0, len(self.ids)
        if size:
            scores = rayleigh_scores(self._candidates, self._batch)  # (w,)
            best = int(scores.argmin())
            trace = torch.tensor(self.trace, dtype=torch.float64)
            self.trace = trace_after_adding(trace, size, scores[best].cpu()).item()
        else:
            self.trace = 1.0
        self._batch = torch.cat([self._batch, self._candidates[best : best + 1]])
        self._candidates = torch.cat([self._candidates[:best], self._candidates[best + 1 :]])
        self.ids.append(self._candidate_ids.pop(best))


def _path(end: float, pool: Tensor, batch_size: int) -> Callable[[int], float]:
    """The effective rank to aim for at each size, so that the full batch has the rank `end`.

    b independent rows of a cloud have tr(Sigma^2) = 1/b + (1 - 1/b) t on average, t being that of
    the cloud. Below what random rows of the pool would have, the path is that of the cloud which
    ends there: a batch that is too diverse early could not come down again. Above, the sooner the
    better.
    """
    typical = 1 / batch_size + (1 - 1 / batch_size) / participation_ratio(pool)
    if 1 / end < typical or batch_size == 1:
        return lambda size: end
    cloud = (1 / end - 1 / batch_size) / (1 - 1 / batch_size)
    return lambda size: 1 / (1 / size + (1 - 1 / size) * cloud)


@dataclass(slots=True)
class _Picked:
    """The batch so far, and how similar each row of the pool is to it; what a ranking may use."""

    size: int  # b
    trace: Tensor  # () tr(Sigma_B^2)
    squares: Tensor  # (k,) sum over B of <z, z'>^2
    cosines: Tensor  # (k,) sum over B of <z, z'>


Ranking = Callable[[_Picked], Tensor]
"""(k,) values of which the smallest is picked next."""


def _least_squares(state: _Picked) -> Tensor:
    """Algorithm 2: smallest q_B, so the largest gain in effective rank."""
    return state.squares


def _most_similar(state: _Picked) -> Tensor:
    return -state.squares


def _nearest_centroid(state: _Picked) -> Tensor:
    """Smallest <z, sum of B>: largest 1 - <z, mean of B>."""
    return state.cosines


def _search(
    rows: Tensor,
    batch_size: int,
    ranking: Ranking,
    probe: int | None,
    generator: torch.Generator | None,
    *,
    stop: Callable[[_Picked], bool] | None = None,
) -> Tensor:
    """Indices of the picks, in order; fewer than `batch_size` only if `stop` says so."""
    order = shuffled(len(rows), generator, rows.device)  # (k,) not yet picked
    on_cpu = rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)
    if ranking is _least_squares and probe is None and stop is None and on_cpu:
        with no_autocast(rows):
            return torch.from_numpy(_whole_pool(rows.detach(), int(order[0]), batch_size))
    k = len(rows)
    state = _Picked(0, rows.new_ones(()), rows.new_zeros(k), rows.new_zeros(k))
    picked = torch.zeros(k, dtype=torch.bool, device=rows.device)
    picks: list[Tensor] = []
    best, order, cursor = order[:1], order[1:], 0
    with no_autocast(rows):
        while True:
            if state.size:
                score = state.squares[best[0]] / state.size
                state.trace = trace_after_adding(state.trace, state.size, score)
            cosines = rows @ rows[best[0]]  # (k,)
            state.cosines += cosines
            state.squares += cosines.square_()
            state.size += 1
            picks.append(best)
            picked[best] = True
            if len(picks) == batch_size or (stop is not None and stop(state)):
                return torch.cat(picks)
            values = ranking(state)
            if probe is None:
                best = values.masked_fill(picked, torch.inf).argmin().view(1)
                continue
            if cursor and cursor + probe > len(order):  # next pass over what is left
                order = order[~picked[order]]
                order, cursor = order[shuffled(len(order), generator, rows.device)], 0
            candidates = order[cursor : cursor + probe]  # (m,)
            best = candidates[values[candidates].argmin()].view(1)
            cursor += probe


def _whole_pool(rows: Tensor, first: int, batch_size: int) -> NDArray[np.int64]:
    """The picks of `_search` by least squares over all rows, sooner.

    One product of the pool with each pick is slow. So the next picks are guessed among the rows of
    smallest sums, and one product of the pool with all guesses shows which of them are right. Small
    steps are numpy's, which has less overhead; products are torch's.
    """
    matrix = rows.numpy()
    squares = np.square(matrix @ matrix[first])
    squares[first] = np.inf
    picks = [first, *_guessed(matrix, squares, min(FIRST, batch_size) - 1)[0].tolist()]
    products = rows.new_empty(min(2 * GUESSES, batch_size), len(rows))  # the same memory each time
    most = COLUMNS
    while len(picks) < batch_size:
        far = squares > _limit(squares)  # (k,)
        near = np.flatnonzero(~far)
        count = min(most, batch_size - len(picks))
        found, least = _guessed(matrix.take(near, axis=0), squares[near], count)
        guesses = near[found]
        guessed = torch.from_numpy(matrix.take(guesses, axis=0))  # (count, d)
        if len(picks) + count == batch_size:  # the last guesses: no sum is needed after them
            rivals = np.flatnonzero(far & (squares <= least[-1]))
            cosines = torch.mm(guessed, torch.from_numpy(matrix.take(rivals, axis=0)).T).numpy()
            if _right(squares[rivals], cosines, least) == count:
                return np.array([*picks, *guesses])
        cosines = torch.mm(guessed, rows.T, out=products[:count]).numpy()  # (count, k)
        for start in range(0, count, COLUMNS):
            part = slice(start, min(start + COLUMNS, count))
            rivals = np.flatnonzero(far & (squares <= least[part][-1]))  # sums only grow
            right = _right(squares[rivals], cosines[part].take(rivals, axis=1), least[part])
            sure = slice(start, start + right)
            squares += np.einsum("ij,ij->j", cosines[sure], cosines[sure])
            squares[guesses[sure]] = np.inf
            picks += guesses[sure].tolist()
            if sure.stop < part.stop:
                most = 0
                break
        most = min(most + COLUMNS, GUESSES if len(rivals) else 2 * GUESSES)
    return np.array(picks)


def _limit(squares: Rows) -> float:
    """A sum that about `NEAR` sums are not above; at least the smallest one."""
    some = squares[::SAMPLE]
    place = max(NEAR, len(squares) // 10) // SAMPLE
    return float(np.partition(some, place)[place]) if place < len(some) else np.inf


def _guessed(near: Rows, squares: Rows, count: int) -> tuple[NDArray[np.int64], Rows]:
    """The next picks as if there were no rows but these, and their sums when they are picked.

    `squares` are brought up to date in place.
    """
    cosines, least = np.empty_like(squares), np.empty(count, dtype=squares.dtype)
    guesses = np.empty(count, dtype=np.int64)
    for i in range(count):
        guesses[i] = best = squares.argmin()
        least[i] = squares[best]
        if near.size <= SMALL:
            np.dot(near, near[best], out=cosines)
        else:
            pair = torch.from_numpy(near), torch.from_numpy(near[best])
            torch.mv(*pair, out=torch.from_numpy(cosines))
        squares += np.multiply(cosines, cosines, out=cosines)
        squares[best] = np.inf
    return guesses, least


def _right(squares: Rows, cosines: Rows, least: Rows) -> int:
    """How many guesses come before the first that a rival is picked instead of."""
    if not len(squares):
        return len(least)
    earlier = np.square(cosines[:-1]).cumsum(axis=0)
    before = np.concatenate([squares[None], earlier + squares])  # sums before each guess
    wrong = (before <= least[:, None]).any(axis=1)
    return int(wrong.argmax()) if wrong.any() else len(least)
