"""What every planner and selector promises, whatever it does. A new one is added to the lists."""

import inspect

import pytest
import torch
from toys import two_towers

from clouds import KINDS, cloud
from eigenbatch import (
    Auto,
    Blend,
    Greedy,
    Neighbours,
    PoolBalanced,
    PoolMax,
    PoolMin,
    Random,
    Schedule,
    batches,
    select,
)
from eigenbatch.batches import (
    AfterBatches,
    EveryNth,
    InTurn,
    IsotropyBelow,
    OnLossPlateau,
    RankSteady,
)
from eigenbatch.errors import ParameterError, RowError, ShapeError

# A window that a pool does not offer warns: here only the promises matter.
pytestmark = pytest.mark.filterwarnings("ignore::eigenbatch.errors.NumericalWarning")

SELECTORS = {
    "random": Random,
    "neighbours": Neighbours,
    "p1": PoolMax,
    "p2": PoolMin,
    "p3": PoolBalanced,
    "p3_window": lambda: PoolBalanced(window=(1.05, 1.15)),
    "p1_general_norm": lambda: PoolMax(normalize=False),
    "greedy_64": Greedy,
    "greedy_3": lambda: Greedy(probe=3),
    "greedy_pool": lambda: Greedy(probe=None),
    "greedy_window": lambda: Greedy(probe=None, window=(1.0, 1.0)),
    "greedy_centroid": lambda: Greedy(score="centroid"),
    "similar": lambda: Blend(-0.5),
    "neither": lambda: Blend(0),
    "diverse": lambda: Blend(0.5),
}
PAIRS = two_towers(40, 6)
PLANNERS = {
    "random": Random,
    "neighbours": Neighbours,
    "auto": lambda: Auto(
        0.1, held_out=lambda: PAIRS[:20].unbind(1), trained=lambda: PAIRS[20:].unbind(1)
    ),
    "greedy": lambda: InTurn(Greedy()),
    "p3": lambda: InTurn(PoolBalanced()),
    "schedule": Schedule,
    "after_batches": lambda: Schedule(Random(), PoolMax(), AfterBatches(3)),
    "isotropy": lambda: Schedule(Random(), Greedy(), IsotropyBelow(1e9)),
    "steady": lambda: Schedule(PoolMax(), PoolBalanced(), RankSteady()),
    "every_nth": lambda: EveryNth(PoolMin(), 2, PoolBalanced()),
    "on_loss_plateau": lambda: OnLossPlateau(PoolMin(), PoolBalanced()),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def public(method, parameters):
    """Classes of the room with such a method."""
    room = {name: getattr(batches, name) for name in batches.__all__}
    return {
        name
        for name, one in room.items()
        if inspect.isclass(one)
        and hasattr(one, method)
        and parameters <= inspect.signature(getattr(one, method)).parameters.keys()
    }


def test_every_selector_and_planner_of_the_room_is_in_the_lists():
    selectors = public("__call__", {"pool", "batch_size", "generator"}) - {"Selector"}
    assert selectors == {type(make()).__name__ for make in SELECTORS.values()}
    planners = public("plan", {"rows", "batch_size", "generator"}) - {"Planner"}
    assert planners == {type(make()).__name__ for make in PLANNERS.values()}


@pytest.fixture(params=SELECTORS, name="selector")
def _selector(request):
    return SELECTORS[request.param]


@pytest.fixture(params=PLANNERS, name="planner")
def _planner(request):
    return PLANNERS[request.param]


def check(indices, k, n):
    assert indices.shape == (n,)
    assert indices.dtype == torch.int64
    assert len(indices.unique()) == n
    assert indices.min() >= 0
    assert indices.max() < k


def test_exactly_batch_size_distinct_indices_of_any_size(selector):
    """Sizes with a special case: one row, a pair, no divisor of the pool, the whole pool."""
    for n in (1, 2, 3, 17, 40):
        check(selector()(cloud("random", 40, 6), n, generator=generator()), 40, n)


def test_exactly_batch_size_distinct_indices_from_any_geometry(selector):
    for pool in (torch.ones(40, 6), *(cloud(kind, 40, 6) for kind in KINDS)):
        check(selector()(pool, 17, generator=generator()), 40, 17)


def test_narrow_pools_work(selector):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        check(selector()(cloud("random", 40, 6).to(dtype), 9, generator=generator()), 40, 9)


def test_the_same_seed_gives_the_same_batch_and_another_another(selector):
    pool = cloud("random", 40, 6)
    chosen = [selector()(pool, 9, generator=generator(s)).tolist() for s in (0, 0, 1, 2, 3)]
    assert chosen[0] == chosen[1]
    assert len(set(map(tuple, chosen))) > 1


def test_neither_the_global_generator_nor_the_pool_is_changed(selector):
    before, pool = torch.get_rng_state(), cloud("random", 40, 6)
    copy = pool.clone()
    selector()(pool, 9, generator=generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(pool, copy)


def test_super_batch_mode_is_the_selector_on_detached_rows(selector):
    pool = cloud("random", 40, 6).requires_grad_()
    chosen = select(pool, 9, selector(), generator=generator())
    assert torch.equal(chosen, selector()(pool.detach(), 9, generator=generator()))


def test_pools_and_sizes_that_cannot_be_are_refused(selector):
    with pytest.raises(ShapeError, match="pool has 40 rows but batch_size is 41"):
        selector()(cloud("random", 40, 6), 41)
    with pytest.raises(ParameterError, match="batch_size must be at least 1, got 0"):
        selector()(cloud("random", 40, 6), 0)
    for value in (torch.nan, torch.inf):
        pool = cloud("random", 40, 6)
        pool[7, 2] = value
        with pytest.raises(RowError, match="row 7 of"):
            selector()(pool, 9)


@pytest.mark.parametrize("count", [0, 4, 5, 41, 100])
@pytest.mark.parametrize("towers", [1, 2])
def test_a_plan_uses_every_row_at_most_once_and_all_but_a_rest(planner, count, towers):
    rows = two_towers(count, 6)[:, :towers]
    made = planner().plan(rows, 5, generator=generator())
    assert made.shape == (count // 5, 5)
    assert made.dtype == torch.int64
    assert len(made.unique()) == count // 5 * 5
    assert not made.numel() or (made.min() >= 0 and made.max() < count)


def test_a_plan_depends_on_rows_and_generator_only(planner):
    rows = two_towers(60, 6)
    before, copy = torch.get_rng_state(), rows.clone()
    made = [planner().plan(rows, 6, generator=generator(s)).tolist() for s in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    assert torch.equal(rows, copy)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_restored_planner_continues_identically(planner):
    def tell(one, step):
        one.handed_out = 10 * step
        if hasattr(one, "observe"):
            for _ in range(150):
                one.observe(1.0)

    original = planner()
    for step in range(2):
        tell(original, step)
        original.plan(two_towers(60, 6, seed=step), 6, generator=generator(step))
    restored = planner()
    restored.load_state_dict(original.state_dict())
    for step in range(2, 5):
        rows = two_towers(60, 6, seed=step)
        for one in (original, restored):
            tell(one, step)
        expected = original.plan(rows, 6, generator=generator(step))
        assert torch.equal(restored.plan(rows, 6, generator=generator(step)), expected)
