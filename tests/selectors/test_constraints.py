import pytest
import torch

from clouds import cloud, unit
from eigenbatch import (
    Greedy,
    Neighbours,
    NoNearDuplicates,
    OnePerGroup,
    PoolBalanced,
    PoolMax,
    Random,
    Schedule,
)
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors import AfterBatches, EveryNth
from eigenbatch.selectors.offer import Offer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


INNER = [Random(), Greedy(), Greedy(None), PoolMax(), PoolBalanced(), Schedule()]


@pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("cosine", [0.5, 0.9, 0.999])
def test_no_two_picks_exceed_the_cosine_cap(inner, cosine):
    pool = cloud("clustered", 2500, 24)
    chosen = NoNearDuplicates(inner, cosine)(pool, 32, generator=generator())
    rows = unit(pool[chosen])
    assert (rows @ rows.T).fill_diagonal_(-1).max() <= cosine


def test_thinning_keeps_every_row_that_has_no_close_neighbour():
    pool = torch.eye(30, dtype=torch.float64)
    chosen = NoNearDuplicates(Random(), 0.1)(pool, 30, generator=generator())
    assert len(chosen.unique()) == 30


def test_thinning_keeps_exactly_one_of_each_duplicate():
    pool = cloud("random", 20, 8).repeat(60, 1)
    chosen = NoNearDuplicates(Random(), 0.9999)(pool, 20, generator=generator())
    assert len((chosen % 20).unique()) == 20


@pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)
def test_no_two_picks_share_a_group(inner):
    pool = cloud("random", 300, 8)
    groups = torch.arange(300) // 5
    chosen = OnePerGroup(inner, groups)(pool, 32, generator=generator())
    assert len(groups[chosen].unique()) == 32


def test_every_member_of_a_group_may_stand_for_it():
    pool, groups = cloud("random", 40, 8), torch.arange(40) // 4
    seen = set()
    for seed in range(60):
        seen |= set(OnePerGroup(Random(), groups)(pool, 10, generator=generator(seed)).tolist())
    assert seen == set(range(40))


@pytest.mark.parametrize("outer_first", [True, False])
def test_constraints_nest_in_either_order(outer_first):
    pool, groups = cloud("clustered", 600, 24), torch.arange(600) % 200
    if outer_first:
        selector = NoNearDuplicates(OnePerGroup(Greedy(), groups), 0.9)
    else:
        selector = OnePerGroup(NoNearDuplicates(Greedy(), 0.9), groups)
    chosen = selector(pool, 24, generator=generator())
    rows = unit(pool[chosen])
    assert (rows @ rows.T).fill_diagonal_(-1).max() <= 0.9
    assert len(groups[chosen].unique()) == 24


def test_three_nested_constraints_keep_their_rows_apart():
    pool, groups = cloud("clustered", 600, 24), torch.arange(600) % 200
    nested = NoNearDuplicates(NoNearDuplicates(OnePerGroup(Random(), groups), 0.95), 0.99)
    chosen = nested(pool, 24, generator=generator())
    assert len(groups[chosen].unique()) == 24


def test_bound_groups_are_those_of_the_samples_in_the_pool():
    groups = torch.arange(1000) // 10
    ids = torch.randperm(1000, generator=generator())[:200]
    selector = NoNearDuplicates(OnePerGroup(Random(), groups), 0.9999).bind(ids)
    chosen = selector(cloud("random", 200, 8), 40, generator=generator())
    assert len(groups[ids[chosen]].unique()) == 40


@pytest.mark.parametrize("wrap", [
    lambda rule: Schedule(Random(), rule, AfterBatches(0)),
    lambda rule: EveryNth(rule, 1, Random()),
    lambda rule: NoNearDuplicates(Schedule(Random(), rule, AfterBatches(0)), 0.9999),
])  # fmt: skip
def test_schedules_pass_the_samples_on_to_the_rule_in_force(wrap):
    groups = torch.arange(1000) // 10
    ids = torch.randperm(1000, generator=generator())[:200]
    selector = wrap(OnePerGroup(Random(), groups))
    chosen = selector.bind(ids)(cloud("random", 200, 8), 40, generator=generator())
    assert len(groups[ids[chosen]].unique()) == 40
    pooled = wrap(OnePerGroup(Random(), groups[ids]))
    chosen = pooled(cloud("random", 200, 8), 40, generator=generator())
    assert len(groups[ids[chosen]].unique()) == 40


def test_a_sample_without_a_group_is_named():
    with pytest.raises(ShapeError, match="sample 7 has no group"):
        OnePerGroup(Random(), torch.arange(5)).bind(torch.tensor([1, 7]))


def test_unbound_groups_of_another_size_are_refused():
    nested = NoNearDuplicates(OnePerGroup(Random(), torch.arange(1000)), 0.9)
    with pytest.raises(ShapeError, match="groups has 1000 entries but the pool 50 rows"):
        nested(cloud("random", 50, 8), 10)


def test_a_shortfall_raises_or_is_filled_with_a_warning():
    pool, groups = cloud("random", 40, 8), torch.arange(40) % 4
    with pytest.raises(ShapeError, match="one row per group leaves 4 of 40 candidates"):
        OnePerGroup(Random(), groups)(pool, 10)
    with pytest.warns(NumericalWarning, match="filled at random"):
        chosen = OnePerGroup(Random(), groups, shortfall="fill")(pool, 10, generator=generator())
    assert len(chosen.unique()) == 10
    assert len(groups[chosen[:4]].unique()) == 4


def test_filled_batches_are_counted_and_warned_about_once_also_when_bound():
    rule = OnePerGroup(Random(), torch.arange(40) % 4, shortfall="fill")
    pool = cloud("random", 40, 8)
    with pytest.warns(NumericalWarning, match="said once"):
        rule.bind(torch.arange(40))(pool, 10, generator=generator())
    rule.bind(torch.arange(40))(pool, 10, generator=generator())  # a warning would be an error
    rule(pool, 10, generator=generator())
    assert rule.unkept == 3


@pytest.mark.parametrize(
    "make", [lambda: OnePerGroup(Random(), torch.arange(40) % 4),
             lambda: NoNearDuplicates(Neighbours(1), 0.9)], ids=["groups", "duplicates"]
)  # fmt: skip
def test_an_offer_that_must_be_filled_is_filled_although_shortfalls_raise(make):
    rows = torch.eye(4).repeat(10, 1)
    with pytest.raises(ShapeError, match="batch_size is 10"):
        make().complete(Offer(rows=rows), 10, generator=generator())
    with pytest.warns(NumericalWarning, match="filled at random"):
        chosen = make().complete(Offer(rows=rows, must_fill=True), 10, generator=generator())
    assert len(chosen.unique()) == 10
    assert len(rows[chosen[:4]].unique(dim=0)) == 4


def test_a_shortfall_counts_candidates_and_not_barred_rows():
    barred = torch.arange(40) >= 24
    offer = Offer(rows=torch.eye(4).repeat(10, 1), given=torch.tensor([3]), barred=barred)
    with pytest.raises(ShapeError, match="leaves 4 of 24 candidates, but batch_size is 10"):
        NoNearDuplicates(Random(), 0.9).complete(offer, 10, generator=generator())


def test_the_state_is_that_of_the_inner_selector():
    inner = PoolBalanced()
    selector = NoNearDuplicates(inner, 0.9)
    selector(cloud("random", 100, 24), 10, generator=generator())
    assert selector.state_dict() == inner.state_dict() != {"seen": []}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: NoNearDuplicates(Random(), 1.0), ParameterError, "got 1.0"),
        (lambda: NoNearDuplicates(Random(), shortfall="skip"), ParameterError, "'skip'"),
        (lambda: OnePerGroup(Random(), torch.rand(4)), ShapeError, "vector of integers"),
    ],
)
def test_bad_options_raise_with_their_values(make, error, message):
    with pytest.raises(error, match=message):
        make()
