"""Caches that are copied, killed or restored from damaged states."""

import copy
import pickle

import pytest
import torch

from clouds import cloud
from eigenbatch import EmbeddingCache, Greedy, PoolBalanced, Random, SpectralBatchSampler
from eigenbatch.errors import ParameterError
from eigenbatch.sampling import StateError
from eigenbatch.sampling.cache import DTYPES


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
        ({"tick": True}, "number of updates"),
        ({"tick": 2**31}, "number of updates"),
        ({"tick": 0}, "rows from other times"),
        ({"ticks": torch.full((10,), -1, dtype=torch.int32)}, "rows from other times"),
        ({"ticks": torch.ones(10)}, "ticks are not plain torch.int32"),
        ({"ticks": torch.ones(10, dtype=torch.int64)}, "ticks are not plain torch.int32"),
        ({"rows": torch.ones(10, 4)}, "rows are not plain torch.float16"),
        ({"rows": torch.ones(10, 4, dtype=torch.float16, device="meta")}, "rows are not plain"),
        ({"rows": torch.zeros(10, 4, dtype=torch.float16)}, "row 0 of the state has length 0,"),
        ({"rows": torch.full((10, 4), torch.nan).half()}, "row 0 of the state has length nan"),
        ({"rows": torch.ones(10, 4, dtype=torch.float16)}, "row 0 of the state has length 2,"),
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_state_of_every_dtype_is_valid_and_unknown_rows_may_hold_anything(dtype):
    cache = EmbeddingCache(300, 200, dtype=dtype)
    cache.update(range(200), cloud("anisotropic", 200, 200))
    state = cache.state_dict()
    state["rows"][250] = torch.nan  # a process was killed between the row and its tick
    other = EmbeddingCache(300, 200, dtype=dtype)
    other.load_state_dict(state)
    assert torch.equal(other.get(range(200)), cache.get(range(200)))


@pytest.mark.parametrize("state", [None, [], "text", 3])
def test_a_state_that_is_no_dict_is_refused(state):
    cache = EmbeddingCache(40, 4)
    for owner in (cache, SpectralBatchSampler(cache, 8, Random())):
        with pytest.raises(StateError, match="must be a dict"):
            owner.load_state_dict(state)


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


def repeated(journal):
    journal[0, 1] = journal[0, 0]
    return journal


def with_hole(journal):
    journal[0, 3] = -1
    return journal


@pytest.mark.parametrize("coverage", ["epoch", "stream", "free"])
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("epoch", lambda epoch: -1),
        ("epoch", lambda epoch: True),
        ("consumed", lambda consumed: -1),
        ("consumed", lambda consumed: 10**9),
        ("ended", lambda ended: 0),
        ("start", lambda start: 7),
        ("journal", lambda journal: journal.double()),
        ("journal", lambda journal: journal.to("meta")),
        ("journal", lambda journal: journal.to_sparse()),
        ("journal", repeated),
        ("journal", with_hole),
        ("selector", lambda selector: {"seen": {"deep": [{}]}}),
        ("selector", lambda selector: [1]),
    ],
)
def test_garbage_in_a_sampler_state_is_refused_and_changes_nothing(coverage, name, damage):
    def sampler():
        cache = EmbeddingCache(40, 4)
        cache.update(range(40), cloud("random", 40, 4))
        return SpectralBatchSampler(cache, 8, PoolBalanced(), coverage=coverage, pool_size=24)

    first = sampler()
    batches = iter(first)
    next(batches), next(batches)
    state = first.state_dict()
    broken = state | {name: damage(copy.deepcopy(state[name]))}
    other = sampler()
    expected = list(sampler())
    with pytest.raises((StateError, ParameterError)):
        other.load_state_dict(broken)
    assert other.epoch == 0
    assert other.selector.state_dict() == {"seen": []}
    assert list(other) == expected


@pytest.mark.parametrize(
    "damage",
    [
        {"position": -1},
        {"position": "x"},
        {"waiting": torch.zeros(3, 2)},
        {"waiting": torch.tensor([[1, 0], [1, 1]])},
        {"waiting": torch.tensor([[40, 0]])},
        {"waiting": torch.stack([torch.arange(30), torch.arange(30)], 1)},
        {"deferred": torch.zeros(3, dtype=torch.int64)},
        {"deferred": torch.tensor([[-1, 0]])},
        {"deferred": None},
        {"more": 1},
    ],
)
def test_garbage_in_the_buffer_of_a_sampler_state_is_refused(damage):
    sampler = SpectralBatchSampler(EmbeddingCache(40, 4), 8, Random(), pool_size=24)
    next(iter(sampler))
    state = sampler.state_dict()
    other = SpectralBatchSampler(EmbeddingCache(40, 4), 8, Random(), pool_size=24)
    with pytest.raises(StateError, match=r"damaged|holds"):
        other.load_state_dict(state | {"start": state["start"] | damage})
    assert list(other) == list(
        SpectralBatchSampler(EmbeddingCache(40, 4), 8, Random(), pool_size=24)
    )
