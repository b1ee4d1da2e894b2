import math
import warnings

import pytest
import torch

from clouds import cloud, unit
from eigenbatch import (
    Auto,
    Contrast,
    NoNearDuplicates,
    OnePerGroup,
    Random,
    Schedule,
    infonce,
)
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors import EveryNth
from eigenbatch.selectors.offer import Offer
from eigenbatch.selectors.predicted_miss import predicted_miss

TAU = 0.1


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pairs(noise, count=600, dim=32):
    """Towers whose pairs are close to each other for a small noise, in clusters of neighbours."""
    anchors = unit(cloud("clustered", count, dim))
    keys = unit(anchors + noise * unit(cloud("random", count, dim, seed=3)))
    return Offer(rows=torch.cat([anchors, keys], dim=1), towers=2)


def misses(selector, offer, batches=40):
    for seed in range(batches):
        selector.complete(offer, 32, generator=generator(seed))
    return selector.miss


def test_batches_stay_random_while_held_out_pairs_are_hard():
    seen, hard, apart = pairs(0.1), pairs(3.0, 128), unit(cloud("random", 128, 32))
    selector = Auto(TAU)
    misses(selector, seen)
    assert selector.level > 0
    assert selector.held_out(apart, apart, 32) < selector.easy
    misses(selector, seen)
    assert selector.level > 0
    unseen = selector.held_out(5 * hard.anchors, hard.keys, 32)  # of any length
    assert unseen == selector.unseen_miss >= selector.easy
    misses(selector, seen)
    assert selector.level == 0
    other = Auto(TAU)
    other.load_state_dict(selector.state_dict())
    misses(other, seen)
    assert other.level == 0
    other.held_out(apart, apart, 32)
    misses(other, seen)
    assert other.level > 0


def observed(selector, offer, visits, *, first=1, updates=30):
    """Show it random batches of 64 rows, each trained on so many times."""
    for update in range(first, first + updates):
        index = torch.randperm(len(offer), generator=generator(update))[:64]
        selector.observe_training((offer.rows[index], torch.full((64,), visits), update), 64)


@pytest.mark.parametrize("positive", [None, 0.9])  # of no use with two towers
def test_batches_stay_random_where_samples_are_easy_only_after_they_were_trained_on(positive):
    new, known = pairs(3.0), pairs(0.1)
    selector = Auto(TAU, positive=positive)
    observed(selector, new, 1)
    observed(selector, known, 2, first=31)
    misses(selector, known)
    assert selector.level == 0
    assert selector.unseen_miss > selector.easy
    other = Auto(TAU)
    other.load_state_dict(selector.state_dict())
    observed(other, known, 3, first=61)
    misses(other, known)
    assert other.level == 0


def test_batches_become_hard_where_samples_are_easy_at_first_sight():
    selector, easy = Auto(TAU), pairs(0.1)
    observed(selector, easy, 1)
    misses(selector, easy)
    assert selector.level > 0
    before = selector.unseen_miss
    observed(selector, pairs(3.0), 1, first=31)  # rows of hard batches say nothing
    assert selector.unseen_miss == before < selector.easy


def test_an_update_counts_once_and_held_out_pairs_count_more():
    selector, hard = Auto(TAU), pairs(3.0)
    observed(selector, hard, 1, updates=1)
    once = selector.state_dict()
    selector.observe_training((pairs(0.1).rows, torch.ones(600), 1), 64)
    assert selector.state_dict() == once
    easy = unit(cloud("random", 128, 32))
    told = selector.held_out(easy, easy, 32)
    observed(selector, hard, 1, first=2)
    assert selector.unseen_miss == told < selector.easy


def test_updates_with_parts_of_batches_are_said_once():
    selector, rows = Auto(TAU), pairs(0.5).rows
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for update in range(1, 40):
            size = 64 if update < 20 else 16
            selector.observe_training((rows[:size], torch.ones(size), update), 64)
            assert len(said) == (update >= 27)
    assert "16 rows or so of batches of 64" in str(said[0].message)


def test_rows_and_visits_that_do_not_match_are_refused():
    with pytest.raises(ShapeError, match="600 rows need as many visits"):
        Auto(TAU).observe_training((pairs(0.1).rows, torch.ones(3), 1), 64)


def test_a_step_of_several_processes_is_read_batch_by_batch():
    offer = pairs(0.7, 512)
    whole, parts = Auto(TAU), Auto(TAU)
    whole.observe_training((offer.rows, torch.ones(512), 1), 512)
    parts.observe_training((offer.rows, torch.ones(512), 1), 64)
    expected = [predicted_miss(offer, torch.arange(i, 512, 8), 0.07) for i in range(8)]
    assert parts.unseen_miss == pytest.approx(sum(expected) / 8, rel=1e-4)
    assert whole.unseen_miss > parts.unseen_miss  # more negatives


def test_before_the_first_training_step_nothing_is_known_and_batches_are_random():
    selector, easy = Auto(TAU), pairs(0.1)
    selector.observe_training(None, 32)
    misses(selector, easy)
    assert selector.level == 0
    observed(selector, easy, 1, updates=15)  # 960 rows: may be chance
    misses(selector, easy)
    assert selector.level == 0
    observed(selector, easy, 1, first=16, updates=1)
    misses(selector, easy)
    assert selector.level > 0


def test_of_a_large_batch_512_rows_are_looked_at():
    offer = pairs(0.5, 3000)
    whole = infonce(Contrast.cross(offer.anchors, offer.keys), TAU).miss.mean().item()
    other = infonce(Contrast.cross(offer.keys, offer.anchors), TAU).miss.mean().item()
    some = predicted_miss(offer, torch.arange(3000), TAU)
    assert some == pytest.approx((whole + other) / 2, abs=0.02)


def test_the_miss_of_held_out_pairs_is_the_mean_over_whole_batches():
    some = pairs(0.5, 70)
    order = torch.randperm(70, generator=generator())  # they may lie in groups
    expected = [predicted_miss(some, order[n : n + 32], 0.07) for n in (0, 32)]
    found = Auto(0.3).held_out(some.anchors, some.keys, 32)  # judged at 0.07
    assert found == pytest.approx(sum(expected) / 2)


def test_held_out_pairs_that_lie_in_groups_are_read_as_random_batches():
    some = groups(0.3)  # 16 of a group stand beside each other, as captions of one picture do
    order = torch.randperm(640, generator=generator())
    shuffled = Auto(TAU).held_out(some.anchors[order], some.keys[order], 32)
    assert Auto(TAU).held_out(some.anchors, some.keys, 32) == pytest.approx(shuffled, rel=0.3)
    assert predicted_miss(some, torch.arange(32), 0.07) > 3 * shuffled


def test_held_out_pairs_count_where_no_step_is_observed():
    selector, easy = Auto(TAU), pairs(0.1)
    apart = unit(cloud("random", 128, 32))
    selector.observe_training(None, 32)  # the cache was filled, and nothing was trained
    misses(selector, easy)
    assert selector.level == 0
    selector.held_out(apart, apart, 32)
    misses(selector, easy)
    assert selector.level == 3


@pytest.mark.parametrize("batch_size", [32, 64, 128])
def test_a_random_batch_that_is_easy_by_chance_begins_nothing(batch_size):
    offer = {32: pairs(2.1), 64: pairs(1.6), 128: pairs(1.0)}[batch_size]
    selector, found = Auto(TAU), []
    for seed in range(150):
        selector.complete(offer, batch_size, generator=generator(seed))
        assert selector.level == 0
        chosen = torch.randperm(600, generator=generator(seed))[:batch_size]
        found.append(predicted_miss(offer, chosen, 0.07))
    assert min(found) < 0.5 < sum(found) / len(found)


@pytest.mark.parametrize(("count", "other", "size"), [(20, 20, 32), (64, 63, 32), (64, 64, 1)])
def test_held_out_pairs_of_wrong_sizes_are_refused(count, other, size):
    rows = unit(cloud("random", 64, 8))
    with pytest.raises(ValueError, match="batch_size"):
        Auto(TAU).held_out(rows[:count], rows[:other], size)


def test_a_return_to_random_batches_costs_no_second_wait():
    easy, hard = pairs(0.1), pairs(3.0)
    selector = Auto(TAU)
    assert misses(selector, easy, 31) < selector.easy
    assert selector.level == 0  # 992 rows
    misses(selector, easy, 2)
    assert selector.level > 0
    misses(selector, hard)
    assert selector.level == 0
    misses(selector, easy, 1)
    assert selector.level == 1


def test_the_predicted_miss_is_that_of_both_directions():
    offer, batch = pairs(0.5), torch.arange(0, 600, 20)
    a, k = offer.anchors[batch], offer.keys[batch]
    logits = a @ k.T / TAU
    positive = torch.stack([logits.softmax(1).diagonal(), logits.softmax(0).diagonal()])
    assert predicted_miss(offer, batch, TAU) == pytest.approx(1 - positive.mean().item())
    assert infonce(Contrast.cross(a, k), TAU).miss.mean() == pytest.approx(
        1 - positive[0].mean().item()
    )


def test_the_predicted_miss_of_two_views_is_that_of_nt_xent():
    offer, batch = pairs(0.5), torch.arange(0, 600, 20)
    a, k = offer.anchors[batch], offer.keys[batch]
    expected = infonce(Contrast.paired(a, k), TAU).miss.mean().item()
    assert predicted_miss(offer, batch, TAU, layout="paired") == pytest.approx(expected)
    selector = Auto(TAU, layout="paired", guard=None)
    chosen = selector.complete(offer, 32, generator=generator())
    exact = infonce(Contrast.paired(offer.anchors[chosen], offer.keys[chosen]), TAU).miss.mean()
    assert selector.miss == pytest.approx(exact.item())


def test_a_miss_far_below_rounding_is_still_a_number():
    rows = torch.eye(64)
    offer = Offer(rows=torch.cat([rows, rows], 1), towers=2)
    expected = torch.tensor(math.log(63) - 1 / 0.05).double().sigmoid().item()
    assert predicted_miss(offer, torch.arange(64), 0.05) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_a_temperature_that_went_wrong_during_training_is_refused(tau):
    with pytest.raises(ParameterError, match=f"tau must be a finite number above 0, got {tau}"):
        Auto(lambda: tau).complete(pairs(0.3), 32, generator=generator())


def test_where_random_batches_are_easy_the_dial_turns_to_the_hardest():
    rows = unit(cloud("random", 600, 64))
    selector = Auto(0.07)
    misses(selector, Offer(rows=torch.cat([rows, rows], dim=1), towers=2))
    assert selector.level == 3


def test_where_random_batches_are_hard_they_stay_random():
    offer = pairs(3.0)
    selector = Auto(TAU)
    assert misses(selector, offer) > 0.5
    assert selector.level in (0, 1)


def levels(selector, offer, batches=40):
    """Levels that it takes, after the first batches."""
    misses(selector, offer)
    found = set()
    for seed in range(batches):
        found.add(selector.level)
        selector.complete(offer, 32, generator=generator(seed))
    return found


def groups(spread, count=640, dim=32):
    """Towers of samples in groups of 16, closer to each other the smaller the spread is."""
    centres = unit(cloud("random", count // 16, dim)).repeat_interleave(16, 0)
    anchors = unit(centres + spread * unit(cloud("random", count, dim, seed=1)))
    keys = unit(anchors + 0.8 * unit(cloud("random", count, dim, seed=3)))
    return Offer(rows=torch.cat([anchors, keys], dim=1), towers=2)


def test_hard_batches_may_be_harder_than_random_ones():
    offer, hardest = groups(0.4), Auto(0.07, target=0.999)
    assert 0.5 < misses(hardest, offer) < 0.8
    assert levels(Auto(0.07), offer) == {3}
    assert levels(Auto(0.07, target=0.5), offer) == {2, 3}


def test_batches_beyond_the_target_become_easier_again():
    offer, hardest = groups(0.1), Auto(0.07, target=0.999, guard=None)
    assert misses(hardest, offer) > 0.8
    assert levels(Auto(0.07, guard=None), offer) == {2, 3}


def test_random_batches_are_easy_below_a_half_or_a_smaller_target():
    assert Auto(TAU).easy == Auto(TAU, target=0.9).easy == 0.5
    assert Auto(TAU, target=0.2).easy == 0.2


def test_the_temperature_may_change_during_training():
    offer, tau = pairs(2.0), [0.07]
    selector = Auto(lambda: tau[0], target=0.5)
    misses(selector, offer)
    assert selector.level <= 1
    tau[0] = 1e-6
    before = misses(selector, offer)
    tau[0] = 100.0
    assert misses(selector, offer) > before


def test_a_large_temperature_does_not_hide_that_batches_are_easy():
    selector = Auto(100.0)
    misses(selector, pairs(0.2))
    assert selector.level == 3


@pytest.mark.parametrize(
    "wrap",
    [
        lambda auto: auto,
        lambda auto: OnePerGroup(auto, torch.arange(600)),
        lambda auto: Schedule(Random(), auto, lambda pool: True),
        lambda auto: EveryNth(auto, 1, Random()),
    ],
    ids=["auto", "groups", "schedule", "every nth"],
)
def test_under_a_guard_the_dial_turns_once_per_batch_and_by_the_final_batch(wrap):
    offer = pairs(0.3)
    selector = Auto(TAU, guard=None)
    guarded = NoNearDuplicates(wrap(selector), 0.9, shortfall="fill")
    selector.level = 1
    for seed in range(6):
        before, selector.target = selector.level, 0.999  # always harder
        batch = guarded.complete(offer, 32, generator=generator(seed))
        assert selector.level == min(3, before + 1)
        assert selector.miss == predicted_miss(offer, batch, TAU)


def test_the_guard_of_all_levels_warns_once():
    same = torch.ones(100, 2 * 8) / 8**0.5  # every row is a copy of every other
    selector = Auto(TAU)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for level in (1, 2, 3):
            selector.level = level
            selector.complete(Offer(rows=same, towers=2), 32, generator=generator(level))
    assert [each.category for each in warned] == [NumericalWarning]


def test_a_restored_dial_chooses_the_same_batches():
    offer, first, second = pairs(0.3), Auto(TAU), Auto(TAU)
    misses(first, offer, 3)
    second.load_state_dict(first.state_dict())
    for seed in range(5):
        a, b = (one.complete(offer, 32, generator=generator(seed)) for one in (first, second))
        assert torch.equal(a, b)
    with pytest.raises(ParameterError, match="level"):
        second.load_state_dict({"level": 9})


def test_one_tower_is_not_enough():
    with pytest.raises(ParameterError, match="towers=2"):
        Auto(TAU)(cloud("random", 40, 8), 10)


def test_the_similarity_of_positives_stands_for_a_second_tower():
    rows = unit(cloud("random", 30, 8))
    offer, batch = Offer(rows=rows), torch.arange(30)
    logits = 0.7 * rows @ rows.T / TAU  # a key is 0.7 of its anchor and something else
    expected = 1 - logits.softmax(1).diagonal().mean().item()
    assert predicted_miss(offer, batch, TAU, 0.7) == pytest.approx(expected)
    own = torch.eye(30) * math.sqrt(1 - 0.7**2)
    views = Contrast.paired(
        torch.cat([rows, torch.zeros(30, 30)], 1), torch.cat([0.7 * rows, own], 1)
    )
    expected = infonce(views, TAU).miss.mean().item()
    assert predicted_miss(offer, batch, TAU, 0.7, layout="paired") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 1.0}, "got 1.0"),
        ({"seeds": 0}, "at least 1, got 0"),
        ({"layout": "clip"}, "layout"),
    ],
)
def test_bad_options_raise_with_their_values(options, message):
    with pytest.raises(ParameterError, match=message):
        Auto(TAU, **options)
