import math

import pytest
import torch
from toys import two_towers

from clouds import cloud
from eigenbatch import (
    EmbeddingCache,
    Neighbours,
    PoolBalanced,
    Random,
    Schedule,
    SpectralBatchSampler,
    isotropy_gap,
)
from eigenbatch.batches import (
    AfterBatches,
    EveryNth,
    InTurn,
    IsotropyBelow,
    OnLossPlateau,
    RankSteady,
)
from eigenbatch.errors import ParameterError


class Noting:
    """A planner of consecutive rows that notes how many batches it was asked for."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def plan(self, rows, batch_size, *, generator=None):
        count = len(rows) // batch_size
        self.log.append((self.name, count))
        return torch.arange(count * batch_size).view(count, batch_size)


def plans(schedule, clouds, batch_size=4, each=5):
    """One plan after the other, each of so many batches that are then handed out."""
    for number, rows in enumerate(clouds):
        schedule.handed_out = number * each
        schedule.plan(rows[: each * batch_size, None], batch_size)


def test_the_default_is_the_papers_recipe():
    recipe = Schedule()
    assert isinstance(recipe._first.selector, PoolBalanced)
    assert recipe._second.selector.probe == 64
    assert recipe.when.percent == 5.0


def test_batches_are_counted_when_they_are_handed_out():
    log = []
    schedule = Schedule(Noting("a", log), Noting("b", log), AfterBatches(12))
    plans(schedule, [cloud("random", 20, 4)] * 4)
    assert log == [("a", 5), ("a", 5), ("a", 2), ("b", 3), ("b", 5)]


def test_a_plan_that_was_not_handed_out_does_not_count():
    log = []
    schedule = Schedule(Noting("a", log), Noting("b", log), AfterBatches(3))
    for _ in range(4):  # planned again and again, by fills, before the first batch
        schedule.plan(cloud("random", 20, 4)[:, None], 4)
    assert log == [("a", 3), ("b", 2)] * 4


def test_the_first_batches_are_those_of_the_warm_up():
    class Mark:
        def __init__(self, batch):
            self.batch = batch

        def plan(self, rows, batch_size, *, generator=None):
            return torch.arange(len(rows)).view(-1, batch_size)

    rows = torch.cat([torch.zeros(12, 1, 2), torch.ones(8, 1, 2)])
    schedule = Schedule(Mark("a"), Mark("b"), AfterBatches(3))
    made = schedule.plan(rows, 4, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    shares = (made[:3], order[:12]), (made[3:], order[12:])  # of the rows, at random
    assert all(set(a.flatten().tolist()) == set(b.tolist()) for a, b in shares)


class Share:
    """A planner of consecutive rows that remembers the rows it was given."""

    def __init__(self):
        self.rows = set()

    def plan(self, rows, batch_size, *, generator=None):
        self.rows |= {tuple(row) for row in rows[:, 0].tolist()}
        return torch.arange(len(rows)).view(-1, batch_size)


def makers(schedule, *, known=60):
    """Which part made each batch that a sampler hands out; "-" for random batches."""
    cache = EmbeddingCache(60, 4)
    cache.update(range(known), cloud("random", 60, 4)[:known])
    parts = {"a": schedule._first._planner.rows, "b": schedule._second._planner.rows}
    found = ""
    for ids in SpectralBatchSampler(cache, 5, schedule):
        names = {name for i in ids if i < known for name, rows in parts.items()
                 if tuple(cache.get([i])[0].tolist()) in rows}  # fmt: skip
        assert len(names) <= 1
        found += names.pop() if max(ids) < known else "-"
    return found


def test_a_sampler_hands_out_the_batches_of_a_schedule_in_their_order():
    assert makers(Schedule(Share(), Share(), AfterBatches(4))) == "aaaabbbbbbbb"
    assert makers(EveryNth(Share(), 3, Share())) == "aabaabaabaab"


def test_random_batches_of_unknown_samples_come_between_those_of_a_schedule():
    found = makers(Schedule(Share(), Share(), AfterBatches(4)), known=40)
    assert found.replace("-", "") == "aaaabbbb"
    assert not found.endswith("----")


def test_a_schedule_keeps_near_duplicates_apart_if_one_of_its_parts_does():
    assert Schedule(Random(), Random()).apart is None
    assert Schedule(Random(), Schedule(Random(), Neighbours())).apart == Neighbours.apart


def test_both_parts_of_a_schedule_look_at_the_model_before_a_plan():
    class Looks(Random):
        def prepare(self, batch_size):
            self.figures = {"looked": float(batch_size)}

    schedule = Schedule(Random(), Looks(), AfterBatches(0))
    schedule.prepare(4)
    schedule.plan(two_towers(20), 4)
    assert schedule.figures == {"looked": 4.0}


def test_a_nested_schedule_continues_from_its_state():
    def nested():
        return Schedule(Random(), Schedule(Random(), Random(), RankSteady(0.5)), AfterBatches(0))

    before, after = nested(), nested()
    plans(before, [cloud("random", 20, 4)] * 2)
    assert before._second.switched
    after.load_state_dict(before.state_dict())
    assert after._second.switched
    with pytest.raises(ParameterError, match="state"):
        after.load_state_dict(before.state_dict() | {"parts": [{}, {}]})


def test_switches_at_the_first_isotropic_plan_and_does_not_switch_back():
    log = []
    skewed, isotropic = cloud("anisotropic", 400, 8), torch.eye(8).repeat(50, 1)
    schedule = Schedule(Noting("a", log), Noting("b", log), IsotropyBelow(5.0))
    plans(schedule, [skewed, skewed, isotropic, skewed], each=100)
    assert [name for name, _ in log] == list("aabb")


def test_a_raw_gap_would_never_reach_five_percent_where_the_corrected_one_does():
    pool = cloud("random", 512, 128)
    assert isotropy_gap(pool) > 45
    assert IsotropyBelow(10.0)(pool, 0) == 0


def test_the_rank_is_compared_between_plans_not_within_one():
    log = []
    growing = [cloud("random", 400, 16) * torch.linspace(0.1 + 0.1 * i, 1, 16) for i in range(6)]
    flat = [cloud("random", 400, 16, seed=s) for s in range(3)]
    schedule = Schedule(Noting("a", log), Noting("b", log), RankSteady(0.03))
    plans(schedule, growing + flat, each=100)
    assert [name for name, _ in log] == list("aaaaaaabb")


def test_every_nth_makes_its_batch_whatever_was_planned_before():
    log = []
    rarely = EveryNth(Noting("p2", log), 3, Noting("p3", log))
    plans(rarely, [cloud("random", 20, 4)] * 3)  # 15 batches: the 3rd, 6th, ...
    assert log == [("p3", 4), ("p2", 1), ("p3", 3), ("p2", 2), ("p3", 3), ("p2", 2)]


def test_p2_is_used_while_the_loss_stands_still():
    log = []
    planner = OnLossPlateau(Noting("p2", log), Noting("p3", log), span=3)
    used = []
    for loss in (5.0, 4.0, 3.0, 2.0, 1.9, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 1.0):
        planner.observe(loss)
        planner.plan(cloud("random", 8, 4)[:, None], 4)
        used.append(log[-1][0])
    assert used == ["p3"] * 10 + ["p2", "p3"]


def test_a_loss_that_is_not_finite_says_nothing_about_a_plateau():
    planner = OnLossPlateau(Random(), Random(), span=2)
    for loss in (1.0, math.nan, 1.0, math.inf, 1.0, 1.0):
        planner.observe(loss)
    assert planner.reached
    planner.load_state_dict(planner.state_dict())


def test_schedules_nest_and_tell_their_parts_where_to_draw_from():
    inner = EveryNth(PoolBalanced(), 2, Random())
    outer = Schedule(Random(), inner, AfterBatches(2))
    outer.draw_from(30, replace=False)
    assert inner._second.pool_size == 30
    made = outer.plan(two_towers(60), 6, generator=torch.Generator().manual_seed(0))
    assert len(made.unique()) == 60


def test_with_replacement_every_part_draws_from_all_rows():
    schedule = EveryNth(PoolBalanced(), 2, Random())
    schedule.draw_from(None, replace=True)
    made = schedule.plan(two_towers(60), 6, generator=torch.Generator().manual_seed(0))
    assert made.shape == (10, 6)
    assert all(len(batch.unique()) == 6 for batch in made)
    assert len(made.unique()) < 60


def test_a_selector_in_turn_begins_every_plan_as_it_was_given():
    p3 = PoolBalanced()
    planner = InTurn(p3)
    planner.plan(two_towers(60), 6)
    assert not p3._seen


@pytest.mark.parametrize(
    ("planner", "state"),
    [
        (Schedule(), {}),
        (Schedule(), {"parts": [{}, {}], "switched": "no", "rank": None}),
        (Schedule(), {"parts": [{}, {}], "switched": True, "rank": "high"}),
        (EveryNth(Random(), 2, Random()), {"parts": [{}, None]}),
        (OnLossPlateau(Random(), Random()), {"parts": [{}, {}], "losses": "none"}),
        (OnLossPlateau(Random(), Random()), {"parts": [{}, {}], "losses": [math.nan]}),
    ],
)
def test_a_damaged_state_is_refused(planner, state):
    with pytest.raises(ParameterError, match="state"):
        planner.load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AfterBatches(-1), "got -1"),
        (lambda: RankSteady(-0.1), "got -0.1"),
        (lambda: EveryNth(Random(), 0, Random()), "got 0"),
        (lambda: OnLossPlateau(Random(), Random(), tolerance=-1), "tolerance"),
        (lambda: Schedule(when=3), "when must be callable"),
        (lambda: Neighbours().draw_from(30, replace=False), "arranges all samples at once"),
    ],
)
def test_bad_options_raise_with_their_values(make, message):
    with pytest.raises((ParameterError, TypeError), match=message):
        make()
