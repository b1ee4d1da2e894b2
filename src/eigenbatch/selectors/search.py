"""The greedy search: one pick at a time, each the best of a probe or of the whole pool.

Letters: k rows of the pool, n rows of the batch, m rows of a probe, b rows picked so far.

`greedy_search` is the general form in torch, on any device and for any ranking. For the common
case, least squared similarity on a CPU, `least_similar` returns the same picks faster. The sums of
squared similarities to the picks need a product of the pool with every pick. One pick at a time
these products are slow, so both forms below make them for `WIDTH` picks at once:

- whole pool: the next picks are foreseen among the few rows of smallest sums. A row that was not
  foreseen begins the next product, so that the picks are exact.
- probes: rows are visited in random order, m at a time, so that a probe is a contiguous slice. The
  last picks, up to `WIDTH`, are multiplied with the rows of a probe only.

Small steps are numpy's, which has less overhead. Products are torch's unless they are small, too:
numpy's BLAS has threads of its own, which keep spinning after a larger product and slow the
training step that follows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.diversity import trace_after_adding
from eigenbatch.selectors.selector import shuffled

Rows = NDArray[np.floating]
WIDTH = 16
"""Columns of a product with the pool: as many as a processor does at once. 12 take longer."""

LIKELY = 64
"""Rows of smallest sums among which the next picks are foreseen."""

SMALL = 2**18
"""Multiplications of a product for which OpenBLAS, numpy's, starts no threads."""


@dataclass(slots=True)
class SearchState:
    """The batch so far, and how similar each row of the pool is to it; what a ranking may use."""

    size: int  # b
    trace: Tensor  # () tr(Sigma_B^2)
    squares: Tensor  # (k,) sum over B of <z, z'>^2
    cosines: Tensor  # (k,) sum over B of <z, z'>


Ranking = Callable[[SearchState], Tensor]
"""(k,) values of which the smallest is picked next."""


def least_squares(state: SearchState) -> Tensor:
    """Algorithm 2: smallest q_B, so the largest gain in effective rank."""
    return state.squares


def greedy_search(
    rows: Tensor,
    batch_size: int,
    *,
    ranking: Ranking = least_squares,
    probe: int | None = None,
    generator: torch.Generator | None = None,
    stop: Callable[[SearchState], bool] | None = None,
    begun: int = 0,
) -> Tensor:
    """Indices of the picks, in order; fewer than `batch_size` only if `stop` says so.

    The first `begun` rows are picked already; without any the first pick is random.
    """
    order = _order(len(rows), begun, generator, rows.device)  # (k,) not yet picked
    state = SearchState(
        size=0,
        trace=rows.new_zeros(()),
        squares=rows.new_zeros(len(rows)),
        cosines=rows.new_zeros(len(rows)),
    )
    picked = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    picks: list[Tensor] = []
    best, order, cursor = order[:1], order[1:], 0
    with no_autocast(rows):
        while True:
            _pick(best, rows, state)
            picks.append(best)
            picked[best] = True
            if len(picks) == batch_size or (stop is not None and stop(state)):
                return torch.cat(picks)
            if len(picks) < begun:
                best, order = order[:1], order[1:]
                continue
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


def _pick(best: Tensor, rows: Tensor, state: SearchState) -> None:
    """Add one row to B: trace by the one-step lemma, scores of all others in place."""
    if state.size:
        score = state.squares[best[0]] / state.size
        state.trace = trace_after_adding(state.trace, state.size, score)
    else:
        state.trace = torch.ones_like(state.trace)
    cosines = rows @ rows[best[0]]  # (k,)
    state.cosines += cosines
    state.squares += cosines.square_()
    state.size += 1


def _order(
    count: int, begun: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """A random order of rows that starts with the first `begun` ones as they are."""
    order = shuffled(count, generator, device)
    return (
        torch.cat([torch.arange(begun, device=device), order[order >= begun]]) if begun else order
    )


def least_similar(
    rows: Tensor,
    batch_size: int,
    *,
    probe: int | None,
    generator: torch.Generator | None,
    begun: int = 0,
) -> Tensor:
    """`greedy_search` by `least_squares`, by the fastest means the device has."""
    if rows.device.type != "cpu":
        return greedy_search(rows, batch_size, probe=probe, generator=generator, begun=begun)
    order = _order(len(rows), begun, generator, rows.device)
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
    block, added = torch.empty(WIDTH, len(rows), dtype=rows.dtype), np.empty_like(squares)
    best = int(squares.argmin())
    while len(picks) < batch_size:
        squares[best] = -1  # among equal rows too it is the first that is foreseen
        foreseen = _foreseen(rows, squares)
        torch.mm(rows[foreseen], rows.T, out=block[: len(foreseen)])
        cosines = dict(zip(foreseen.tolist(), block.numpy(), strict=False))
        while best in cosines and len(picks) < batch_size:
            np.multiply(cosines[best], cosines[best], out=added)
            np.add(squares, added, out=squares)
            squares[best] = np.inf
            picks.append(best)
            best = int(squares.argmin())
    return np.array(picks)


def _foreseen(rows: Tensor, squares: Rows) -> Tensor:
    """The next picks as if there were no rows but those of smallest sums; the first is certain."""
    likely = torch.from_numpy(_smallest(squares, LIKELY))
    near = rows.index_select(0, likely)
    gram, values = torch.mm(near, near.T).numpy(), squares[likely]
    np.multiply(gram, gram, out=gram)
    np.fill_diagonal(gram, np.inf)
    ahead = np.empty(min(WIDTH, len(likely)), dtype=np.int64)
    for i in range(len(ahead)):
        ahead[i] = values.argmin()
        np.add(values, gram[ahead[i]], out=values)
    return likely[torch.from_numpy(ahead)]


def _smallest(squares: Rows, count: int) -> NDArray[np.intp]:
    """Where the `count` smallest are, in order; of equal ones the first, as in `argmin`."""
    if count >= len(squares):
        return np.arange(len(squares))
    limit = torch.from_numpy(squares).topk(count, largest=False, sorted=False).values.max().item()
    found = np.flatnonzero(squares <= limit)
    if len(found) > count:
        last = np.flatnonzero(squares[found] == limit)[count - len(found) :]
        found = np.delete(found, last)
    return found


def _probed(
    rows: Rows,
    order: NDArray[np.int64],
    batch_size: int,
    probe: int,
    reshuffle: Callable[[int], NDArray[np.int64]],
    begun: int,
) -> NDArray[np.int64]:
    """Arg-min over the next `probe` rows of a random order at each step."""
    count, applied = min(begun, batch_size), 0
    ids, left = order[count:], rows[order[count:]]  # (k - g,), (k - g, d)
    picks = np.empty(batch_size, dtype=np.int64)
    picked = np.empty((batch_size, rows.shape[1]), dtype=rows.dtype)
    picks[:count], picked[:count] = order[:count], rows[order[:count]]
    squares = np.zeros(len(left), dtype=rows.dtype)
    while count < batch_size:
        taken: list[int] = []
        for start in range(0, max(1, len(left) - probe + 1), probe):
            if not taken or count - applied == WIDTH:
                squares += _square_sums(left, picked[applied:count])
                applied = count
            block = slice(start, start + probe)
            scores = squares[block] + _square_sums(left[block], picked[applied:count])
            best = start + int(scores.argmin())
            picks[count], picked[count] = ids[best], left[best]
            taken.append(best)
            count += 1
            if count == batch_size:
                return picks
        keep = np.delete(np.arange(len(left)), taken)
        keep = keep[reshuffle(len(keep))]
        ids, left, squares = ids[keep], left[keep], squares[keep]
    return picks


def _square_sums(rows: Rows, picked: Rows) -> Rows:
    """Sum over `picked` of squared similarities; (len(rows),)."""
    if rows.size * len(picked) <= SMALL:
        cosines = rows @ picked.T
    else:
        cosines = (torch.from_numpy(rows) @ torch.from_numpy(picked).T).numpy()
    sums: Rows = np.einsum("ij,ij->i", cosines, cosines)
    return sums
