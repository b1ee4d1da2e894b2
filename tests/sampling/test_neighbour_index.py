"""An index proposes true neighbours, and the sampler uses them."""

import pytest
import torch
from torch.nn.functional import normalize

from eigenbatch import (
    Auto,
    EmbeddingCache,
    Greedy,
    Neighbours,
    NoNearDuplicates,
    OnePerGroup,
    Random,
    SpectralBatchSampler,
)
from eigenbatch.errors import ParameterError, RowError

faiss = pytest.importorskip("faiss")
from eigenbatch.sampling import NeighbourIndex  # noqa: E402

SIZE, DIM = 3000, 16


def clustered(size=SIZE, dim=DIM, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(30, dim, generator=generator)
    kinds = torch.randint(30, (size,), generator=generator)
    return normalize(centres[kinds] + 0.5 * torch.randn(size, dim, generator=generator))


def filled(towers=1, known=SIZE):
    cache = EmbeddingCache(SIZE, DIM, towers=towers, dtype=torch.float32)
    parts = [clustered(seed=seed)[:known] for seed in range(towers)]
    cache.update(torch.arange(known), *parts)
    return cache


@pytest.mark.parametrize("towers", [1, 2])
def test_with_all_lists_probed_the_nearest_are_exact(towers):
    cache = filled(towers)
    index = NeighbourIndex(cache, lists=20, probes=20)
    index.build()
    rows = cache.unit_rows()
    some = torch.tensor([5, 70, 2999])
    queries = torch.cat(rows[some].chunk(towers, 1)[::-1], dim=1)
    similarity = queries @ rows.T
    similarity[torch.arange(3), some] = -torch.inf
    found = index.neighbours(some, 12)
    torch.testing.assert_close(
        similarity.gather(1, found), similarity.topk(12).values, atol=2e-3, rtol=0
    )
    assert index.recall(count=10) > 0.97  # rows are kept in half precision


def test_more_probes_find_more():
    cache = filled()
    recalls = []
    for probes in (1, 4, 20):
        index = NeighbourIndex(cache, lists=20, probes=probes)
        index.build()
        recalls.append(index.recall(count=20))
    assert recalls[0] < recalls[1] < recalls[2]


def test_quantised_rows_are_smaller_and_still_near():
    index = NeighbourIndex(filled(), lists=20, probes=20, bytes=8)
    index.build()
    assert 0.2 < index.recall(count=20) < 1


def test_a_sampler_with_an_index_draws_the_batches_that_a_whole_search_finds():
    cache = filled()
    index = NeighbourIndex(cache, lists=20, probes=20)
    sampler = SpectralBatchSampler(
        cache, 60, Neighbours(seeds=3), pool_size=60, coverage="free", index=index
    )
    rows = cache.unit_rows()
    for _, batch in zip(range(3), sampler, strict=False):
        assert len(set(batch)) == 60
        inside = (rows[batch] @ rows[batch].T).fill_diagonal_(-1).topk(10).values.mean()
        random = (rows[:60] @ rows[:60].T).fill_diagonal_(-1).topk(10).values.mean()
        assert inside > random + 0.2  # a pool of one batch leaves nothing else to choose from


def test_while_auto_is_random_the_index_proposes_nothing():
    drawn = []
    for selector in (Auto(0.1), Random()):
        cache = filled(towers=2)  # towers of other clusters: hard
        index = NeighbourIndex(cache, lists=20) if isinstance(selector, Auto) else None
        sampler = SpectralBatchSampler(cache, 60, selector, coverage="free", index=index)
        drawn.append([batch for _, batch in zip(range(4), sampler, strict=False)])
    assert drawn[0] == drawn[1]


def test_an_index_is_reproducible_and_composes_with_a_guard():
    batches = []
    for _ in range(2):
        cache = filled()
        guarded = NoNearDuplicates(Neighbours(seeds=3), 0.99, shortfall="fill")
        sampler = SpectralBatchSampler(
            cache, 50, guarded, coverage="free", index=NeighbourIndex(cache, lists=20)
        )
        batches.append([batch for _, batch in zip(range(4), sampler, strict=False)])
    assert batches[0] == batches[1]


@pytest.mark.parametrize("rule", ["groups", "copies"])
def test_with_an_index_a_rule_holds_for_the_seeds_too(rule):
    copies, groups = 10, torch.arange(SIZE) % (SIZE // 10)
    cache = EmbeddingCache(SIZE, DIM, dtype=torch.float32)
    cache.update(torch.arange(SIZE), clustered(SIZE // copies).repeat(copies, 1))
    hard = Neighbours(seeds=16)
    guarded = OnePerGroup(hard, groups) if rule == "groups" else NoNearDuplicates(hard, 0.9999)
    sampler = SpectralBatchSampler(
        cache, 50, guarded, coverage="free", index=NeighbourIndex(cache, lists=20)
    )
    for _, batch in zip(range(20), sampler, strict=False):
        assert len(groups[torch.tensor(batch)].unique()) == 50


def test_it_is_rebuilt_every_so_many_epochs_and_waits_for_rows():
    cache = EmbeddingCache(SIZE, DIM)
    index = NeighbourIndex(cache, lists=20, every=2)
    sampler = SpectralBatchSampler(cache, 50, Neighbours(), coverage="free", index=index)
    assert len(next(iter(sampler))) == 50  # random: nothing is known
    assert not index.ready
    cache.update(torch.arange(SIZE), clustered())
    builds = []
    index.build = lambda original=index.build: (builds.append(1), original())
    for epoch in range(1, 5):
        sampler.set_epoch(epoch)
        next(iter(sampler))
    assert len(builds) == 2


def test_without_set_epoch_every_pass_counts():
    cache = filled(known=100)
    index = NeighbourIndex(cache, lists=4)
    sampler = SpectralBatchSampler(cache, 50, Neighbours(), coverage="free", index=index)
    next(iter(sampler))
    cache.update(torch.arange(SIZE), clustered())
    next(iter(sampler))
    assert index.neighbours(torch.arange(20), 50).max() >= 100


def test_quantised_rows_wait_until_there_are_enough():
    cache = filled(known=100)
    index = NeighbourIndex(cache, bytes=8)
    sampler = SpectralBatchSampler(cache, 50, Neighbours(), coverage="free", index=index)
    assert len(next(iter(sampler))) == 50
    assert not index.ready
    with pytest.raises(ParameterError, match="at least 256 known rows, the cache has 100"):
        index.build()


def test_rows_that_are_not_known_are_never_proposed():
    cache = filled(known=1000)
    index = NeighbourIndex(cache, lists=10, probes=10)
    index.build()
    found = index.neighbours(torch.arange(20), 50)
    assert found.max() < 1000
    assert (found != torch.arange(20)[:, None]).all()
    with pytest.raises(RowError, match="id 1000 was never updated"):
        index.neighbours(torch.tensor([3, 1000]), 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": "epoch"}, "needs coverage=\"free\", got 'epoch'"),
        ({"selector": Greedy()}, "Neighbours or Auto"),
        ({"cache": filled()}, "another cache"),
    ],
)
def test_a_sampler_that_cannot_use_it_says_so(options, message):
    cache = filled()
    settings = {"cache": cache, "selector": Neighbours(), "coverage": "free"} | options
    with pytest.raises(ParameterError, match=message):
        SpectralBatchSampler(batch_size=50, index=NeighbourIndex(cache), **settings)


def test_bad_values_raise():
    cache = EmbeddingCache(100, DIM)
    with pytest.raises(ParameterError, match="bytes must divide the length of a row, 16, got 5"):
        NeighbourIndex(cache, bytes=5)
    index = NeighbourIndex(cache)
    with pytest.raises(ParameterError, match="at least 39 known rows, the cache has 0"):
        index.build()
    with pytest.raises(ParameterError, match="the index is empty"):
        index.neighbours(torch.tensor([0]), 3)
