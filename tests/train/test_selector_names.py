"""Every policy of the paper has a name that the command line takes."""

import pytest
import torch

from eigenbatch import EmbeddingCache, SpectralBatchSampler, select
from eigenbatch.batches import (
    AfterBatches,
    Auto,
    EveryNth,
    Greedy,
    InTurn,
    IsotropyBelow,
    Neighbours,
    OnLossPlateau,
    PoolBalanced,
    PoolMax,
    PoolMin,
    Random,
    RankSteady,
    Schedule,
)
from eigenbatch.errors import ParameterError
from eigenbatch.train import NAMES, selector_named
from eigenbatch.train.batches import BatchesConfig, check_selector

POOL = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
SELECTORS = [
    "random", "neighbours", "p1", "p2", "p3", "p3-0.3", "p3-1.05-1.15", "greedy-16", "greedy-pool",
    "centroid", "centroid-16", "window-2-4", "blend", "blend--0.5",
]  # fmt: skip
PLANNERS = ["p1-p3", "p1-greedy-5", "p2-10", "p2-flat", "recipe", "recipe-3", "literal-2-4"]


@pytest.mark.parametrize("name", SELECTORS)
def test_a_name_makes_a_selector_of_whole_batches(name):
    chosen = select(POOL, 12, selector_named(name))
    assert len(chosen.unique()) == 12


@pytest.mark.filterwarnings("ignore:the batch has an effective rank")
@pytest.mark.parametrize("name", SELECTORS + PLANNERS)
def test_a_name_makes_a_plan_of_all_samples(name):
    cache = EmbeddingCache(120, 8)
    cache.update(range(120), POOL)
    sampler = SpectralBatchSampler(cache, 12, selector_named(name))
    assert sorted(i for ids in sampler for i in ids) == list(range(120))
    assert sampler.plan.known == 120


def test_every_kind_of_name_is_tried_here():
    assert {check_selector(name) for name in [*SELECTORS, *PLANNERS, "auto"]} == set(NAMES)


def test_algorithm_2_as_printed_stops_inside_its_window():
    assert len(selector_named("literal-2-4")(POOL, 60)) < 60


def test_names_say_what_they_are_made_of():
    def parts(name):
        schedule = selector_named(name)
        assert all(isinstance(part, InTurn) for part in (schedule._first, schedule._second))
        return schedule, schedule._first.selector, schedule._second.selector

    schedule, first, second = parts("p1-p3")
    assert isinstance(schedule, Schedule)
    assert isinstance(first, PoolMax)
    assert isinstance(second, PoolBalanced)
    assert isinstance(schedule.when, RankSteady)
    schedule, first, second = parts("p1-greedy-7")
    assert isinstance(first, PoolMax)
    assert (second.probe, schedule.when.count) == (64, 7)
    for name, kind in {"p2-10": EveryNth, "p2-flat": OnLossPlateau}.items():
        schedule, first, second = parts(name)
        assert isinstance(schedule, kind)
        assert isinstance(first, PoolBalanced)
        assert isinstance(second, PoolMin)
    assert selector_named("p2-10").every == 10
    assert isinstance(selector_named("recipe").when, IsotropyBelow)
    assert isinstance(selector_named("recipe-3").when, AfterBatches)
    assert selector_named("p3-1.05-1.15").window == (1.05, 1.15)
    assert selector_named("centroid-16").score == "centroid"
    assert isinstance(selector_named("window-2-4"), Greedy)


@pytest.mark.parametrize("name", [
    "p1-p2", "p1-greedy", "p2-often", "p3-1-", "p3-5-2", "window", "window-2", "literal",
    "centroid-x", "neighbours-4", "random-2",
])  # fmt: skip
def test_a_name_that_is_written_wrong_is_refused(name):
    with pytest.raises(ParameterError, match="selector"):
        selector_named(name)


def built(cache, **settings):
    def pairs():
        return torch.eye(8), torch.eye(8)

    config = BatchesConfig(batch_size=12, **settings)
    return config.build(cache, seed=0, tau=lambda: 0.1, held_out=pairs, trained=pairs)


def test_auto_is_made_with_the_functions_that_embed_pairs():
    sampler = built(EmbeddingCache(120, 8, towers=2), selector="auto-3.5")
    assert isinstance(sampler.planner, Auto)
    assert sampler.planner.limit == 3.5
    assert sampler.planner.tau() == 0.1
    with pytest.raises(ParameterError, match=r"selector 'auto-high' is not written as auto"):
        BatchesConfig(selector="auto-high")
    with pytest.raises(ParameterError, match="auto needs functions"):
        selector_named("auto")


def test_a_pool_is_given_to_those_that_draw_from_one():
    cache = EmbeddingCache(120, 8)
    greedy = built(cache, selector="greedy-16", pool_size=40, replace=True).planner
    assert isinstance(greedy.selector, Greedy)
    assert (greedy.pool_size, greedy._replace) == (40, True)
    assert isinstance(built(cache, selector="neighbours", pool_size=40).planner, Neighbours)
    assert isinstance(built(cache, selector="random", pool_size=40).planner, Random)
    with pytest.raises(ParameterError, match="neighbours plans all samples of an epoch at once"):
        BatchesConfig(selector="neighbours", replace=True)


@pytest.mark.parametrize(("settings", "steps", "filled"), [
    ({}, 667, True),  # 1,000 samples cost as much as a third of 100 steps: 5 % of 667
    ({}, 666, False),
    ({"fill_step": 667}, 667, False),
    ({"fill_cache": "no"}, 10_000, False),
    ({"fill_cache": "yes"}, 101, True),
    ({"fill_cache": "yes"}, 100, False),  # the 101st is planned, and there is none
    ({"selector": "random", "fill_cache": "yes"}, 10_000, False),
])  # fmt: skip
def test_all_samples_are_embedded_once_where_that_is_cheap(settings, steps, filled):
    config = BatchesConfig(**{"selector": "neighbours", "batch_size": 10} | settings)
    assert config.fills(1000, steps) is filled
