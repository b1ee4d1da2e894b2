"""Every sample once per epoch, whatever is known, planned, filled or resumed."""

import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import LeastSimilar, Newest, filled_cache, random_rows, two_towers

from eigenbatch import (
    Auto,
    EmbeddingCache,
    Greedy,
    Neighbours,
    PoolBalanced,
    PoolMin,
    Random,
    Schedule,
    SpectralBatchSampler,
)
from eigenbatch.batches import AfterBatches, EveryNth, OnLossPlateau, RankSteady
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError, StateError

PAIRS = two_towers(64, seed=5)


def auto(limit=8.0):
    return Auto(
        0.1, held_out=lambda: PAIRS[:32].unbind(1), trained=lambda: PAIRS[32:].unbind(1),
        limit=limit,
    )  # fmt: skip


PLANNERS = {
    "random": Random,
    "neighbours": Neighbours,
    "auto": auto,
    "greedy": Greedy,
    "p3": PoolBalanced,
    "newest": Newest,
    "least similar": LeastSimilar,
    "schedule": lambda: Schedule(Random(), Neighbours(), AfterBatches(5)),
    "p1 to p3": lambda: Schedule(Newest(), PoolBalanced(), RankSteady()),
    "every second": lambda: EveryNth(PoolMin(), 2, PoolBalanced()),
    "flat": lambda: OnLossPlateau(PoolMin(), Neighbours()),
}


def flat(batches):
    return [i for batch in batches for i in batch]


def embedded(size, step, towers=2):
    """Rows that depend on sample and time."""
    rows = torch.sin(torch.outer(torch.arange(size) + 1.0, torch.arange(1.0, 9)) * (step + 1))
    return (rows, rows.roll(1, 1))[:towers]


class Loop:
    """A training loop in which every plan depends on all batches before it."""

    def __init__(self, size, batch_size, planner, *, known=(), fill_at=None, **arguments):
        self.cache = EmbeddingCache(size, 8, towers=2)
        if len(known):
            rows = two_towers(size, seed=3)[list(known)]
            self.cache.update(list(known), *rows.unbind(1))
        self.sampler = SpectralBatchSampler(self.cache, batch_size, planner, **arguments)
        self.fill_at, self.epoch, self.step = fill_at, 0, 0

    def run(self, epochs, until=None):
        """Batches by epoch, up to a step."""
        done = {}
        while self.epoch < epochs:
            self.sampler.set_epoch(self.epoch)
            for ids in self.sampler:
                done.setdefault(self.epoch, []).append(ids)
                z1, z2 = embedded(self.cache.size, self.step)
                self.cache.update(ids, z1[ids], z2[ids])
                self.step += 1
                if self.step == self.fill_at:
                    everything = torch.arange(self.cache.size)
                    self.cache.fill(lambda batch: batch, [(everything, (z1, z2))], progress=False)
                if self.step == until:
                    return done
            self.epoch += 1
        return done

    def state(self):
        return {
            "cache": self.cache.state_dict(), "sampler": self.sampler.state_dict(),
            "epoch": self.epoch, "step": self.step,
        }  # fmt: skip

    def load(self, state):
        self.cache.load_state_dict(state["cache"])
        self.sampler.load_state_dict(state["sampler"])
        self.epoch, self.step = state["epoch"], state["step"]
        return self


@settings(max_examples=150)
@given(
    name=st.sampled_from(list(PLANNERS)),
    size=st.integers(2, 90),
    batch_size=st.integers(1, 20),
    horizon=st.integers(1, 200),
    share=st.sampled_from([0, 0.3, 1]),
    fill_at=st.none() | st.integers(1, 12),
    drop_last=st.booleans(),
    groups=st.booleans(),
)
def test_every_sample_comes_exactly_once_per_epoch(
    name, size, batch_size, horizon, share, fill_at, drop_last, groups
):
    batch_size = min(batch_size, size)
    loop = Loop(
        size, batch_size, PLANNERS[name](), known=range(int(share * size)), fill_at=fill_at,
        horizon=max(horizon, batch_size), drop_last=drop_last,
        groups=torch.arange(size) // 2 if groups else None,
    )  # fmt: skip
    count = len(loop.sampler)
    assert count == (size // batch_size if drop_last else -(-size // batch_size))
    for batches in loop.run(3).values():
        assert len(batches) == count
        assert all(len(batch) == batch_size for batch in batches[: size // batch_size])
        seen = flat(batches)
        assert len(set(seen)) == len(seen) == (count * batch_size if drop_last else size)
        assert all(type(i) is int for i in seen)


@settings(max_examples=80)
@given(
    name=st.sampled_from(list(PLANNERS)),
    size=st.integers(6, 60),
    batch_size=st.integers(1, 12),
    horizon=st.integers(12, 100),
    cut=st.integers(1, 30),
    fill_at=st.none() | st.integers(1, 20),
    drop_last=st.booleans(),
)
def test_a_resumed_run_continues_with_the_batches_of_the_whole_one(
    name, size, batch_size, horizon, cut, fill_at, drop_last
):
    batch_size = min(batch_size, size)
    arguments = {"fill_at": fill_at, "horizon": max(horizon, batch_size), "drop_last": drop_last}

    def loop():
        return Loop(size, batch_size, PLANNERS[name](), **arguments)

    whole = loop().run(3)
    first = loop()
    begun = first.run(3, until=cut)
    rest = loop().load(first.state()).run(3)
    for epoch, batches in whole.items():
        assert begun.get(epoch, []) + rest.get(epoch, []) == batches


@pytest.mark.parametrize("name", PLANNERS)
def test_batches_depend_on_seed_epoch_cache_and_planner_only(name):
    def batches(seed, epoch):
        sampler = SpectralBatchSampler(filled_cache(60, towers=2), 8, PLANNERS[name](), seed=seed)
        torch.manual_seed(torch.seed() % 1000)  # the global generator has no say
        sampler.set_epoch(epoch)
        return list(sampler)

    first = batches(1, 2)
    assert first == batches(1, 2)
    assert first != batches(1, 3)
    assert first != batches(2, 2)


def test_the_global_generator_is_neither_read_nor_seeded():
    sampler = SpectralBatchSampler(filled_cache(60), 8, Greedy())
    before = torch.random.get_rng_state()
    list(sampler)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_long_epoch_is_planned_part_by_part_from_the_cache_as_it_is_then():
    cache, plans = filled_cache(100, towers=2), []
    sampler = SpectralBatchSampler(cache, 10, Neighbours(), horizon=45)
    for _ in sampler:
        if not plans or plans[-1] is not sampler.plan:
            plans.append(sampler.plan)
    assert [(plan.first, plan.batches) for plan in plans] == [(0, 4), (4, 4), (8, 2)]


def test_batches_handed_out_never_change_and_a_fill_plans_the_rest_anew():
    cache = EmbeddingCache(80, 8, towers=2)
    sampler = SpectralBatchSampler(cache, 8, Neighbours())
    batches = []
    for ids in sampler:
        batches.append(ids)
        if len(batches) == 3:
            assert sampler.plan.known == 0
            order = sampler.state_dict()["order"].clone()
            rows = two_towers(80)
            cache.fill(lambda batch: batch.unbind(1), [(torch.arange(80), rows)], progress=False)
    assert sampler.plan.first == 3
    assert sampler.plan.known == 56
    after = sampler.state_dict()["order"]
    assert torch.equal(after[:24], order[:24])
    assert sorted(after.tolist()) == list(range(80))
    assert not torch.equal(after, order)


def test_what_is_known_decides_nothing_but_a_fill():
    """Updates during an epoch do not trigger a plan: the rest stays as it was planned."""
    cache = filled_cache(40, towers=2)
    sampler = SpectralBatchSampler(cache, 8, Neighbours())
    batches = iter(sampler)
    next(batches)
    planned = sampler.state_dict()["order"].tolist()
    cache.update(range(40), *two_towers(40, seed=9).unbind(1))
    assert flat([planned[:8], *batches]) == planned


def test_unknown_samples_share_random_batches_and_one_batch_holds_both():
    cache = EmbeddingCache(100, 8, towers=2)
    known = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:53]
    cache.update(known, *two_towers(53).unbind(1))
    shares = [
        len(set(batch) & set(known.tolist()))
        for batch in SpectralBatchSampler(cache, 10, Neighbours())
    ]
    assert sorted(shares) == [0, 0, 0, 0, 3, 10, 10, 10, 10, 10]


@pytest.mark.parametrize("name", ["greedy", "p3", "random", "every second"])
def test_with_replacement_every_batch_comes_from_a_fresh_pool(name):
    sampler = SpectralBatchSampler(
        filled_cache(100), 10, PLANNERS[name](), replace=True, pool_size=40
    )
    batches = list(sampler)
    assert len(batches) == 10
    assert all(len(set(batch)) == 10 for batch in batches)
    assert len(set(flat(batches))) < 90  # of 100: drawn without regard to the batches before


def test_with_replacement_a_batch_is_what_the_selector_makes_of_its_pool():
    pools = []

    def first_rows(pool, batch_size, *, generator=None):
        pools.append(pool)
        return torch.arange(batch_size)

    cache = filled_cache(50)
    sampler = SpectralBatchSampler(cache, 5, first_rows, replace=True, pool_size=20)
    batches = list(sampler)
    assert [len(pool) for pool in pools] == [20] * 10
    made = {tuple(cache.get(batch).flatten().tolist()) for batch in batches}
    assert made == {tuple(pool[:5].flatten().tolist()) for pool in pools}


def test_the_last_batches_of_a_selector_are_not_what_it_avoids():
    """Half of each batch are the rows that were in the window longest."""
    rows = random_rows(800, 16) * torch.arange(1, 17) ** -0.7
    cache = EmbeddingCache(800, 16)
    cache.update(torch.arange(800), rows)

    def ranks(planner, **arguments):
        batches = SpectralBatchSampler(cache, 40, planner, **arguments)
        several = [cache.get(batch).double() for batch in batches]
        return np.array([1 / np.linalg.norm((z.T @ z / len(z)).numpy()) ** 2 for z in several])

    greedy, uniform = ranks(Greedy(None), pool_size=400), ranks(Random())
    assert greedy.mean() > 1.05 * uniform.mean()
    assert greedy.min() > 0.6 * uniform.mean()


def test_groups_are_kept_apart_whatever_plans():
    groups = torch.arange(120) // 4
    for planner in (Random(), Neighbours(), Greedy()):
        sampler = SpectralBatchSampler(filled_cache(120, towers=2), 20, planner, groups=groups)
        for batch in sampler:
            assert len(set(groups[batch].tolist())) == 20
        assert sampler.plan.together == 0


def test_near_duplicates_are_kept_apart_in_hard_batches():
    rows = two_towers(60).repeat(2, 1, 1)  # every sample twice
    cache = EmbeddingCache(120, 8, towers=2)
    cache.update(torch.arange(120), *rows.unbind(1))
    sampler = SpectralBatchSampler(cache, 12, Neighbours())
    assert all(len({i % 60 for i in batch}) == 12 for batch in sampler)


def test_what_cannot_be_kept_apart_is_counted_and_said_once(caplog):
    groups = torch.arange(60) % 5  # batches of 12 hold at most five
    sampler = SpectralBatchSampler(filled_cache(60), 12, Random(), groups=groups)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        list(sampler)
    assert sampler.plan.together >= 5 * 7
    assert len([one for one in caplog.messages if "too many of them" in one]) == 1


def test_a_plan_says_what_it_predicts():
    cache = filled_cache(400, 16, towers=2)
    sampler = SpectralBatchSampler(cache, 20, Neighbours(), tau=0.2)
    next(iter(sampler))
    plan = sampler.plan
    assert plan.planner == "Neighbours"
    assert 0 < plan.random_miss < plan.predicted_miss < 1
    assert plan.participation_ratio < plan.random_participation_ratio
    assert plan.seconds > 0
    scalars = plan.scalars(batch=3)
    assert scalars["sampler/predicted_miss"] == plan.predicted_miss
    assert scalars["sampler/mean_age"] == plan.mean_age + 3


def test_the_predicted_miss_is_that_of_the_batches_as_cached():
    cache = filled_cache(60, 16, towers=2)
    sampler = SpectralBatchSampler(cache, 20, Neighbours(), tau=0.3)
    misses = []
    for batch in sampler:
        z1, z2 = (cache.get(batch, tower=t).double() for t in range(2))
        for logits in (z1 @ z2.T / 0.3, z2 @ z1.T / 0.3):
            misses.append((1 - logits.softmax(1).diagonal()).mean().item())
    assert sampler.plan.predicted_miss == pytest.approx(np.mean(misses), rel=1e-4)


def test_one_tower_predicts_no_miss():
    sampler = SpectralBatchSampler(filled_cache(60), 20, Neighbours())
    next(iter(sampler))
    assert sampler.plan.predicted_miss is None
    assert "sampler/predicted_miss" not in sampler.plan.scalars(0)


def test_a_learned_temperature_is_read_at_each_plan():
    taus = iter([0.5, 0.05])
    sampler = SpectralBatchSampler(
        filled_cache(60, towers=2), 20, Neighbours(), tau=lambda: next(taus)
    )
    list(sampler)
    blunt = sampler.plan.predicted_miss
    sampler.set_epoch(1)
    list(sampler)
    assert sampler.plan.predicted_miss < blunt


def test_a_cache_that_nobody_updates_is_said_after_one_epoch(caplog):
    sampler = SpectralBatchSampler(EmbeddingCache(20, 4), 5, Neighbours())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    assert len(caplog.messages) == 1
    assert "call cache.update(ids, z1, z2)" in caplog.messages[0]


def test_an_epoch_that_begins_twice_is_said_once(caplog):
    sampler = SpectralBatchSampler(filled_cache(20), 5, Greedy())
    assert list(sampler) == list(sampler) == list(sampler)
    assert len(caplog.messages) == 1
    assert "call set_epoch(epoch) before each" in caplog.messages[0]


def test_set_epoch_reaches_the_batches_through_the_inner_sampler():
    """Lightning calls it there."""
    sampler, other = (SpectralBatchSampler(filled_cache(60), 8, Random()) for _ in range(2))
    sampler.set_epoch(5)
    other.sampler.set_epoch(5)
    assert list(sampler) == list(other)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"batch_size": 41}, ShapeError, "batch_size is 41 but the cache has 40 samples"),
        ({"batch_size": 0}, ParameterError, "at least 1, got 0"),
        ({"batch_size": 8.0}, ArgumentTypeError, "whole number"),
        ({"horizon": 7}, ShapeError, "horizon is 7 but batch_size is 8"),
        ({"pool_size": 7, "planner": Greedy()}, ShapeError, "pool_size is 7 but batch_size is 8"),
        ({"pool_size": 20}, ParameterError, "pool_size and replace are for selectors"),
        ({"replace": True}, ParameterError, "Neighbours arranges all samples at once"),
        ({"tau": 0.0}, ParameterError, "tau must be a finite number above 0"),
        ({"groups": torch.arange(39)}, ShapeError, "one integer for each of 40 samples"),
        ({"groups": torch.ones(40)}, ShapeError, "one integer for each of 40 samples"),
        ({"planner": Neighbours}, ArgumentTypeError, r"such as Neighbours\(\), got a class"),
        ({"planner": "greedy"}, ArgumentTypeError, "planner must be callable"),
        ({"cache": None}, ArgumentTypeError, "cache must be"),
        ({"seed": -1}, ParameterError, "seed must be at least 0"),
        ({"drop_last": 1}, ArgumentTypeError, "drop_last must be bool"),
    ],
)
def test_bad_arguments_are_named_with_their_values(arguments, error, text):
    given = {"cache": filled_cache(40), "batch_size": 8, "planner": Neighbours()} | arguments
    with pytest.raises(error, match=text):
        SpectralBatchSampler(
            given.pop("cache"), given.pop("batch_size"), given.pop("planner"), **given
        )


@pytest.mark.parametrize(
    ("planned", "error", "text"),
    [
        (torch.arange(40).view(4, 10), ShapeError, "5 batches of 8 from 40 rows, got shape"),
        (torch.zeros(5, 8), ArgumentTypeError, "as a LongTensor"),
        (torch.zeros(5, 8).long(), ParameterError, "each row at most once"),
        (torch.arange(1, 41).view(5, 8), ParameterError, "each row at most once"),
        (None, ArgumentTypeError, "as a LongTensor, got None"),
    ],
)
def test_a_planner_of_the_users_own_is_told_what_to_return(planned, error, text):
    class Own:
        def plan(self, rows, batch_size, *, generator=None):
            return planned

    with pytest.raises(error, match=f"Own must plan .*{text}"):
        next(iter(SpectralBatchSampler(filled_cache(40), 8, Own())))


def test_a_planner_of_the_users_own_needs_nothing_but_plan():
    class Sorted:
        def plan(self, rows, batch_size, *, generator=None):
            assert rows.shape == (40, 2, 8)
            return torch.arange(40).view(-1, batch_size)

    batches = list(SpectralBatchSampler(filled_cache(40, towers=2), 8, Sorted()))
    assert sorted(batches) == [list(range(i, i + 8)) for i in range(0, 40, 8)]


def states(planner=None, **arguments):
    sampler = SpectralBatchSampler(filled_cache(40), 8, planner or Greedy(), **arguments)
    batches = iter(sampler)
    next(batches), next(batches)
    return sampler.state_dict()


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (None, "must be a dict"),
        (states(seed=1), "belongs to a sampler with .*'seed': 1"),
        (states(Random()), "belongs to a sampler with .*'planner': 'Random'"),
        (states() | {"order": torch.arange(39)}, "order"),
        (states() | {"order": torch.zeros(40).int()}, "order"),
        (states() | {"order": torch.arange(40).float()}, "order"),
        (states() | {"order": torch.arange(1, 41).int()}, "order"),
        (states() | {"consumed": 3}, "3 batches are said to be consumed and 2 drawn"),
        (states() | {"consumed": -1}, "consumed"),
        (states() | {"progress": torch.tensor([9, 9, 0])}, "9 drawn, of 5"),
        (states() | {"progress": None}, "progress"),
        (states() | {"epoch": "one"}, "epoch"),
        ({k: v for k, v in states().items() if k != "planner"}, "planner"),
    ],
)
def test_a_state_of_another_sampler_or_a_damaged_one_is_refused(state, text):
    sampler = SpectralBatchSampler(filled_cache(40), 8, Greedy())
    expected = list(SpectralBatchSampler(filled_cache(40), 8, Greedy()))
    with pytest.raises(StateError, match=text):
        sampler.load_state_dict(state)
    assert list(sampler) == expected


def test_consumed_batches_are_counted_by_the_caller_of_a_loader_that_draws_ahead():
    sampler = SpectralBatchSampler(filled_cache(40), 8, Greedy())
    batches = iter(sampler)
    drawn = [next(batches) for _ in range(4)]
    other = SpectralBatchSampler(filled_cache(40), 8, Greedy())
    other.load_state_dict(sampler.state_dict(consumed=1))
    assert list(other)[:3] == drawn[1:]
    with pytest.raises(ParameterError, match="between 0 and the 4 batches drawn"):
        sampler.state_dict(consumed=5)


def test_planning_is_silent_where_nothing_is_wrong(caplog):
    with caplog.at_level(logging.WARNING):
        list(SpectralBatchSampler(filled_cache(40, towers=2), 8, Neighbours()))
    assert not caplog.messages


def test_nothing_known_gives_an_empty_description():
    cache = EmbeddingCache(40, 4, towers=2)
    sampler = SpectralBatchSampler(cache, 8, Neighbours())
    next(iter(sampler))
    assert sampler.plan.predicted_miss is None
    assert math.isnan(sampler.plan.participation_ratio)
    assert set(sampler.plan.scalars(0)) == {"sampler/seconds"}
