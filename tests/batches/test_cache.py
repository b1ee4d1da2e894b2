import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import filled_cache, random_rows

from eigenbatch.batches.cache import DTYPES, EmbeddingCache, _last_occurrences
from eigenbatch.errors import ParameterError, RowError, ShapeError, StateError


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_put_in_comes_out_on_the_unit_sphere(dtype):
    cache = EmbeddingCache(20, 6, dtype=dtype)
    ids, z = torch.tensor([3, 19, 0]), random_rows(3, 6).double() * 100
    cache.update(ids, z)
    expected = (z / z.norm(dim=1, keepdim=True)).to(dtype).float()
    assert cache.get(ids).dtype == torch.float32
    torch.testing.assert_close(cache.get(ids), expected / expected.norm(dim=1, keepdim=True))
    torch.testing.assert_close(cache.rows(ids)[:, 0], cache.get(ids))


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
    np.testing.assert_allclose(cache.get(known).numpy(), [rows[i] for i in known], rtol=1e-6)
    ages = [len(batches) - 1 - written[i] if i in written else -1 for i in range(10)]
    assert cache.age(range(10)).tolist() == ages
    assert cache.filled.tolist() == [i in rows for i in range(10)]


@given(st.lists(st.integers(0, 5), min_size=1))
def test_only_the_last_position_of_each_id_is_written(ids):
    """Torch leaves open which of several assignments to one row stays."""
    positions = _last_occurrences(torch.tensor(ids)).tolist()
    assert sorted(positions) == sorted({i: k for k, i in enumerate(ids)}.values())


def test_a_row_that_was_never_updated_is_refused_by_name():
    cache = EmbeddingCache(5, 2)
    cache.update([1], random_rows(1, 2))
    with pytest.raises(RowError, match="sample 4 has no embedding"):
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
        ([0], torch.ones(2, 3), ShapeError, "1 ids and embeddings z of shape"),
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
    assert (
        sum(tensor.untyped_storage().nbytes() for tensor in tensors) == cache.nbytes + 24
    )  # three counters
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


def test_two_towers_are_kept_beside_each_other():
    cache = EmbeddingCache(4, 3, towers=2)
    z1, z2 = random_rows(2, 3), random_rows(2, 3, seed=1)
    cache.update([3, 1], z1, z2)
    rows = cache.rows([3, 1])
    assert rows.shape == (2, 2, 3)
    for tower, z in enumerate((z1, z2)):
        expected = z / z.norm(dim=1, keepdim=True)
        torch.testing.assert_close(rows[:, tower], expected, atol=1e-3, rtol=0)
        torch.testing.assert_close(cache.get([3, 1], tower=tower), rows[:, tower])


@pytest.mark.parametrize("towers", [1, 2])
def test_the_wrong_number_of_towers_is_named(towers):
    cache, z = EmbeddingCache(4, 3, towers=towers), random_rows(1, 3)
    with pytest.raises(ShapeError, match=f"a cache with towers={towers} stores {towers}"):
        cache.update([0], *[z] * (3 - towers))
    with pytest.raises(ParameterError, match=f"tower must be below {towers}"):
        cache.get([], tower=towers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.zeros(4)}, r"rows are not a tensor of shape \(10, 4\)"),
        ({"ticks": torch.zeros(3)}, "ticks are not"),
        ({"rows": None}, "rows are not"),
        ({"counters": torch.zeros(3)}, "counters are not plain torch.int64"),
        ({"counters": torch.zeros(3).long()}, "rows from other times"),
        ({"counters": torch.tensor([9, -1, 0])}, "rows from other times"),
        ({"ticks": torch.full((10,), -1, dtype=torch.int32)}, "rows from other times"),
        ({"ticks": torch.ones(10)}, "ticks are not plain torch.int32"),
        ({"rows": torch.ones(10, 4)}, "rows are not plain torch.float16"),
        ({"rows": torch.ones(10, 4, dtype=torch.float16, device="meta")}, "rows are not plain"),
        ({"rows": torch.zeros(10, 4, dtype=torch.float16)}, "row 0 of the state has length 0,"),
        ({"rows": torch.full((10, 4), torch.nan).half()}, "row 0 of the state has length nan"),
        ({"rows": torch.ones(10, 4, dtype=torch.float16)}, "row 0 of the state has length 2,"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changes(change, message):
    cache = filled_cache(10, 4)
    before = cache.state_dict()
    with pytest.raises(StateError, match=message):
        cache.load_state_dict(before | change)
    assert all(torch.equal(cache.state_dict()[name], before[name]) for name in ("rows", "ticks"))


def test_a_state_that_is_no_dict_is_refused():
    with pytest.raises(StateError, match="must be a dict"):
        filled_cache(10).load_state_dict([])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_state_of_every_dtype_is_valid_and_unknown_rows_may_hold_anything(dtype):
    cache = EmbeddingCache(300, 200, dtype=dtype)
    cache.update(range(200), random_rows(200, 200))
    state = cache.state_dict()
    state["rows"][250] = torch.nan  # a process was killed between the row and its tick
    other = EmbeddingCache(300, 200, dtype=dtype)
    other.load_state_dict(state)
    assert torch.equal(other.get(range(200)), cache.get(range(200)))


def test_a_copy_of_a_cache_in_memory_is_its_own():
    cache = EmbeddingCache(100, 4)
    twin = pickle.loads(pickle.dumps(cache))
    twin.update([5], random_rows(1, 4))
    assert not cache.filled[5]


def test_a_cache_made_in_inference_mode_is_updated_outside():
    with torch.inference_mode():
        cache = EmbeddingCache(10, 4)
    cache.update([1], torch.ones(1, 4))
    assert cache.filled.sum() == 1
