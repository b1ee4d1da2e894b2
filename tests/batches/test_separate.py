"""Rows that belong apart are exchanged, and nothing else is changed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from eigenbatch import Greedy, Random, select
from eigenbatch.batches.separate import separate
from eigenbatch.errors import ShapeError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_batches(count, n, seed=0):
    return torch.randperm(count, generator=generator(seed))[: count // n * n].view(-1, n)


def clashes(batches, rows, groups=None, apart=None):
    """How many rows of each batch have an earlier one that they belong apart from; brute force."""

    def belong_apart(i, j):
        if groups is not None and groups[i] == groups[j]:
            return True
        return apart is not None and any(rows[i, t] @ rows[j, t] > apart for t in range(2))

    return sum(
        any(belong_apart(earlier, row) for earlier in batch[:j])
        for batch in batches.tolist()
        for j, row in enumerate(batch)
    )


@given(
    members=st.integers(1, 6),
    n=st.integers(2, 12),
    count=st.integers(2, 8),
    seed=st.integers(0, 99),
)
def test_groups_that_fit_are_separated_and_what_is_left_is_counted(members, n, count, seed):
    groups = torch.randperm(count * n, generator=generator(seed)) // members
    batches = random_batches(count * n, n, seed)
    rows = torch.empty(count * n, 1, 0)
    made, left = separate(batches, rows, groups=groups, generator=generator(seed))
    assert sorted(made.flatten().tolist()) == sorted(batches.flatten().tolist())
    assert left == clashes(made, rows, groups=groups)
    if members <= count // 2:
        assert left == 0


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_are_separated_even_where_every_sample_has_some(copies):
    rows = normalize(torch.randn(120, 2, 16, generator=generator()), dim=2).repeat(copies, 1, 1)
    batches = torch.arange(120 * copies).view(copies, 120).T.reshape(-1, 12)  # copies side by side
    assert clashes(batches, rows, apart=0.95) == 120 * (copies - 1)
    made, left = separate(batches, rows, apart=0.95, generator=generator())
    assert left == clashes(made, rows, apart=0.95) == 0


def test_a_near_duplicate_in_either_tower_counts():
    rows = normalize(torch.randn(40, 2, 16, generator=generator()), dim=2)
    rows[7, 1] = rows[3, 1]
    batches = torch.arange(40).view(4, 10)
    made, left = separate(batches, rows, apart=0.95, generator=generator())
    assert left == 0
    assert not any({3, 7} <= set(batch) for batch in made.tolist())
    assert (made != batches).sum() == 2


def test_nothing_moves_where_nothing_clashes():
    rows = normalize(torch.randn(40, 2, 16, generator=generator()), dim=2)
    batches = random_batches(40, 8)
    made, left = separate(batches, rows, groups=torch.arange(40), apart=0.95)
    assert torch.equal(made, batches)
    assert left == 0


def test_an_untrained_encoder_dissolves_no_plan():
    """All cosines are above the bar: they say nothing, and are counted."""
    rows = normalize(1 + 0.01 * torch.randn(40, 2, 16, generator=generator()), dim=2)
    batches = random_batches(40, 8)
    made, left = separate(batches, rows, apart=0.95, generator=generator())
    assert torch.equal(made, batches)
    assert left == 35


def test_more_members_than_batches_are_counted_and_ended():
    groups = torch.arange(60) % 5
    made, left = separate(random_batches(60, 12), torch.empty(60, 1, 0), groups=groups)
    assert left == clashes(made, None, groups=groups) >= 35


def test_neighbouring_batches_are_preferred():
    """A planner makes batches of one cell follow each other: rows stay near where they were."""
    groups = torch.arange(4000)
    groups[1:400:2] = groups[:400:2]
    batches = torch.arange(4000).view(-1, 10)
    made, left = separate(batches, torch.empty(4000, 1, 0), groups=groups, generator=generator())
    moved = (made // 10 - torch.arange(400)[:, None]).abs()
    assert left == 0
    assert (moved <= 8).float().mean() > 0.99


@pytest.mark.parametrize("selector", [Random(), Greedy()])
def test_one_batch_is_separated_against_the_rest_of_its_pool(selector):
    pool, groups = torch.randn(40, 8, generator=generator()), torch.arange(40) // 4
    chosen = select(pool, 10, selector, groups=groups, generator=generator())
    assert len(groups[chosen].unique()) == len(chosen) == 10
    copies = torch.eye(8).repeat(3, 1)
    chosen = select(copies, 8, Random(), apart=0.95, generator=generator())
    assert sorted(chosen.remainder(8).tolist()) == list(range(8))


def test_groups_of_another_size_are_named():
    with pytest.raises(ShapeError, match="groups must hold 40 integers"):
        select(torch.randn(40, 8), 10, Random(), groups=torch.arange(39))
