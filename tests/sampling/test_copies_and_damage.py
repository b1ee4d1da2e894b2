"""Caches that are copied, killed or restored from damaged states."""

import copy
import pickle

import pytest
import torch

from clouds import cloud
from eigenbatch import EmbeddingCache, Greedy, Random, SpectralBatchSampler
from eigenbatch.sampling import StateError


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_of_a_memory_mapped_cache_writes_to_the_same_file(tmp_path, clone):
    cache = EmbeddingCache(100, 4, path=tmp_path / "cache.bin")
    twin = clone(cache)
    twin.update([5], cloud("random", 1, 4))
    assert cache.filled[5]
    assert torch.equal(cache.get([5]), twin.get([5]))
    assert len(pickle.dumps(cache)) < 2000


def test_a_copy_of_a_cache_in_memory_is_its_own(tmp_path):
    cache = EmbeddingCache(100, 4)
    twin = pickle.loads(pickle.dumps(cache))
    twin.update([5], cloud("random", 1, 4))
    assert not cache.filled[5]


def test_rows_written_by_a_killed_process_are_known(tmp_path, monkeypatch):
    cache = EmbeddingCache(10, 4, path=tmp_path / "cache.bin")
    cache.update([1], cloud("random", 1, 4))
    monkeypatch.setattr(cache, "_ticks", None)  # dies after the rows, before the ticks
    with pytest.raises(TypeError):
        cache.update([2], cloud("random", 1, 4))
    reopened = EmbeddingCache(10, 4, path=tmp_path / "cache.bin")
    assert reopened.age([1, 2]).tolist() == [1, -1]
    reopened.update([3], cloud("random", 1, 4))
    assert reopened.age([1, 2, 3]).tolist() == [2, -1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.zeros(4)}, r"rows are not a tensor of shape \(10, 4\)"),
        ({"ticks": torch.zeros(3)}, "ticks are not"),
        ({"rows": None}, "rows are not"),
        ({"tick": "seven"}, "number of updates"),
    ],
)
def test_a_damaged_cache_state_is_refused_and_nothing_changes(change, message):
    cache = EmbeddingCache(10, 4)
    cache.update(range(10), cloud("random", 10, 4))
    before = cache.state_dict()
    with pytest.raises(StateError, match=message):
        cache.load_state_dict(before | change)
    assert torch.equal(cache.get(range(10)), before["rows"])
    assert torch.equal(cache.age(range(10)), torch.zeros(10, dtype=torch.int64))


@pytest.mark.parametrize("damage", ["journal", "start", "consumed", "epoch", "selector"])
def test_a_damaged_sampler_state_is_refused(damage):
    sampler = SpectralBatchSampler(EmbeddingCache(40, 4), 8, Random())
    batches = iter(sampler)
    next(batches)
    state = sampler.state_dict()
    for broken in ({k: v for k, v in state.items() if k != damage}, state | {damage: "x"}):
        with pytest.raises(StateError, match=damage):
            SpectralBatchSampler(EmbeddingCache(40, 4), 8, Random()).load_state_dict(broken)


def test_a_state_of_another_selector_is_refused():
    cache = EmbeddingCache(40, 4)
    state = SpectralBatchSampler(cache, 8, Greedy()).state_dict()
    with pytest.raises(StateError, match="Greedy"):
        SpectralBatchSampler(cache, 8, Random()).load_state_dict(state)
