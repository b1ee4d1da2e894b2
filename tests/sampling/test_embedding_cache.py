import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_toys import filled_cache, random_rows

from eigenbatch.errors import ParameterError, RowError, ShapeError
from eigenbatch.sampling.cache import DTYPES, EmbeddingCache
from eigenbatch.sampling.cache_arguments import last_occurrences
from eigenbatch.sampling.errors import StateError


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_put_in_comes_out_on_the_unit_sphere(dtype):
    cache = EmbeddingCache(20, 6, dtype=dtype)
    ids, z = torch.tensor([3, 19, 0]), random_rows(3, 6).double() * 100
    cache.update(ids, z)
    expected = (z / z.norm(dim=1, keepdim=True)).to(dtype)
    assert cache.get(ids).dtype == dtype
    torch.testing.assert_close(cache.get(ids), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_half_precision_holds_rows_of_any_length(scale):
    cache = EmbeddingCache(1, 4)
    cache.update([0], torch.tensor([[3.0, 0.0, -4.0, 0.0]]) * scale)
    torch.testing.assert_close(
        cache.get([0]).double(), torch.tensor([[0.6, 0, -0.8, 0]]).double(), atol=1e-3, rtol=0
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), min_size=1, max_size=6))
def test_updates_agree_with_a_dictionary_written_one_row_at_a_time(batches):
    cache = EmbeddingCache(10, 4, dtype=torch.float64)
    rows, written = {}, {}
    for number, ids in enumerate(batches):
        z = random_rows(len(ids), 4, seed=number).double()
        cache.update(torch.tensor(ids), z)
        for i, row in zip(ids, z.numpy(), strict=True):
            rows[i], written[i] = row / np.linalg.norm(row), number
    known = sorted(rows)
    np.testing.assert_allclose(cache.get(known).numpy(), [rows[i] for i in known], rtol=1e-12)
    ages = [len(batches) - 1 - written[i] if i in written else -1 for i in range(10)]
    assert cache.age(range(10)).tolist() == ages
    assert cache.filled.tolist() == [i in rows for i in range(10)]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_only_the_last_position_of_each_id_is_written(ids):
    """Torch leaves open which of several assignments to one row stays."""
    positions = last_occurrences(torch.tensor(ids)).tolist()
    assert sorted(positions) == sorted({i: k for k, i in enumerate(ids)}.values())


def test_a_row_that_was_never_updated_is_refused_by_name():
    cache = EmbeddingCache(5, 2)
    cache.update([1], random_rows(1, 2))
    with pytest.raises(RowError, match="id 4 was never updated"):
        cache.get([1, 4])


def test_a_copy_is_returned():
    cache = filled_cache(4)
    cache.get([0]).zero_()
    assert cache.get([0]).norm() > 0.9


def test_gradients_do_not_reach_the_cache():
    cache, z = EmbeddingCache(2, 3), random_rows(2, 3).requires_grad_()
    cache.update([0, 1], z)
    assert not cache.get([0]).requires_grad


@pytest.mark.parametrize(
    ("ids", "z", "error", "text"),
    [
        ([0, 5], torch.ones(2, 3), ParameterError, "0 ... 4, got 0 ... 5"),
        ([-1, 2], torch.ones(2, 3), ParameterError, "got -1 ... 2"),
        ([0], torch.ones(2, 3), ShapeError, "1 ids and embeddings of shape"),
        ([0, 1], torch.ones(2, 4), ShapeError, "row of dimension 3"),
        ([0, 1], torch.ones(2), ShapeError, "matrix"),
        ([0.0, 1.0], torch.ones(2, 3), ShapeError, "vector of integers"),
        ([[0], [1]], torch.ones(2, 3), ShapeError, "vector of integers"),
        ([0, 1], torch.tensor([[1.0, 0, 0], [0, 0, 0]]), RowError, "row 1 of z is zero"),
        ([0, 1], torch.tensor([[torch.nan, 0, 0], [1, 0, 0]]), RowError, "row 0 of z"),
        ([0, 1], torch.ones(2, 3, dtype=torch.int64), ParameterError, "floating point"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(ids, z, error, text):
    cache = EmbeddingCache(5, 3)
    cache.update([0, 1], random_rows(2, 3))
    rows, ages = cache.get([0, 1]), cache.age(range(5))
    with pytest.raises(error, match=text):
        cache.update(torch.tensor(ids), z)
    assert torch.equal(cache.get([0, 1]), rows)
    assert torch.equal(cache.age(range(5)), ages)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 0, "dim": 3}, "size must be 1"),
        ({"size": 2**31, "dim": 3}, "size must be 1"),
        ({"size": 3, "dim": 0}, "dim >= 1"),
        ({"size": 3, "dim": 3, "dtype": torch.int8}, "dtype must be one of"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments, text):
    with pytest.raises(ParameterError, match=text):
        EmbeddingCache(**arguments)


def test_a_restored_cache_is_the_same_and_goes_on_counting():
    cache, other = filled_cache(6), EmbeddingCache(6, 8)
    cache.update([2], random_rows(1))
    state = cache.state_dict()
    cache.update([3], random_rows(1))
    other.load_state_dict(state)
    assert other.age(range(6)).tolist() == [1, 1, 0, 1, 1, 1]
    other.update([3], random_rows(1))
    assert other.age(range(6)).tolist() == cache.age(range(6)).tolist()
    assert torch.equal(other.get(range(6)), cache.get(range(6)))


def test_a_state_survives_a_checkpoint_without_pickled_code(tmp_path):
    cache, other = filled_cache(6), EmbeddingCache(6, 8)
    torch.save(cache.state_dict(), tmp_path / "cache.pt")
    other.load_state_dict(torch.load(tmp_path / "cache.pt", weights_only=True))
    assert torch.equal(other.get(range(6)), cache.get(range(6)))


@pytest.mark.parametrize(
    "other",
    [EmbeddingCache(7, 8), EmbeddingCache(6, 9), EmbeddingCache(6, 8, dtype=torch.float32)],
)
def test_the_state_of_another_cache_is_refused(other):
    with pytest.raises(StateError, match="belongs to a cache with"):
        other.load_state_dict(filled_cache(6).state_dict())
    assert not other.filled.any()


def test_memory_at_imagenet_size_is_the_raw_array_and_four_bytes_a_row():
    size, dim = 1_281_167, 128
    cache = EmbeddingCache(size, dim)
    assert cache.nbytes == size * dim * 2 + 4 * size
    tensors = [value for value in vars(cache).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == cache.nbytes
    last = torch.arange(size - 512, size)
    cache.update(last, random_rows(512, dim))
    assert cache.age(last).eq(0).all()
    assert int(cache.filled.sum()) == 512


def test_no_ids_are_no_mistake():
    cache = EmbeddingCache(4, 3)
    assert cache.get([]).shape == (0, 3)
    assert cache.age([]).tolist() == []
    cache.update([], torch.empty(0, 3))
    assert not cache.filled.any()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_device_that_the_machine_lacks_is_named():
    with pytest.raises(ParameterError, match="device 'cuda' cannot be used here"):
        EmbeddingCache(8, 2, device="cuda")
