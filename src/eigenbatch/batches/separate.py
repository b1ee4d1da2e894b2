"""Keep near-duplicates, and samples of one group, out of one batch.

Copies and paraphrases of a sample are no negatives of it. Rows that should not stand together are
exchanged with rows of batches nearby, which a planner makes of similar rows. Letters: B batches of
n rows, N rows, w misplaced rows.
"""

import torch
from torch import Tensor

from eigenbatch.core.contrast import no_autocast

ROUNDS = 12
"""Exchanges at random, of all misplaced rows at once."""

NEARBY = 8
"""How many batches away "nearby" reaches."""

HOPELESS = 0.9
"""Share of rows with an earlier near-duplicate in their batch, of all that can have one, from which
on cosines say nothing, as those of an untrained encoder."""

SEARCHED, CANDIDATES = 64, 4096
"""Rows that are left then, at most, and the places among which each is looked for."""

ELEMENTS = 2**21
"""Cosines held at once."""


def separate(
    batches: Tensor,
    rows: Tensor,
    *,
    groups: Tensor | None = None,
    apart: float | None = None,
    spare: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, int]:
    """Exchange rows between batches until no two rows of a batch belong apart, as far as possible.

    Args:
        batches: (B, n) indices of rows.
        rows: (N, towers, d) unit rows.
        groups: (N,) integers: rows of one group belong apart.
        apart: rows with a larger cosine within a tower belong apart; None: no limit.
        spare: (s,) further rows to exchange with, which are in no batch.
        generator: the source of randomness.

    Returns:
        New batches, and how many of their rows still belong apart from another one.
    """
    count, n = batches.shape
    places = batches.flatten() if spare is None else torch.cat([batches.flatten(), spare])
    places = places.clone()  # the first B n of them are the batches
    near = None if apart is None else _near(batches, rows, apart)
    hopeless = 0 if near is None else int(near.sum())
    if hopeless > HOPELESS * count * (n - 1):
        near = None
    else:
        hopeless = 0

    def misplaced(some: Tensor, near: Tensor | None) -> Tensor:
        """(w,) places in some batches whose row belongs apart from an earlier one of its batch."""
        now = places[: count * n].view(count, n)[some]
        found = torch.zeros_like(now, dtype=torch.bool) if near is None else near
        if groups is not None:
            found = found | _again(groups[now])
        inside = found.nonzero()  # (w, 2)
        return some[inside[:, 0]] * n + inside[:, 1]

    wrong = misplaced(torch.arange(count, device=places.device), near)
    for _ in range(ROUNDS):
        if not len(wrong) or len(places) == n:
            break
        reach = min(NEARBY * n, len(places))
        draw = torch.rand(len(wrong), generator=generator).to(places.device)
        others = (wrong + n + (draw * (2 * reach)).long() - reach) % len(places)
        kept = _matched(wrong, others, len(places))
        one, two = wrong[kept], others[kept]
        places[one], places[two] = places[two], places[one]
        touched = torch.unique(torch.cat([one, two]) // n)
        waiting = wrong[~torch.isin(wrong // n, touched)]
        touched = touched[touched < count]
        now = places[: count * n].view(count, n)[touched]
        again = None if near is None else _near(now, rows, apart)
        wrong = torch.cat([waiting, misplaced(touched, again)])
    bar = None if near is None else apart
    for place in wrong[:SEARCHED].tolist():
        _exchange(place, places, count, n, rows, groups, bar, generator)
    result = places[: count * n].view(count, n)
    doubtful = torch.unique(wrong // n)
    left = misplaced(doubtful, None if near is None else _near(result[doubtful], rows, apart))
    return result, len(left) + hopeless


def _exchange(
    place: int,
    places: Tensor,
    count: int,
    n: int,
    rows: Tensor,
    groups: Tensor | None,
    apart: float | None,
    generator: torch.Generator | None,
) -> None:
    """Look for a place whose row may change with the one at `place`, and exchange them."""
    start = place // n * n
    own = torch.cat([places[start:place], places[place + 1 : start + n]])  # the rest of its batch
    drawn = torch.randperm(len(places), generator=generator)[:CANDIDATES].to(places.device)
    drawn = drawn[(drawn < start) | (drawn >= start + n)]
    fits = ~_conflicts(places[drawn], own, rows, groups, apart).any(1)
    drawn = drawn[fits]  # rows that may come here; where may the present one go?
    if not len(drawn):
        return
    clashes = _alike(rows, int(places[place]), groups, apart)[places]  # with it, by place
    clashes[place] = False
    inside = clashes[: count * n].view(count, n).sum(1)  # (B,)
    free = torch.ones(len(drawn), dtype=torch.bool, device=drawn.device)
    seated = drawn < count * n
    free[seated] = inside[drawn[seated] // n] == clashes[drawn[seated]]  # nobody but who leaves
    if free.any():
        other = drawn[free][0]
        places[place], places[other] = places[other].clone(), places[place].clone()


def _conflicts(
    some: Tensor, others: Tensor, rows: Tensor, groups: Tensor | None, apart: float | None
) -> Tensor:
    """(s, o) True for pairs of rows that belong apart."""
    found = torch.zeros(len(some), len(others), dtype=torch.bool, device=some.device)
    if groups is not None:
        found |= groups[some][:, None] == groups[others]
    if apart is not None:
        with no_autocast(rows):
            for tower in range(rows.shape[1]):
                found |= rows[some, tower] @ rows[others, tower].T > apart
    return found


def _alike(rows: Tensor, one: int, groups: Tensor | None, apart: float | None) -> Tensor:
    """(N,) True for rows that belong apart from row `one`; all in place, without a copy."""
    size = len(rows) if groups is None else len(groups)
    found = torch.zeros(size, dtype=torch.bool, device=rows.device)
    if groups is not None:
        found |= groups == groups[one]
    if apart is not None:
        with no_autocast(rows):
            for tower in range(rows.shape[1]):
                found |= rows[:, tower] @ rows[one, tower] > apart
    return found


def _again(values: Tensor) -> Tensor:
    """(b, n) True where an earlier column of the row has the same value."""
    ordered, order = values.sort(dim=1, stable=True)
    same = torch.zeros_like(values, dtype=torch.bool)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(same).scatter_(1, order, same)


def _near(batches: Tensor, rows: Tensor, apart: float | None) -> Tensor:
    """(b, n) True for rows with a cosine above `apart` to an earlier row of their batch."""
    assert apart is not None
    found = torch.zeros_like(batches, dtype=torch.bool)
    size = max(1, ELEMENTS // batches.shape[1] ** 2)
    for start in range(0, len(batches), size):
        block = slice(start, start + size)
        several = rows[batches[block]]  # (b, n, towers, d)
        with no_autocast(rows):
            for tower in several.unbind(2):
                close = (tower @ tower.mT) > apart  # (b, n, n)
                found[block] |= close.triu_(1).any(1)
    return found


def _matched(one: Tensor, two: Tensor, count: int) -> Tensor:
    """(w,) pairs of places, such that no place is in two of them: the first pair of a place."""
    turn = torch.arange(len(one), device=one.device)
    first = torch.full((count,), len(one), device=one.device)
    for side in (one, two):
        first.scatter_reduce_(0, side, turn, "amin")
    return (first[one] == turn) & (first[two] == turn)
