"""The greedy search: one pick at a time, each the best of a probe or of the whole pool.

Letters: k rows of the pool, n rows of the batch, m rows of a probe, b rows picked so far.

The general form in torch, on any device and for any ranking. `least_similar.py` has the common
case, least squared similarity on a CPU, in a faster form.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.diversity import trace_after_adding
from eigenbatch.selectors.selector import shuffled


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
    order = random_order(len(rows), begun, generator, rows.device)  # (k,) not yet picked
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
            if len(picks) == batch_size:
                return torch.cat(picks)
            if len(picks) < begun:
                best, order = order[:1], order[1:]
                continue
            if stop is not None and stop(state):
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


def random_order(
    count: int, begun: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """A random order of rows that starts with the first `begun` ones as they are."""
    order = shuffled(count, generator, device)
    return (
        torch.cat([torch.arange(begun, device=device), order[order >= begun]]) if begun else order
    )
