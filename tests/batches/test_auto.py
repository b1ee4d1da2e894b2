"""The gap rule: hard batches while held-out pairs are not much harder than training pairs."""

import pytest
import torch
from toys import filled_cache, two_towers

from eigenbatch import Auto, Neighbours, Random, SpectralBatchSampler
from eigenbatch.errors import ArgumentTypeError, ParameterError, RowError, ShapeError

EASY, HARD = two_towers(200, 16, noise=0.2), two_towers(200, 16, noise=1.2, seed=7)


class Pairs:
    """Embeds some pairs, and counts how often."""

    def __init__(self, rows):
        self.rows, self.calls = rows, 0

    def __call__(self):
        self.calls += 1
        return self.rows.unbind(1)


def auto(held_out=EASY, trained=EASY, **arguments):
    return Auto(0.1, held_out=Pairs(held_out), trained=Pairs(trained), **arguments)


def odds(rows, n, tau):
    """Mean miss of the batches that Auto draws, as odds; in float64 from the softmax itself."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    misses = []
    for batch in order[: len(rows) // n * n].view(-1, n):
        z1, z2 = rows[batch].double().unbind(1)
        for logits in (z1 @ z2.T / tau, z2 @ z1.T / tau):
            misses.append((1 - logits.softmax(1).diagonal()).mean())
    miss = torch.stack(misses).mean().item()
    return miss / (1 - miss)


def plan(planner, seed=0):
    return planner.plan(two_towers(100, 16), 20, generator=torch.Generator().manual_seed(seed))


def test_the_ratio_is_that_of_the_odds_of_a_miss():
    planner = auto(HARD, EASY)
    plan(planner)
    expected = odds(HARD, 20, 0.1) / odds(EASY, 20, 0.1)
    assert planner.figures["ratio"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("held_out", "trained", "expected"),
    [(EASY, EASY, Neighbours), (HARD, HARD, Neighbours), (HARD, EASY, Random)],
)
def test_batches_are_hard_unless_held_out_pairs_are_much_harder(held_out, trained, expected):
    assert torch.equal(plan(auto(held_out, trained)), plan(expected()))


def test_the_limit_decides():
    for limit, hard in ((1.5, 0.0), (1e6, 1.0)):
        planner = auto(HARD, EASY, limit=limit)
        plan(planner)
        assert planner.figures["hard"] == hard


def test_it_says_so_once_whenever_it_changes_its_mind(caplog):
    planner = auto()
    for rows in (EASY, EASY, HARD, HARD, EASY):
        planner.held_out.rows = rows
        plan(planner)
    assert [text.split(".")[0] for text in caplog.messages] == [
        "Auto: hard batches from here on",
        "Auto: random batches from here on",
        "Auto: hard batches from here on",
    ]
    assert "times as hard as training pairs (limit" in caplog.messages[1]


def test_a_resumed_run_does_not_say_it_again(caplog):
    planner, other = auto(), auto()
    plan(planner)
    other.load_state_dict(planner.state_dict())
    plan(other)
    assert len(caplog.messages) == 1


def test_both_functions_are_called_once_per_plan_without_gradients_or_random_numbers():
    drawn = []

    def draws():
        assert not torch.is_grad_enabled()
        drawn.append(torch.randn(3))
        return EASY.unbind(1)

    planner = Auto(0.1, held_out=draws, trained=(trained := Pairs(EASY)))
    sampler = SpectralBatchSampler(filled_cache(100, 16, towers=2), 20, planner)
    before = torch.get_rng_state()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    assert len(drawn) == trained.calls == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_the_plan_keeps_the_figures():
    sampler = SpectralBatchSampler(filled_cache(100, 16, towers=2), 20, auto(HARD, EASY))
    next(iter(sampler))
    assert sampler.plan.figures["ratio"] > 8
    assert sampler.plan.scalars(0)["sampler/ratio"] == sampler.plan.figures["ratio"]
    assert sampler.plan.scalars(0)["sampler/hard"] == 0


def test_its_random_batches_are_those_of_random():
    samplers = [
        SpectralBatchSampler(filled_cache(100, 16, towers=2), 20, planner)
        for planner in (auto(HARD, EASY), Random())
    ]
    assert list(samplers[0]) == list(samplers[1])


def test_nothing_is_asked_before_a_batch_can_be_planned():
    planner = auto()
    cache = filled_cache(100, 16, towers=2)
    cache._ticks.zero_()
    list(SpectralBatchSampler(cache, 20, planner))
    assert planner.held_out.calls == 0


def test_a_learned_temperature_is_read_at_each_plan():
    taus = iter([0.1, 0.5])
    planner = Auto(lambda: next(taus), held_out=Pairs(HARD), trained=Pairs(EASY))
    plan(planner)
    first = planner.figures["ratio"]
    plan(planner)
    assert planner.figures["ratio"] != first


def test_perfect_pairs_do_not_divide_by_zero():
    perfect = torch.eye(16)[:, None].repeat(1, 2, 1)
    planner = Auto(0.01, held_out=Pairs(perfect), trained=Pairs(perfect))
    plan(planner)
    assert planner.figures["ratio"] == 1


@pytest.mark.parametrize("given", [{}, {"held_out": Pairs(EASY)}, {"trained": Pairs(EASY)}])
def test_one_function_without_the_other_is_refused(given):
    with pytest.raises(ParameterError, match="is missing: pass held_out=lambda: "):
        Auto(0.1, **given)


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (None, ArgumentTypeError, r"held_out must return two embeddings \(z1, z2\), got None"),
        (torch.ones(3, 4), ArgumentTypeError, "held_out must return two embeddings"),
        ((torch.ones(3, 4), torch.ones(2, 4)), ShapeError, r"shapes \(3, 4\) and \(2, 4\)"),
        ((torch.ones(1, 4), torch.ones(1, 4)), ShapeError, "at least 2 are needed"),
        ((torch.zeros(3, 4), torch.ones(3, 4)), RowError, "row 0 of held_out's z1 is zero"),
    ],
)
def test_what_a_function_returns_wrong_is_named(returned, error, text):
    planner = Auto(0.1, held_out=lambda: returned, trained=Pairs(EASY))
    with pytest.raises(error, match=text):
        plan(planner)


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_limit_that_cannot_be_is_refused(limit):
    with pytest.raises(ParameterError, match="limit must be a finite number above 0"):
        auto(limit=limit)
