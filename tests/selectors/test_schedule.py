import pytest
import torch

from clouds import cloud
from eigenbatch import Greedy, NoNearDuplicates, PoolBalanced, Random, Schedule
from eigenbatch.errors import ParameterError
from eigenbatch.selectors import AfterBatches, EveryNth, IsotropyBelow, RankPlateau


class Named:
    """Returns the first rows and writes down that it was asked."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __call__(self, pool, batch_size, *, generator=None):
        self.log.append(self.name)
        return torch.arange(batch_size)


def run(selector, pools):
    for pool in pools:
        selector(pool, 4, generator=torch.Generator().manual_seed(0))


def test_the_default_is_the_papers_recipe():
    recipe = Schedule()
    assert isinstance(recipe.warmup, PoolBalanced)
    assert isinstance(recipe.then, Greedy)
    assert recipe.then.probe == 64
    assert recipe.when.percent == 5.0


def test_switches_after_a_number_of_batches_and_stays():
    log = []
    run(Schedule(Named("a", log), Named("b", log), AfterBatches(3)), [cloud("random", 20, 4)] * 6)
    assert log == list("aaabbb")


def test_switches_at_the_first_isotropic_pool_and_does_not_switch_back():
    log = []
    skewed = cloud("anisotropic", 4000, 8)
    isotropic = torch.eye(8).repeat(500, 1)
    pools = [skewed, skewed, isotropic, skewed, skewed]
    run(Schedule(Named("a", log), Named("b", log), IsotropyBelow(5.0, every=1)), pools)
    assert log == list("aabbb")


def test_a_raw_gap_would_never_reach_five_percent_where_the_corrected_one_does():
    from eigenbatch import isotropy_gap

    pool = cloud("random", 512, 128)
    assert isotropy_gap(pool) > 45
    assert IsotropyBelow(10.0, every=1)(pool)


def test_the_isotropy_gap_is_looked_at_only_when_due():
    signal = IsotropyBelow(5.0, every=3)
    isotropic = torch.eye(8).repeat(500, 1)
    assert [signal(isotropic) for _ in range(7)] == [True, False, False] * 2 + [True]


def test_switches_when_the_rank_stops_growing():
    log = []
    growing = [cloud("random", 400, 16) * torch.linspace(0.1 + 0.1 * i, 1, 16) for i in range(6)]
    flat = [cloud("random", 400, 16, seed=s) for s in range(20)]
    plateau = RankPlateau(0.02, span=3, every=1)
    run(Schedule(Named("a", log), Named("b", log), plateau), growing + flat)
    assert "b" not in log[:6]
    assert log[-1] == "b"


def test_every_nth_uses_its_selector_once_in_so_many_batches():
    log = []
    run(EveryNth(Named("p2", log), 3, Named("greedy", log)), [cloud("random", 20, 4)] * 7)
    assert log == ["greedy", "greedy", "p2"] * 2 + ["greedy"]


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(ParameterError, match="a Schedule state holds"):
        Schedule().load_state_dict(EveryNth(Random(), 2, Random()).state_dict())
    with pytest.raises(ParameterError, match="Random keeps none"):
        Schedule(Random(), Random()).load_state_dict(Schedule().state_dict())


@pytest.mark.parametrize("signal", [AfterBatches(3), IsotropyBelow(), RankPlateau()])
def test_a_signal_without_its_counts_is_refused(signal):
    with pytest.raises(ParameterError, match="state holds"):
        signal.load_state_dict({})


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("when", {}),
        ("when", {"seen": -1}),
        ("when", {"seen": 2.0}),
        ("when", {"seen": True}),
        ("then", {"seen": "abc"}),
        ("then", {"seen": [1.0, None]}),
        ("then", {"seen": [[[1.0]]]}),
        ("then", {"seen": [torch.nan]}),
        ("then", {"seen": [1.0], "more": {}}),
        ("then", {1: 2, "seen": []}),
        ("then", None),
        ("switched", "no"),
    ],
)
def test_a_state_with_one_damaged_part_changes_nothing(part, damage):
    schedule = Schedule(PoolBalanced(), PoolBalanced(), AfterBatches(3))
    run(schedule, [cloud("random", 20, 4)] * 2)
    before = schedule.state_dict()
    damaged = before | {"warmup": {"seen": [1.0]}, part: damage}
    outer = EveryNth(PoolBalanced(), 2, schedule)
    good = outer.state_dict()
    for selector, state in (
        (schedule, damaged),
        (outer, good | {"selector": {"seen": [2.0]}, "otherwise": damaged}),
        (NoNearDuplicates(schedule), damaged),
    ):
        with pytest.raises(ParameterError, match="state"):
            selector.load_state_dict(state)
    assert schedule.state_dict() == before
    assert outer.state_dict() == good


def test_a_selector_that_is_used_twice_is_still_one_after_a_resume():
    shared = PoolBalanced()
    schedule = Schedule(shared, EveryNth(Random(), 2, shared), AfterBatches(2))
    run(schedule, [cloud("random", 40, 4)] * 3)
    state = schedule.state_dict()
    schedule.load_state_dict(state)
    assert schedule.warmup is schedule.then.otherwise is shared
    assert schedule.state_dict() == state


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AfterBatches(-1), "got -1"),
        (lambda: IsotropyBelow(every=0), "got 0"),
        (lambda: RankPlateau(-0.1), "got -0.1"),
        (lambda: EveryNth(Random(), 0, Random()), "got 0"),
    ],
)
def test_bad_options_raise_with_their_values(make, message):
    with pytest.raises(ParameterError, match=message):
        make()
