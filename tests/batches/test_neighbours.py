"""Plans of neighbours against brute force on small data, and what they promise on large data."""

import pytest
import torch
from torch.nn.functional import normalize
from toys import two_towers

from eigenbatch import Neighbours, Random, select
from eigenbatch.batches import miss_of
from eigenbatch.batches.neighbours import CELL


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def similarity(rows):
    """(N, N) mean of <anchor, key'> and <key, anchor'>, in float64."""
    rows = rows.double()
    if rows.shape[1] == 1:
        return rows[:, 0] @ rows[:, 0].T
    forth = rows[:, 0] @ rows[:, 1].T
    return (forth + forth.T) / 2


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize(("count", "n"), [(60, 6), (64, 8), (61, 20), (300, 7)])
def test_every_batch_is_some_row_and_its_nearest_of_what_was_left(count, n, towers):
    rows = two_towers(count, 8)[:, :towers]
    near = similarity(rows)
    batches = Neighbours().plan(rows, n, generator=generator())
    left = set(batches.flatten().tolist())
    for batch in batches:
        others = torch.tensor(sorted(left))
        wanted = set(batch.tolist())

        def nearest(seed, others=others):
            values = near[seed, others].clone()
            values[others == seed] = torch.inf
            return set(others[values.topk(n).indices].tolist())

        assert any(nearest(seed) == wanted for seed in batch.tolist())
        left -= wanted


def test_a_single_batch_is_all_rows():
    batches = Neighbours().plan(two_towers(9), 9, generator=generator())
    assert sorted(batches[0].tolist()) == list(range(9))


def test_batches_of_a_large_plan_come_from_cells_of_similar_rows():
    """Neighbourhoods of 40 classes: most batches lie within one or two."""
    centres = torch.eye(40)
    labels = torch.arange(3 * CELL) % 40
    rows = normalize(centres[labels] + 0.05 * torch.randn(len(labels), 40, generator=generator()))
    batches = Neighbours().plan(rows[:, None], 32, generator=generator())
    assert batches.shape == (3 * CELL // 32, 32)
    pure = [len(labels[batch].unique()) <= 2 for batch in batches]
    assert sum(pure) / len(pure) > 0.6


def test_planned_batches_are_harder_than_random_ones_and_uncut_ones_hardly_more(monkeypatch):
    rows = two_towers(3 * CELL, 32, noise=0.8)
    random = Random().plan(rows, 64, generator=generator())
    cut = Neighbours().plan(rows, 64, generator=generator())
    monkeypatch.setattr("eigenbatch.batches.neighbours.CELL", 10**9)
    uncut = Neighbours().plan(rows, 64, generator=generator())
    misses = [miss_of(rows, plan, tau=0.1) for plan in (random, cut, uncut)]
    assert misses[0] < 0.5 * misses[1]
    assert misses[1] > 0.6 * misses[2]


def test_cells_differ_from_plan_to_plan():
    rows = two_towers(2 * CELL, 16)
    first, second = (Neighbours().plan(rows, 64, generator=generator(s)) for s in range(2))
    together = {frozenset(batch.tolist()) for batch in first}
    assert not together & {frozenset(batch.tolist()) for batch in second}


def test_equal_rows_are_planned_too():
    for rows in (torch.ones(50, 2, 4) / 2, torch.eye(4)[torch.arange(5000) % 4][:, None]):
        batches = Neighbours().plan(rows, 10, generator=generator())
        assert len(batches.unique()) == len(rows)


def test_as_a_selector_it_takes_a_random_row_and_its_nearest():
    pool = two_towers(100, 6)[:, 0]
    chosen = select(pool, 12, Neighbours(), generator=generator())
    seed = torch.randperm(100, generator=generator())[0]
    assert set(chosen.tolist()) == set((pool @ pool[seed]).topk(12).indices.tolist())


def test_the_miss_is_one_minus_the_positive_probability_over_both_sides():
    rows = two_towers(24, 8)
    batches = Random().plan(rows, 12, generator=generator())
    expected = []
    for batch in batches:
        z1, z2 = rows[batch].double().unbind(1)
        for logits in (z1 @ z2.T / 0.2, z2 @ z1.T / 0.2):
            expected.append((1 - logits.softmax(1).diagonal()).mean())
    assert miss_of(rows, batches, 0.2) == pytest.approx(torch.stack(expected).mean().item())


def test_the_miss_does_not_cancel_where_it_is_tiny():
    rows = torch.eye(4)[:, None].repeat(1, 2, 1)
    assert miss_of(rows, torch.arange(4)[None], 0.02) == pytest.approx(
        3 * torch.tensor(-1 / 0.02, dtype=torch.float64).exp().item(), rel=1e-4
    )


def test_one_tower_has_no_miss():
    assert miss_of(two_towers(10)[:, :1], torch.arange(10)[None], 0.1) is None
