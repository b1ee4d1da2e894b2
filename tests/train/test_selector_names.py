"""Every policy of the paper has a name that the command line takes."""

import math

import pytest
import torch

from eigenbatch.errors import ParameterError
from eigenbatch.selectors import (
    EveryNth,
    Greedy,
    LossPlateau,
    OnLossPlateau,
    PoolBalanced,
    PoolMax,
    PoolMin,
    RankPlateau,
    Schedule,
    select,
    selector_named,
)

POOL = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [
    "p1", "p1-p3", "p1-greedy-5", "p2", "p2-10", "p2-flat", "p3", "p3-0.3", "p3-1.05-1.15",
    "greedy-16", "greedy-pool", "centroid", "centroid-16", "window-2-4", "recipe", "recipe-3",
])  # fmt: skip
def test_a_name_makes_a_selector_of_whole_batches(name):
    chosen = select(POOL, 12, selector_named(name))
    assert len(chosen.unique()) == 12


def test_algorithm_2_as_printed_stops_inside_its_window():
    assert len(selector_named("literal-2-4")(POOL, 60)) < 60


def test_names_say_what_they_are_made_of():
    first = selector_named("p1-p3")
    assert isinstance(first, Schedule)
    assert isinstance(first.warmup, PoolMax)
    assert isinstance(first.then, PoolBalanced)
    assert isinstance(first.when, RankPlateau)
    warm = selector_named("p1-greedy-7")
    assert (warm.then.probe, warm.when.count) == (64, 7)
    rarely = selector_named("p2-10")
    assert isinstance(rarely, EveryNth)
    assert isinstance(rarely.selector, PoolMin)
    assert rarely.every == 10
    assert selector_named("p3-1.05-1.15").window == (1.05, 1.15)
    assert selector_named("centroid-16").score == "centroid"
    assert isinstance(selector_named("window-2-4"), Greedy)


@pytest.mark.parametrize("name", [
    "p1-p2", "p1-greedy", "p2-often", "p3-1-", "p3-5-2", "window", "window-2", "literal",
    "centroid-x",
])  # fmt: skip
def test_a_name_that_is_written_wrong_is_refused(name):
    with pytest.raises(ParameterError, match="selector"):
        selector_named(name)


def test_p2_is_used_while_the_loss_stands_still():
    plateau = LossPlateau(span=3)
    used = []

    def noting(name):
        return lambda pool, n, *, generator=None: used.append(name) or torch.arange(n)

    selector = OnLossPlateau(noting("p2"), noting("p3"), plateau)
    for loss in (5.0, 4.0, 3.0, 2.0, 1.9, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 1.0):
        plateau.observe(loss)
        selector(POOL, 4)
    assert used == ["p3"] * 10 + ["p2", "p3"]


def test_a_loss_that_is_not_finite_says_nothing_about_a_plateau():
    plateau = LossPlateau(span=2)
    for loss in (1.0, math.nan, 1.0, math.inf, 1.0, 1.0):
        plateau.observe(loss)
    assert plateau.reached
    plateau.load_state_dict(plateau.state_dict())


def test_a_plateau_continues_from_its_state():
    before, after = LossPlateau(span=2), LossPlateau(span=2)
    for loss in (1.0, 1.0, 1.0):
        before.observe(loss)
    after.load_state_dict(before.state_dict())
    after.observe(1.0)
    assert after.reached
    with pytest.raises(ValueError, match="LossPlateau"):
        after.load_state_dict({"losses": "none"})
    with pytest.raises(ParameterError, match="tolerance"):
        LossPlateau(-1)
