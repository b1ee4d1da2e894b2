import math

import pytest
import torch

from eigenbatch.selectors.unseen import SETTLED, UnseenMiss, is_state


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def epochs(estimate, level, step, *, count=5, batches=60, rows=64):
    """Batches whose miss is sigmoid(level(time) + step * (visits - 1)), once per epoch each."""
    for t in range(count * batches):
        visits = 1 + t // batches
        miss = sigmoid(level(t) + step * (visits - 1))
        estimate.observe(torch.full((rows,), miss), torch.full((rows,), visits))
    return estimate.value


def test_of_samples_met_the_first_time_it_is_their_miss():
    estimate = UnseenMiss()
    assert estimate.value is None
    for _ in range(3):
        estimate.observe(torch.tensor([0.2, 0.4]), torch.ones(2))
    assert estimate.value == pytest.approx(0.3)


def test_what_is_easier_with_every_visit_only_is_memorised_and_changes_nothing():
    value = epochs(UnseenMiss(), lambda t: 1.0, step=-1.5)
    assert value == pytest.approx(sigmoid(1.0), abs=1e-6)


def test_what_becomes_easier_with_time_is_learned_also_for_unseen_samples():
    falling = lambda t: 2.0 - 4.0 * t / 300  # noqa: E731
    smooth = epochs(UnseenMiss(), falling, step=0.0)
    both = epochs(UnseenMiss(), falling, step=-1.5)  # learned and memorised
    # Behind by the smoothing and by what offsets are measured from, 4 of 60 batches per epoch.
    for value in (smooth, both):
        assert sigmoid(-2.0) < value < sigmoid(-2.0 + 4.0 * 4 * 4 / 300 + 0.1)


def test_of_large_batches_every_one_counts_almost_fully():
    estimate = UnseenMiss()
    epochs(estimate, lambda t: 3 - 8 * t / 90, step=0.0, count=15, batches=6, rows=1000)
    assert estimate.value < 0.05  # 0.007 is true; the first batch of an epoch is not counted


def test_visits_may_be_mixed_within_a_batch():
    estimate = UnseenMiss()
    draw = torch.Generator().manual_seed(0)
    for t in range(400):
        visits = 1 + torch.randint(1 + t // 50, (64,), generator=draw)
        logits = 1.0 - t / 200 - 0.7 * (visits - 1)
        estimate.observe(logits.sigmoid(), visits)
    assert estimate.value == pytest.approx(sigmoid(-1.0), abs=0.03)


def test_without_a_first_visit_it_knows_nothing():
    estimate = UnseenMiss()
    estimate.observe(torch.full((2 * SETTLED,), 0.1), torch.full((2 * SETTLED,), 3))
    assert estimate.value is None


def test_a_saved_state_continues_the_same():
    one = UnseenMiss()
    epochs(one, lambda t: 1 - t / 100, step=-1.0, count=2)
    other = UnseenMiss()
    assert is_state(one.state_dict())
    other.load_state_dict(one.state_dict())
    for estimate in (one, other):
        estimate.observe(torch.full((600,), 0.3), torch.full((600,), 3))
        estimate.observe(torch.full((64,), 0.2), torch.full((64,), 3))
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize(
    "state", [None, {}, {"level": "x", "offsets": []}, {"level": 0.1, "offsets": [[2, 1]]}]
)
def test_anything_else_is_no_state(state):
    assert not is_state(state)
