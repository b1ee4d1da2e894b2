import pytest
import torch
from sampling_toys import random_rows
from torch.nn.functional import normalize

from eigenbatch import EmbeddingCache
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
    assert cache.nbytes == 20 * (2 * 8 * 4 + 4)


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
