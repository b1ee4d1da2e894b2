"""What every selector promises, whatever it does. A new selector is added to the list, no more."""

import inspect
from copy import deepcopy

import pytest
import torch

from clouds import KINDS, cloud
from eigenbatch import (
    Auto,
    Blend,
    Greedy,
    Neighbours,
    NoNearDuplicates,
    OnePerGroup,
    PoolBalanced,
    PoolMax,
    PoolMin,
    Random,
    Schedule,
    select,
    selectors,
)
from eigenbatch.errors import ParameterError, RowError, ShapeError
from eigenbatch.selectors import (
    AfterBatches,
    EveryNth,
    IsotropyBelow,
    OnLossPlateau,
    RankPlateau,
)
from eigenbatch.selectors.offer import Offer

# A rule or window that a pool cannot satisfy warns: here only the promises matter.
pytestmark = pytest.mark.filterwarnings("ignore::eigenbatch.errors.NumericalWarning")

SELECTORS = {
    "random": Random,
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
    "neighbours": lambda: Neighbours(3),
    "auto": lambda: Auto(0.1, positive=0.8),
    "guarded": lambda: NoNearDuplicates(Neighbours(2), 0.9, shortfall="fill"),
    "similar": lambda: Blend(-0.5),
    "neither": lambda: Blend(0),
    "diverse": lambda: Blend(0.5),
    "schedule": Schedule,
    "schedule_batches": lambda: Schedule(Random(), PoolMax(), AfterBatches(1)),
    "schedule_isotropy": lambda: Schedule(Random(), Greedy(), IsotropyBelow(1e9)),
    "schedule_plateau": lambda: Schedule(PoolBalanced(), Greedy(), RankPlateau(span=1, every=1)),
    "every_nth": lambda: EveryNth(PoolMin(), 2, PoolBalanced()),
    "on_loss_plateau": lambda: OnLossPlateau(PoolMin(), PoolBalanced()),
    "no_duplicates": lambda: NoNearDuplicates(Greedy(), 0.999999, shortfall="fill"),
    "one_per_group": lambda: OnePerGroup(Random(), torch.arange(40), shortfall="fill"),
}


def test_every_selector_of_the_room_is_in_the_list():
    room = {name: getattr(selectors, name) for name in selectors.__all__}
    chooses = {"pool", "batch_size", "generator"}
    public = {
        name
        for name, one in room.items()
        if inspect.isclass(one) and chooses <= inspect.signature(one.__call__).parameters.keys()
    }
    assert public - {"Selector"} == {type(make()).__name__ for make in SELECTORS.values()}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=SELECTORS, name="make")
def _make(request):
    return SELECTORS[request.param]


def check(indices, k, n):
    assert indices.shape == (n,)
    assert indices.dtype == torch.int64
    assert len(indices.unique()) == n
    assert indices.min() >= 0
    assert indices.max() < k


def test_exactly_batch_size_distinct_indices_of_any_size(make):
    """Sizes with a special case: one row, a pair, no divisor of the pool, the whole pool."""
    for n in (1, 2, 3, 17, 40):
        check(make()(cloud("random", 40, 6), n, generator=generator()), 40, n)


def test_exactly_batch_size_distinct_indices_from_any_geometry(make):
    for pool in (torch.ones(40, 6), *(cloud(kind, 40, 6) for kind in KINDS)):
        check(make()(pool, 17, generator=generator()), 40, 17)


def test_narrow_pools_work(make):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        check(make()(cloud("random", 40, 6).to(dtype), 9, generator=generator()), 40, 9)


def test_the_same_seed_and_pools_give_the_same_batches(make):
    first, second = make(), make()
    for seed in range(6):
        pool = cloud("anisotropic", 40, 6, seed=seed)
        a = first(pool, 9, generator=generator(seed))
        assert torch.equal(a, second(pool, 9, generator=generator(seed)))


def test_another_seed_gives_another_batch(make):
    pool = cloud("random", 40, 6)
    batches = {tuple(make()(pool, 9, generator=generator(s)).tolist()) for s in range(5)}
    assert len(batches) > 1


def test_a_restored_selector_continues_identically(make):
    original = make()
    for seed in range(4):
        original(cloud("anisotropic", 40, 6, seed=seed), 9, generator=generator(seed))
    restored = make()
    if hasattr(original, "state_dict"):
        restored.load_state_dict(original.state_dict())
    for seed in range(4, 9):
        pool = cloud("anisotropic", 40, 6, seed=seed)
        expected = original(pool, 9, generator=generator(seed))
        assert torch.equal(restored(pool, 9, generator=generator(seed)), expected)


def test_a_state_never_changes_after_it_was_taken(make):
    """Whoever keeps a state need not copy it."""
    selector = make()
    if not hasattr(selector, "state_dict"):
        return
    selector(cloud("anisotropic", 40, 6), 9, generator=generator())
    state = selector.state_dict()
    copy = deepcopy(state)
    selector.load_state_dict(state)
    for seed in range(4):
        selector(cloud("anisotropic", 40, 6, seed=seed), 9, generator=generator(seed))
    assert state == copy


def test_neither_the_global_generator_nor_the_pool_is_changed(make):
    before, pool = torch.get_rng_state(), cloud("random", 40, 6)
    copy = pool.clone()
    make()(pool, 9, generator=generator())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(pool, copy)


def test_super_batch_mode_is_the_selector_on_detached_rows(make):
    pool = cloud("random", 40, 6).requires_grad_()
    chosen = select(pool, 9, make(), generator=generator())
    assert torch.equal(chosen, make()(pool.detach(), 9, generator=generator()))


def test_pools_and_sizes_that_cannot_be_are_refused(make):
    with pytest.raises(ShapeError, match="pool has 40 rows but batch_size is 41"):
        make()(cloud("random", 40, 6), 41)
    with pytest.raises(ParameterError, match="batch_size must be at least 1, got 0"):
        make()(cloud("random", 40, 6), 0)
    for value in (torch.nan, torch.inf):
        pool = cloud("random", 40, 6)
        pool[7, 2] = value
        with pytest.raises(RowError, match="row 7 of"):
            make()(pool, 9)


def test_what_is_given_lies_where_the_rows_are():
    """torch.cat refuses tensors of two devices, also empty ones; meta stands for a GPU."""
    offer = Offer(rows=torch.zeros(9, 4, device="meta"))
    assert torch.cat([offer.given, torch.arange(3, device="meta")]).device.type == "meta"
