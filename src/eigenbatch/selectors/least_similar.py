"""Greedy search by least squared similarity on a CPU: the picks of `greedy_search`, sooner.

Letters as in `search.py`: k rows of the pool, n rows of the batch, m rows of a probe.

The sums of squared similarities to the picks need a product of the pool with every pick. One pick
at a time these products are slow, so both forms below multiply many rows with many picks at once,
and keep only a few sums up to date from one pick to the next:

- whole pool: the next picks are guessed among the rows of smallest sums. The product of the pool
  with the guesses shows which of them are right, so that the picks are exact.
- probes: rows are visited in random order, m at a time, so that a probe is a contiguous slice. The
  sums of a group of probes are brought up to date when the first of them is visited.

Small steps are numpy's, which has less overhead. Products are torch's unless they are small, too:
numpy's BLAS has threads of its own, which keep spinning after a larger product and slow the
training step that follows.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.search import greedy_search, random_order
from eigenbatch.selectors.selector import shuffled

Rows = NDArray[np.floating]
COLUMNS = 16
"""Columns that a product has a multiple of: as many as a processor does at once."""

FIRST = 5
"""Picks that are not guessed: the sums of fewer say too little about the next ones."""

GUESSES = 3 * COLUMNS
"""Picks that are guessed at a time, at most, or twice as many where no far row is a rival.

More of them cost less, as long as they are right.
"""

EARLIER = np.tril(np.ones((2 * GUESSES, 2 * GUESSES), dtype=np.float32), k=-1)
"""EARLIER @ squares are the sums before each guess."""

NEAR = 512
"""Rows of smallest sums, about, among which the next picks are guessed; a tenth of larger pools."""

SAMPLE = 8
"""One sum in so many is looked at to find the limit of the near rows."""

GROUP = 1024
"""Rows of the probes whose sums are brought up to date together."""

SMALL = 2**18
"""Multiplications of a product for which OpenBLAS, numpy's, starts no threads."""


def least_similar(
    rows: Tensor,
    batch_size: int,
    *,
    probe: int | None,
    generator: torch.Generator | None,
    begun: int = 0,
) -> Tensor:
    """`greedy_search` by `least_squares`, by the fastest means the device has."""
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return greedy_search(rows, batch_size, probe=probe, generator=generator, begun=begun)
    rows = rows.detach()
    order = random_order(len(rows), begun, generator, rows.device)
    begun = max(1, begun)

    def reshuffle(count: int) -> NDArray[np.int64]:
        return shuffled(count, generator, rows.device).numpy()

    with no_autocast(rows):
        if probe is None:
            picks = _whole_pool(rows, order[:begun], batch_size)
        else:
            picks = _probed(rows.numpy(), order.numpy(), batch_size, probe, reshuffle, begun)
    return torch.from_numpy(picks)


def _whole_pool(rows: Tensor, first: Tensor, batch_size: int) -> NDArray[np.int64]:
    """Arg-min over all rows at each step."""
    picks: list[int] = first[:batch_size].tolist()
    matrix = rows.numpy()
    squares = _square_sums(matrix, matrix[picks])
    squares[picks] = np.inf
    picks += _guessed(matrix, squares, max(0, min(FIRST, batch_size) - len(picks)))[0].tolist()
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
            rivals = _rivals(squares, far, least)
            cosines = torch.mm(guessed, torch.from_numpy(matrix.take(rivals, axis=0)).T).numpy()
            if _right(squares[rivals], cosines, least) == count:
                return np.array([*picks, *guesses])
        cosines = torch.mm(guessed, rows.T, out=products[:count]).numpy()  # (count, k)
        for start in range(0, count, COLUMNS):
            part = slice(start, min(start + COLUMNS, count))
            rivals = _rivals(squares, far, least[part])
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
        _add_squares(squares, near, near[best], cosines)
        squares[best] = np.inf
    return guesses, least


def _rivals(squares: Rows, far: NDArray[np.bool_], least: Rows) -> NDArray[np.int64]:
    """Far rows that might be picked instead of a guess: sums only grow."""
    return np.flatnonzero(far & (squares <= least[-1]))


def _right(squares: Rows, cosines: Rows, least: Rows) -> int:
    """How many guesses come before the first that a rival is picked instead of."""
    if not len(squares):
        return len(least)
    earlier = torch.from_numpy(EARLIER[: len(least), : len(least)].astype(cosines.dtype))
    before = (earlier @ torch.from_numpy(np.square(cosines))).numpy() + squares
    wrong = (before <= least[:, None]).any(axis=1)
    return int(wrong.argmax()) if wrong.any() else len(least)


def _probed(
    rows: Rows,
    order: NDArray[np.int64],
    batch_size: int,
    probe: int,
    reshuffle: Callable[[int], NDArray[np.int64]],
    begun: int,
) -> NDArray[np.int64]:
    """Arg-min over the next `probe` rows of a random order at each step."""
    count = min(begun, batch_size)
    ids, left = order[count:], rows.take(order[count:], axis=0)  # (k - g,), (k - g, d)
    picks = np.empty(batch_size, dtype=np.int64)
    picked = np.zeros((batch_size + COLUMNS, rows.shape[1]), dtype=rows.dtype)  # 0: not yet
    picks[:count], picked[:count] = order[:count], rows[order[:count]]
    squares = _square_sums(left, picked[:count])
    size = max(1, GROUP // probe) * probe
    while count < batch_size:  # a pass over the rows that are left
        begin, taken = count, np.empty(0, dtype=np.int64)
        visited = len(left) // probe * probe or len(left)
        sums_of = [(slice(visited, None), begin)]  # rows, and the picks that their sums are of
        for start in range(0, visited, size):
            group = slice(start, min(start + size, visited))
            squares[group] += _square_sums(left[group], picked[_columns(begin, count)])
            sums_of.append((group, count))
            best = start + _best_of_probes(left[group], squares[group], probe, batch_size - count)
            now = slice(count, count + len(best))
            picks[now], picked[now] = ids[best], left[best]
            taken, count = np.concatenate([taken, best]), now.stop
            if count == batch_size:
                return picks
        for group, applied in sums_of:
            squares[group] += _square_sums(left[group], picked[_columns(applied, count)])
        keep = np.delete(np.arange(len(left)), taken)
        keep = keep[reshuffle(len(keep))]
        ids, left, squares = ids[keep], left.take(keep, axis=0), squares[keep]
    return picks


def _columns(start: int, stop: int) -> slice:
    """From `start` to `stop`, or later, so that it is a multiple of `COLUMNS`."""
    return slice(start, start - (start - stop) // COLUMNS * COLUMNS)


def _best_of_probes(rows: Rows, squares: Rows, probe: int, most: int) -> NDArray[np.int64]:
    """The best of each `probe` rows in turn, at most so many; later sums include earlier picks."""
    sums, cosines, found = squares.copy(), np.empty_like(squares), []
    for start in range(0, len(rows), probe)[:most]:
        stop = start + probe
        best = start + int(sums[start:stop].argmin())
        found.append(best)
        _add_squares(sums[stop:], rows[stop:], rows[best], cosines[stop:])
    return np.array(found)


def _add_squares(sums: Rows, rows: Rows, pick: Rows, cosines: Rows) -> None:
    """Add squared similarities to one pick to the sums of some rows; `cosines` is overwritten."""
    if rows.size <= SMALL:
        np.dot(rows, pick, out=cosines)
    else:
        torch.mv(*map(torch.from_numpy, (rows, pick)), out=torch.from_numpy(cosines))
    np.multiply(cosines, cosines, out=cosines)
    np.add(sums, cosines, out=sums)


def _square_sums(rows: Rows, picked: Rows) -> Rows:
    """Sum over `picked` of squared similarities; (len(rows),)."""
    if rows.size * len(picked) <= SMALL:
        cosines = picked @ rows.T
    else:
        cosines = (torch.from_numpy(picked) @ torch.from_numpy(rows).T).numpy()
    sums: Rows = np.einsum("ij,ij->j", cosines, cosines)
    return sums
