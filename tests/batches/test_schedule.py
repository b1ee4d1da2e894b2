import math

import pytest
import torch
from toys import two_towers

from clouds import cloud
from eigenbatch import Neighbours, PoolBalanced, Random, Schedule, isotropy_gap
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
    assert made.flatten().tolist() == order.tolist()  # shares of the rows at random, in turn


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
        (Schedule(), {"switched": "no", "rank": None}),
        (Schedule(), {"switched": True, "rank": "high"}),
        (OnLossPlateau(Random(), Random()), {"losses": "none"}),
        (OnLossPlateau(Random(), Random()), {"losses": [math.nan]}),
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
