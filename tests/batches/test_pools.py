import numpy as np
import pytest
import torch

from clouds import cloud
from eigenbatch import PoolBalanced, PoolMax, PoolMin, participation_ratio
from eigenbatch.batches import candidate_ranks
from eigenbatch.errors import ParameterError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def partition(pool, n, seed=0):
    """The candidates a policy sees: consecutive slices of the generator's permutation."""
    order = torch.randperm(len(pool), generator=generator(seed))
    return [order[i * n : (i + 1) * n] for i in range(len(pool) // n)]


@pytest.mark.parametrize(("n", "d"), [(20, 5), (5, 20), (8, 8)])
@pytest.mark.parametrize("normalize", [True, False])
def test_scores_are_participation_ratios_on_either_gram(n, d, normalize):
    batches = cloud("anisotropic", 6 * n, d).view(6, n, d)
    rows = batches / batches.norm(dim=2, keepdim=True) if normalize else batches
    expected = [participation_ratio(batch, normalize=normalize) for batch in batches]
    torch.testing.assert_close(candidate_ranks(rows), torch.tensor(expected, dtype=torch.float64))


def test_scores_are_clipped_to_what_is_attainable():
    identical = torch.ones(1, 7, 3)
    rank = candidate_ranks(identical / identical.norm(dim=2, keepdim=True)).item()
    assert 1 <= rank < 1 + 1e-6


@pytest.mark.parametrize(
    ("policy", "pick"), [(PoolMax(), np.argmax), (PoolMin(), np.argmin)], ids=["p1", "p2"]
)
def test_p1_and_p2_take_the_extreme_candidate_of_a_random_partition(policy, pick):
    pool = cloud("anisotropic", 103, 6)
    candidates = partition(pool, 10)
    assert len(candidates) == 10
    expected = candidates[pick([participation_ratio(pool[c]) for c in candidates])]
    assert torch.equal(policy(pool, 10, generator=generator()), expected)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 1.0])
def test_p3_aims_between_the_running_percentiles(fraction):
    policy, seen = PoolBalanced(fraction), []
    for seed in range(5):
        pool = cloud("clustered", 100, 6, seed=seed)
        candidates = partition(pool, 10, seed)
        ranks = np.array([participation_ratio(pool[c]) for c in candidates])
        seen.extend(ranks)
        low, high = np.percentile(seen, [10, 90])
        expected = candidates[np.abs(ranks - (low + fraction * (high - low))).argmin()]
        assert torch.equal(policy(pool, 10, generator=generator(seed)), expected)
    assert policy.percentiles == pytest.approx((low, high))


def test_p3_with_a_window_takes_a_candidate_inside_it():
    pool = cloud("anisotropic", 400, 6)
    ranks = sorted(participation_ratio(pool[c]) for c in partition(pool, 10))
    window = (ranks[12] - 1e-6, ranks[14] + 1e-6)
    chosen = PoolBalanced(window=window)(pool, 10, generator=generator())
    assert window[0] <= participation_ratio(pool[chosen]) <= window[1]


def test_p3_takes_the_nearest_candidate_when_none_is_inside_the_window():
    pool = cloud("anisotropic", 100, 6)
    chosen = PoolBalanced(window=(1.0, 1.0001))(pool, 10, generator=generator())
    ranks = [participation_ratio(pool[c]) for c in partition(pool, 10)]
    assert participation_ratio(pool[chosen]) == pytest.approx(min(ranks))


def test_general_norms_weigh_long_rows_more():
    pool = cloud("anisotropic", 100, 6) * torch.rand(100, 1, generator=generator(5)) * 9
    candidates = partition(pool, 10)
    ranks = [participation_ratio(pool[c], normalize=False) for c in candidates]
    chosen = PoolMax(normalize=False)(pool, 10, generator=generator())
    assert torch.equal(chosen, candidates[int(np.argmax(ranks))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.5}, r"fraction must lie in \[0, 1\], got 1.5"),
        ({"window": (3.0, 2.0)}, "needs 1 <= low <= high"),
        ({"window": (0.5, 2.0)}, "needs 1 <= low <= high"),
    ],
)
def test_bad_options_raise_with_their_values(options, message):
    with pytest.raises(ParameterError, match=message):
        PoolBalanced(**options)
