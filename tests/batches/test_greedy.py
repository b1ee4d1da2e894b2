import numpy as np
import pytest
import torch
from toys import filled_cache

from clouds import KINDS, cloud, unit
from eigenbatch import (
    Blend,
    Greedy,
    Random,
    SpectralBatchSampler,
    participation_ratio,
)
from eigenbatch.batches import greedy
from eigenbatch.core import frobenius_diversity, rayleigh_scores, trace_after_adding
from eigenbatch.errors import NumericalWarning, ParameterError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_one_step_lemma_matches_a_recomputed_trace_over_a_whole_build():
    rows = unit(cloud("anisotropic", 200, 12))
    batch, trace = [0], torch.ones((), dtype=torch.float64)
    for candidate in range(1, 200):
        score = rayleigh_scores(rows[candidate : candidate + 1], rows[batch])[0]
        trace = trace_after_adding(trace, len(batch), score)
        batch.append(candidate)
        sigma = rows[batch].T @ rows[batch] / len(batch)
        assert abs(trace - (sigma @ sigma).trace()) <= 1e-10


def test_frobenius_diversity_is_its_definition_and_orders_candidates_as_q_does():
    batch, candidates = unit(cloud("clustered", 15, 6)), unit(cloud("random", 40, 6))
    sigma = batch.T @ batch / 15
    direct = torch.stack([(sigma - torch.outer(z, z)).square().sum() for z in candidates])
    diversity = frobenius_diversity(candidates, batch)
    torch.testing.assert_close(diversity, direct)
    assert torch.equal(
        diversity.argsort(descending=True), rayleigh_scores(candidates, batch).argsort()
    )


def brute_force(rows, first, n):
    """Recompute q_B of every row at every step."""
    picks = [first]
    while len(picks) < n:
        scores = (rows @ rows[picks].T).square().mean(1)
        scores[picks] = torch.inf
        picks.append(int(scores.argmin()))
    return picks


@pytest.mark.parametrize("kind", ["random", "anisotropic", "clustered"])
@pytest.mark.parametrize(("k", "n", "d"), [(300, 80, 10), (60, 60, 4), (50, 20, 200)])
def test_whole_pool_greedy_takes_the_arg_min_over_all_rows_at_every_step(kind, k, n, d):
    pool = cloud(kind, k, d)
    chosen = Greedy(probe=None)(pool, n, generator=generator())
    first = int(torch.randperm(k, generator=generator())[0])
    assert chosen.tolist() == brute_force(unit(pool), first, n)


@pytest.mark.parametrize("kind", ["random", "anisotropic", "clustered"])
def test_guessed_picks_are_the_arg_min_over_all_rows_of_a_large_pool(kind, monkeypatch):
    # 16 of 3,000 rows are near: most guesses are wrong
    monkeypatch.setattr(greedy, "_limit", lambda squares: float(np.partition(squares, 16)[16]))
    rows = unit(cloud(kind, 3000, 24))
    first = int(torch.randperm(3000, generator=generator())[0])
    chosen = Greedy(probe=None)(rows, 200, generator=generator())
    assert chosen.tolist() == brute_force(rows, first, 200)


def by_torch(rows, n):
    """The picks of the general search, which other devices use."""

    def ranking(state):
        return state.squares

    return greedy._search(rows, n, ranking, None, generator())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["random", "anisotropic"])
def test_the_fast_path_and_the_torch_path_agree_index_for_index(dtype, kind):
    rows = unit(cloud(kind, 900, 24)).to(dtype)
    assert torch.equal(Greedy(None)(rows, 200, generator=generator()), by_torch(rows, 200))


@pytest.mark.parametrize(
    "rows", [torch.eye(30).repeat(20, 1), unit(cloud("random", 90, 24)).repeat(7, 1)]
)
def test_among_copies_of_rows_both_paths_pick_the_same_rows(rows):
    fast = Greedy(None)(rows, 150, generator=generator())
    assert torch.equal(rows[fast], rows[by_torch(rows, 150)])


@pytest.mark.parametrize("kind", KINDS)
def test_fast_and_torch_paths_reach_the_same_rank_even_among_ties(kind):
    rows = unit(cloud(kind, 200, 12))
    picks = Greedy(None)(rows, 50, generator=generator()), by_torch(rows, 50)
    ranks = [participation_ratio(rows[chosen]) for chosen in picks]
    assert ranks[0] == pytest.approx(ranks[1], rel=0.02)


@pytest.mark.parametrize("probe", [3, 8, 49, 50])
def test_probing_until_the_pool_is_empty_takes_every_row_once(probe):
    pool = cloud("random", 50, 6)
    chosen = Greedy(probe=probe)(pool, 50, generator=generator())
    assert sorted(chosen.tolist()) == list(range(50))


def test_a_probe_of_one_is_a_random_batch():
    pool = cloud("random", 50, 6)
    order = torch.randperm(50, generator=generator())
    assert torch.equal(Greedy(probe=1)(pool, 20, generator=generator()), order[:20])


def test_larger_probes_reach_larger_ranks():
    pool = cloud("anisotropic", 2000, 32)
    ranks = []
    for selector in (Random(), Greedy(4), Greedy(16), Greedy(64), Greedy(None)):
        chosen = [selector(pool, 128, generator=generator(s)) for s in range(3)]
        ranks.append(sum(participation_ratio(pool[c]) for c in chosen) / 3)
    assert ranks == sorted(ranks)
    assert ranks[-1] > 1.5 * ranks[0]


@pytest.mark.parametrize("window", [(8.0, 8.5), (12.0, 12.2), (15.0, 18.0)])
@pytest.mark.parametrize("probe", [None, 64])
def test_a_window_is_approached_and_reached_by_the_full_batch(window, probe):
    pool = cloud("random", 2000, 32) * torch.arange(1, 33) ** -0.5
    chosen = Greedy(probe=probe, window=window)(pool, 128, generator=generator())
    assert len(chosen) == 128
    for size in (112, 128):
        assert window[0] <= participation_ratio(pool[chosen[:size]]) <= window[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("window", "probe"),
    [((5.0, 6.0), None), ((6.0, 7.0), 64), ((8.0, 9.0), 64), ((14.0, 15.0), None)],
)
def test_windows_below_and_above_the_rank_of_random_rows_are_reached(window, probe, seed):
    pool = cloud("random", 400, 16)  # 32 random rows: about 10.9
    chosen = Greedy(probe, window)(pool, 32, generator=torch.Generator().manual_seed(seed))
    assert window[0] <= participation_ratio(pool[chosen]) <= window[1]


def test_a_window_that_the_pool_does_not_offer_warns_and_fills_the_batch():
    with pytest.warns(NumericalWarning, match="no better one was found in this pool"):
        chosen = Greedy(window=(1.0, 1.2))(cloud("random", 500, 16), 128, generator=generator())
    assert len(chosen.unique()) == 128


def test_literal_stops_once_the_rank_enters_the_window():
    pool = cloud("random", 500, 32)
    chosen = Greedy(window=(9.5, 20.0), literal=True)(pool, 128, generator=generator())
    assert len(chosen) < 128
    assert 9.5 <= participation_ratio(pool[chosen]) <= 20
    assert participation_ratio(pool[chosen[:-1]]) < 9.5


def test_a_sampler_fills_the_batches_of_a_literal_search():
    literal = Greedy(window=(2.0, 8.0), literal=True)
    batches = list(SpectralBatchSampler(filled_cache(100), 20, literal))
    assert sorted(i for batch in batches for i in batch) == list(range(100))


def test_centroid_score_picks_the_row_farthest_from_the_mean_of_the_batch():
    pool = cloud("random", 60, 6)
    rows = unit(pool)
    chosen = Greedy(probe=None, score="centroid")(pool, 20, generator=generator()).tolist()
    for b in range(1, 20):
        scores = rows @ rows[chosen[:b]].mean(0)
        scores[chosen[:b]] = torch.inf
        assert chosen[b] == int(scores.argmin())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": 0}, "probe must be at least 1"),
        ({"score": "cosine"}, "score must be one of"),
        ({"window": (5.0, 4.0)}, "needs 1 <= low <= high"),
        ({"window": (2.0, 3.0), "score": "centroid"}, "needs score="),
        ({"literal": True}, "give window="),
    ],
)
def test_bad_options_raise_with_their_values(options, message):
    with pytest.raises(ParameterError, match=message):
        Greedy(**options)


def test_a_window_out_of_reach_raises():
    with pytest.raises(ParameterError, match="at most 6"):
        Greedy(window=(7.0, 8.0))(cloud("random", 40, 6), 20)


def test_the_blend_runs_from_similar_over_random_to_diverse():
    pool = cloud("anisotropic", 2000, 32)
    ranks = []
    for weight in (-1, -0.3, 0, 0.3, 1):
        chosen = [Blend(weight)(pool, 128, generator=generator(s)) for s in range(3)]
        ranks.append(sum(participation_ratio(pool[c]) for c in chosen) / 3)
    assert ranks == sorted(ranks)


def test_the_ends_and_the_middle_of_the_blend_are_known_selectors():
    pool = cloud("random", 200, 8)
    whole = Greedy(probe=None)(pool, 20, generator=generator())
    assert torch.equal(Blend(1)(pool, 20, generator=generator()), whole)
    uniform = Random()(pool, 20, generator=generator())
    assert torch.equal(Blend(0)(pool, 20, generator=generator()), uniform)
    with pytest.raises(ParameterError, match=r"got 1\.1"):
        Blend(1.1)
