import pytest
import torch

from clouds import cloud, unit
from eigenbatch import (
    Blend,
    Greedy,
    Neighbours,
    NoNearDuplicates,
    OnePerGroup,
    PoolBalanced,
    PoolMax,
    Random,
)
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.selectors import AfterBatches, EveryNth, Schedule
from eigenbatch.selectors.offer import Offer, complete, distinct


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def two_towers(count=60, dim=6):
    return torch.cat([unit(cloud("random", count, dim, seed=s)) for s in (1, 2)], dim=1)


COMPLETING = {
    "random": Random(),
    "greedy": Greedy(probe=None),
    "greedy_8": Greedy(probe=8),
    "centroid": Greedy(score="centroid"),
    "similar": Blend(-0.5),
    "diverse": Blend(0.5),
    "neighbours": Neighbours(3),
    "one_neighbour": Neighbours(1),
    "guarded": NoNearDuplicates(Neighbours(2), 0.999),
    "grouped": OnePerGroup(Neighbours(2), torch.arange(60)),
    "schedule": Schedule(Random(), Greedy(), AfterBatches(0)),
    "every_nth": EveryNth(Neighbours(2), 1, Random()),
    "p1": PoolMax(),
    "p3": PoolBalanced(),
    "p1_of_any_norm, which cannot": PoolMax(normalize=False),
}


@pytest.mark.parametrize("selector", COMPLETING.values(), ids=COMPLETING)
@pytest.mark.parametrize("given", [[], [7], [50, 3, 21, 8, 0]])
def test_a_batch_begins_with_the_given_rows_and_holds_no_barred_one(selector, given):
    barred = torch.zeros(60, dtype=torch.bool)
    barred[10:20] = True
    offer = Offer(
        rows=unit(cloud("random", 60, 6)), given=torch.tensor(given).long(), barred=barred
    )
    chosen = complete(selector, offer, 12, generator=generator())
    assert chosen[: len(given)].tolist() == given
    assert len(chosen.unique()) == 12
    assert not barred[chosen].any()


@pytest.mark.parametrize("selector", [Neighbours(2), Greedy(), PoolMax(), Random()])
def test_more_given_rows_than_the_batch_holds_are_refused(selector):
    offer = Offer(rows=torch.eye(8), given=torch.arange(5))
    with pytest.raises(ShapeError, match="5 rows are given, but batch_size is 3"):
        selector.complete(offer, 3)


def test_given_rows_are_the_seeds_and_bring_their_nearest():
    rows = unit(cloud("random", 200, 8))
    offer = Offer(rows=rows, given=torch.tensor([5, 90]))
    chosen = Neighbours(2).complete(offer, 22, generator=generator())
    cosines = rows @ rows[[5, 90]].T  # (k, 2)
    cosines[[5, 90]] = -2
    turns = chosen[2:].view(10, 2)
    for step, (first, second) in enumerate(turns.tolist()):
        earlier = turns[:step].flatten()
        for seed, pick in enumerate((first, second)):
            free = cosines[:, seed].clone()
            free[earlier] = -2
            free[turns[:, 0]] = -2 if seed else free[turns[:, 0]]  # the first seed chooses first
            assert free.argmax() == pick


def test_greedy_completes_the_given_rows_as_brute_force_does():
    rows = unit(cloud("anisotropic", 80, 6))
    given = torch.tensor([4, 60, 33])
    batch = given.tolist()
    while len(batch) < 12:
        squares = (rows @ rows[batch].T).square().sum(1)
        squares[batch] = torch.inf
        batch.append(int(squares.argmin()))
    offer = Offer(rows=rows, given=given)
    assert Greedy(probe=None).complete(offer, 12, generator=generator()).tolist() == batch


def test_the_beginning_of_a_batch_is_a_batch_of_all_seeds():
    pool = torch.eye(4).repeat(30, 1)
    chosen = Neighbours(4)(pool, 40, generator=generator(3))
    kinds = [set((chosen[:n] % 4).tolist()) for n in (4, 8, 20, 40)]
    assert all(kind == kinds[0] for kind in kinds)


def test_with_two_towers_a_neighbour_is_a_hard_negative_in_both_directions():
    rows = two_towers()
    anchors, keys = rows.chunk(2, dim=1)
    offer = Offer(rows=rows, towers=2, given=torch.tensor([9]))
    expected = (keys @ anchors[9] + anchors @ keys[9]) / 2
    assert torch.allclose(offer.similarity(torch.tensor([9])).squeeze(1), expected)
    expected[9] = -2
    chosen = Neighbours(1).complete(offer, 8, generator=generator())
    assert chosen[1:].tolist() == expected.topk(7).indices.tolist()


def test_a_subclass_that_changes_the_call_is_called():
    class First(Random):
        def __call__(self, pool, batch_size, *, generator=None):
            return torch.arange(batch_size)

    offer = Offer(rows=unit(cloud("random", 20, 4)), given=torch.tensor([15]))
    assert complete(First(), offer, 5).tolist() == [15, 0, 1, 2, 3]


def test_an_offer_that_cannot_fill_a_batch_is_refused():
    offer = Offer(rows=unit(cloud("random", 10, 4)), barred=torch.arange(10) > 4)
    with pytest.raises(ShapeError, match="0 given rows and 5 to choose from"):
        Neighbours().complete(offer, 6)


@pytest.mark.parametrize("size", [40, 4000])
def test_distinct_numbers_are_free_ones_and_all_can_come(size):
    taken = torch.arange(size) % 2 == 0
    drawn = distinct(10, taken, size, generator())
    assert len(set(drawn.tolist())) == 10
    assert not taken[drawn].any()
    assert len(distinct(size, taken, size, generator())) == size // 2


class TestGuard:
    def test_with_copies_in_the_pool_hard_batches_hold_one_of_each(self):
        pool = cloud("random", 300, 16).repeat(3, 1)
        chosen = NoNearDuplicates(Neighbours(2), 0.99)(pool, 60, generator=generator())
        assert len((chosen % 300).unique()) == 60
        rows = unit(pool)
        hardness = (rows[chosen] @ rows[chosen].T).mean()
        unique = Neighbours(2)(pool[:300], 60, generator=generator())
        assert hardness > 0.8 * (rows[unique] @ rows[unique].T).mean()

    def test_a_negative_is_at_most_a_share_of_the_positive_of_every_anchor_and_key(self):
        anchors = unit(cloud("random", 200, 32))
        anchors[1::2] = unit(anchors[::2] + 0.45 * unit(cloud("random", 100, 32, seed=7)))
        noise = torch.where(torch.arange(200) % 4 == 0, 0.7, 0.1)[:, None]  # unequal positives
        keys = unit(anchors + noise * unit(cloud("random", 200, 32, seed=5)))
        offer = Offer(rows=torch.cat([anchors, keys], dim=1), towers=2)

        def over(chosen):
            a, k = anchors[chosen], keys[chosen]
            positive = (a * k).sum(1)
            assert positive.min() > 0.6  # above random negatives
            similar = (a @ k.T).fill_diagonal_(-1)
            return int(((similar > 0.95 * positive[:, None]) | (similar > 0.95 * positive)).sum())

        guard = NoNearDuplicates(Neighbours(2), None, relative=0.95)
        assert over(guard.complete(offer, 60, generator=generator())) == 0
        assert over(Neighbours(2).complete(offer, 60, generator=generator())) > 0

    def test_badly_embedded_pairs_do_not_exclude_everything(self):
        around = 1.5 * torch.eye(16)[0]  # every row is similar to every other one
        anchors = unit(unit(cloud("random", 600, 16)) + around)
        keys = unit(anchors + 0.3 * unit(cloud("random", 600, 16, seed=5)))
        keys[:2] = -keys[:2]
        similar = anchors @ keys.T
        assert (similar[:2].diagonal() < -0.8).all()
        offer = Offer(rows=torch.cat([anchors, keys], dim=1), towers=2, given=torch.tensor([0, 1]))
        guard = NoNearDuplicates(Random(), None, relative=0.95)  # would raise
        chosen = guard.complete(offer, 16, generator=generator())
        assert len(chosen.unique()) == 16

    @pytest.mark.parametrize("batch_size", [32, 256])
    def test_untrained_towers_do_not_exclude_everything(self, batch_size):
        rows = torch.cat([unit(cloud("random", 4000, 32, seed=s)) for s in (1, 2)], dim=1)
        guard = NoNearDuplicates(Neighbours(4), relative=0.95)  # would raise
        chosen = guard.complete(Offer(rows=rows, towers=2), batch_size, generator=generator())
        assert len(chosen.unique()) == batch_size

    def test_relative_needs_two_towers_or_the_similarity_of_positives(self):
        pool = cloud("random", 40, 8)
        with pytest.raises(ParameterError, match="towers=2"):
            NoNearDuplicates(Random(), relative=0.9)(pool, 8)
        chosen = NoNearDuplicates(Random(), None, relative=0.9, positive=0.5)(pool, 4)
        rows = unit(pool[chosen])
        assert (rows @ rows.T).fill_diagonal_(-1).max() <= 0.45

    def test_given_rows_stay_although_they_are_copies_of_each_other(self):
        rows = unit(cloud("random", 30, 8)).repeat(2, 1)
        offer = Offer(rows=rows, given=torch.tensor([3, 33]))
        chosen = NoNearDuplicates(Random(), 0.999).complete(offer, 20, generator=generator())
        assert chosen[:2].tolist() == [3, 33]
        assert len((chosen[2:] % 30).unique()) == 18
        assert 3 not in (chosen[2:] % 30).tolist()
