import pickle

import pytest
import torch
from sampling_toys import random_rows
from torch.nn.functional import normalize

from eigenbatch import (
    Auto,
    EmbeddingCache,
    NoNearDuplicates,
    OnePerGroup,
    Random,
    SpectralBatchSampler,
)
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.sampling.errors import CacheFileError, StateError


def both(count, dim=8):
    return random_rows(count, dim, seed=1), random_rows(count, dim, seed=2)


def filled(size=20, dim=8, **options):
    cache = EmbeddingCache(size, dim, towers=2, dtype=torch.float32, **options)
    cache.update(torch.arange(size), *both(size, dim))
    return cache


def test_each_tower_is_returned_as_it_was_stored():
    cache, towers = filled(), both(20)
    for tower, rows in enumerate(towers):
        assert torch.allclose(cache.get([3, 7], tower), normalize(rows)[[3, 7]])
    assert torch.allclose(cache.unit_rows(torch.tensor([3]))[0, 8:], normalize(towers[1])[3])
    assert cache.nbytes == 20 * (2 * 8 * 4 + 5)


def test_a_second_embedding_is_stored_if_and_only_if_there_is_a_second_tower():
    z = random_rows(2)
    with pytest.raises(ShapeError, match="towers=2 stores 2 embeddings"):
        EmbeddingCache(5, 8, towers=2).update([0, 1], z)
    with pytest.raises(ShapeError, match="towers=1 stores 1 embedding"):
        EmbeddingCache(5, 8).update([0, 1], z, z)
    with pytest.raises(ShapeError, match="row of dimension 8"):
        EmbeddingCache(5, 8, towers=2).update([0, 1], z, z[:1])
    with pytest.raises(ParameterError, match="towers must be 1 or 2, got 3"):
        EmbeddingCache(5, 8, towers=3)
    with pytest.raises(ParameterError, match="tower must be below 1, got 1"):
        EmbeddingCache(5, 8).get([0], 1)


def test_a_state_restores_both_towers_and_fits_no_other_cache():
    cache, other = filled(), EmbeddingCache(20, 8, towers=2, dtype=torch.float32)
    other.unit_rows()  # a working copy of nothing
    other.load_state_dict(cache.state_dict())
    assert torch.equal(other.unit_rows(), cache.unit_rows())
    with pytest.raises(StateError):
        EmbeddingCache(20, 8, dtype=torch.float32).load_state_dict(cache.state_dict())
    with pytest.raises(StateError):
        EmbeddingCache(20, 16, dtype=torch.float32).load_state_dict(cache.state_dict())
    damaged = cache.state_dict()
    damaged["rows"][4, 8:] *= 2  # only the second tower
    with pytest.raises(StateError, match="row 4"):
        other.load_state_dict(damaged)


def test_a_file_keeps_both_towers_and_says_so(tmp_path):
    cache = filled(path=tmp_path / "cache.bin")
    again = EmbeddingCache(20, 8, towers=2, dtype=torch.float32, path=tmp_path / "cache.bin")
    assert torch.equal(again.get([5], 1), cache.get([5], 1))
    with pytest.raises(CacheFileError, match="towers 2, expected 1"):
        EmbeddingCache(20, 8, dtype=torch.float32, path=tmp_path / "cache.bin")


def test_the_file_of_one_tower_is_what_it_was_before_there_were_two(tmp_path):
    EmbeddingCache(4, 3, path=tmp_path / "cache.bin")
    header = (tmp_path / "cache.bin").read_bytes()[:4088].rstrip(b"\0")
    assert b"towers" not in header


@pytest.mark.parametrize("towers", [1, 2])
def test_rows_for_selection_follow_every_update(towers):
    cache = EmbeddingCache(30, 8, towers=towers)
    assert not cache.unit_rows().any()
    for seed in range(5):
        ids = torch.randperm(30, generator=torch.Generator().manual_seed(seed))[:7]
        cache.update(ids, *(random_rows(7, seed=9 * seed + t) for t in range(towers)))
        known = cache.filled.nonzero().squeeze(1)
        stored = torch.cat([normalize(cache.get(known, t).float()) for t in range(towers)], dim=1)
        assert torch.allclose(cache.unit_rows()[known], stored, atol=1e-6)
        assert torch.equal(cache.unit_rows(known), cache.unit_rows()[known])


def test_rows_for_selection_follow_what_another_process_writes(tmp_path):
    """Two caches on one file stand for two processes that write the same update."""
    mine, other = (EmbeddingCache(10, 4, path=tmp_path / "cache.bin") for _ in range(2))
    mine.update([1], random_rows(1, 4))
    assert not mine.unit_rows()[2].any()
    other.update([1], random_rows(1, 4))
    other.update([2], random_rows(1, 4))
    assert mine.unit_rows()[2].norm() == pytest.approx(1)


def test_visits_count_training_steps_and_no_inference():
    cache, towers = EmbeddingCache(6, 8, towers=2), both(6)
    loader = [(torch.arange(6), torch.arange(6))]
    cache.fill(lambda ids: (towers[0][ids], towers[1][ids]), loader, progress=False)
    assert cache.latest() is None
    cache.update([5, 2], towers[0][:2], towers[1][:2])
    cache.update([2, 0, 2], towers[0][:3], towers[1][:3])
    rows, visits, update = cache.latest()
    assert (visits.tolist(), update) == ([1, 2], 3)  # of ids 0 and 2
    assert torch.equal(rows, cache.unit_rows(torch.tensor([0, 2])))
    cache.update([4], towers[0][:1], towers[1][:1], trained=False)
    assert cache.latest() is None


def test_a_visit_that_two_processes_write_to_one_file_counts_once(tmp_path):
    path, ids = tmp_path / "rows", torch.arange(0, 20, 3)
    first, second = (EmbeddingCache(20, 4, towers=2, path=path) for _ in range(2))
    for count in range(1, 4):
        ticks = first._ticks.clone()
        first.update(ids, *torch.randn(2, len(ids), 4))
        first._ticks.copy_(ticks)  # the second one begins before the first has ended
        second.update(ids, *torch.randn(2, len(ids), 4))
        for cache in (first, second):
            assert cache.latest()[1].tolist() == [count] * len(ids)


def test_visits_stop_at_255():
    cache, towers = EmbeddingCache(2, 8, towers=2), both(1)
    for _ in range(300):
        cache.update([1], *towers)
    assert cache.latest()[1].tolist() == [255]


@pytest.mark.parametrize("kind", ["state", "pickle", "file"])
def test_visits_are_kept_with_the_cache(tmp_path, kind):
    path = tmp_path / "cache" if kind == "file" else None
    cache, towers = EmbeddingCache(6, 8, towers=2, path=path), both(2)
    cache.update([5, 2], *towers)
    cache.update([2, 3], *towers)
    other = EmbeddingCache(6, 8, towers=2, path=path)
    if kind == "state":
        other.load_state_dict(cache.state_dict())
    elif kind == "pickle":
        other = pickle.loads(pickle.dumps(cache))
    for ours, found in zip(cache.latest(), other.latest(), strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(found))
    for one in (cache, other):
        one.update([5], towers[0][:1], towers[1][:1])
    assert other.latest()[1].tolist() == [2]


def test_a_file_that_was_only_filled_has_no_training_step(tmp_path):
    for towers in (1, 2):
        path = tmp_path / f"cache-{towers}"
        cache = EmbeddingCache(6, 8, towers=towers, path=path)
        assert cache.latest() is None
        cache.update([5, 2], *both(2)[:towers], trained=False)
        assert EmbeddingCache(6, 8, towers=towers, path=path).latest() is None


def test_an_inference_pass_over_trained_samples_is_none_in_a_reopened_file_too(tmp_path):
    path = tmp_path / "cache"
    cache = EmbeddingCache(6, 8, towers=2, path=path)
    cache.update([5, 2], *both(2))
    assert EmbeddingCache(6, 8, towers=2, path=path).latest() is not None
    cache.update([5, 2], *both(2), trained=False)
    assert EmbeddingCache(6, 8, towers=2, path=path).latest() is None


@pytest.mark.parametrize(
    "selector",
    [
        Auto(0.07),
        NoNearDuplicates(Random(), relative=0.9),
        OnePerGroup(Auto(0.07), torch.arange(20)),
    ],
)
def test_a_selector_that_needs_two_towers_is_refused_before_training(selector):
    with pytest.raises(ParameterError, match="cache both towers"):
        SpectralBatchSampler(EmbeddingCache(20, 8), 5, selector)
    SpectralBatchSampler(EmbeddingCache(20, 8, towers=2), 5, selector)


@pytest.mark.parametrize(
    "change", [{"visits": None}, {"visits": torch.zeros(3)}, {"latest": torch.tensor([20])}]
)
def test_a_state_with_damaged_visits_is_refused(change):
    cache = filled()
    before = cache.state_dict()
    with pytest.raises(ValueError, match=r"visits|latest"):
        cache.load_state_dict(cache.state_dict() | change)
    assert torch.equal(cache.state_dict()["rows"], before["rows"])


@pytest.mark.parametrize("coverage", ["epoch", "free"])
@pytest.mark.parametrize("memorised", [True, False])
@pytest.mark.parametrize("rule", [lambda auto: auto, NoNearDuplicates])
def test_auto_stays_random_where_only_trained_samples_are_easy(coverage, memorised, rule):
    """Embeddings of a model that learns every sample by heart, or that is right at once."""
    draw = torch.Generator().manual_seed(0)
    anchors = normalize(torch.randn(640, 32, generator=draw))
    strange = normalize(torch.randn(640, 32, generator=draw))
    cache, auto = EmbeddingCache(640, 32, towers=2), Auto(0.07)
    sampler = SpectralBatchSampler(cache, 64, rule(auto), coverage=coverage)
    seen = torch.zeros(640, dtype=torch.bool)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for ids in map(torch.tensor, sampler):
            known = seen[ids, None] if memorised else torch.ones(len(ids), 1, dtype=torch.bool)
            cache.update(ids, anchors[ids], torch.where(known, anchors[ids], strange[ids]))
            seen[ids] = True
    assert (auto.level == 0) == memorised


@pytest.mark.parametrize("drop_last", [True, False])  # True: some samples stay unknown
@pytest.mark.parametrize("pool_size", [None, 100, 511])
@pytest.mark.parametrize(("coverage", "known"), [("epoch", 0), ("epoch", 250), ("free", 511)])
def test_while_auto_is_random_its_batches_are_those_of_random(
    coverage, known, pool_size, drop_last
):
    towers = both(511)  # pairs that have nothing in common: hard
    drawn = []
    for selector in (Random(), Auto(0.07)):
        cache = EmbeddingCache(511, 8, towers=2)
        if known:
            cache.update(torch.arange(known), *(rows[:known] for rows in towers), trained=False)
        sampler = SpectralBatchSampler(
            cache, 32, selector, coverage=coverage, pool_size=pool_size, drop_last=drop_last
        )
        batches = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for ids in sampler:
                batches.append(ids)
                cache.update(ids, towers[0][ids], towers[1][ids])
        drawn.append(batches)
    assert selector.level == 0
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("size", "seeds"), [(8, 8), (4, 4), (32, 4)])
def test_no_sample_waits_longer_than_the_bound_while_auto_is_random(size, seeds):
    pool = 10 * size
    auto = Auto(0.07, seeds=seeds)
    sampler = SpectralBatchSampler(filled(2000), size, auto, pool_size=pool)
    places = {sample: place for place, sample in enumerate(sampler.sampler.order(0).tolist())}
    waits = [
        1 + batch - max(0, -(-(places[sample] + 1 - pool) // size))  # since it entered the buffer
        for batch, ids in enumerate(sampler)
        for sample in ids
    ]
    assert auto.level == 0
    assert min(waits) >= 1
    assert max(waits) <= sampler.max_wait


def test_a_state_of_version_0_1_has_no_visits_and_its_rows_count_as_often_trained():
    cache = EmbeddingCache(4, 8, towers=2)
    cache.update([1, 3], *both(2))
    state = cache.state_dict()
    del state["visits"], state["latest"]
    other = EmbeddingCache(4, 8, towers=2)
    other.load_state_dict(state)
    other.update([0, 1], *both(2))
    assert other.latest()[1].tolist() == [1, 255]


def test_what_auto_is_told_after_the_last_batch_is_in_the_state_of_the_sampler():
    cache, auto = filled(64), Auto(0.1)
    sampler = SpectralBatchSampler(cache, 16, auto, coverage="free")
    batches = iter(sampler)
    next(batches)
    miss = auto.held_out(*both(32), 16)  # strangers: hard
    other = Auto(0.1)
    resumed = SpectralBatchSampler(cache, 16, other, coverage="free")
    resumed.load_state_dict(sampler.state_dict())
    assert (other.unseen_miss, other.level) == (miss, 0)
    assert next(iter(resumed)) == next(batches)


def test_a_selector_may_have_an_observe_of_its_own():
    class Own(Random):
        def observe(self, loss):
            raise AssertionError("not ours to call")

    sampler = SpectralBatchSampler(filled(), 4, Own())
    assert len(next(iter(sampler))) == 4


def test_with_a_filled_cache_auto_looks_at_a_training_step_before_it_makes_batches_hard():
    anchors, strange = normalize(random_rows(640, 32)), normalize(random_rows(640, 32, seed=5))
    cache, auto = EmbeddingCache(640, 32, towers=2), Auto(0.07)
    cache.update(torch.arange(640), anchors, anchors, trained=False)  # looks easy
    sampler = SpectralBatchSampler(cache, 64, auto, coverage="free")
    for ids in sampler:
        cache.update(ids, anchors[ids], strange[ids])  # is hard
    assert auto.level == 0
    assert auto.unseen_miss > 0.9
