import copy
import json
import multiprocessing
import os
import pickle

import numpy as np
import pytest
import torch
from toys import random_rows

from eigenbatch import Neighbours, SpectralBatchSampler
from eigenbatch.batches.cache import DTYPES, EmbeddingCache
from eigenbatch.errors import CacheFileError, ParameterError


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_reopened_file_holds_the_same_rows_ages_and_clock(tmp_path, dtype):
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(7, 3, dtype=dtype, path=path)
    cache.update([0, 6], random_rows(2, 3))
    cache.update([6], random_rows(1, 3, seed=1))
    rows, ages = cache.get([0, 6]), cache.age(range(7))
    cache.flush()
    del cache
    reopened = EmbeddingCache(7, 3, dtype=dtype, path=path)
    assert torch.equal(reopened.get([0, 6]), rows)
    assert torch.equal(reopened.age(range(7)), ages)
    reopened.update([0], random_rows(1, 3))
    assert reopened.age([0, 6]).tolist() == [0, 1]


def test_the_file_is_readable_without_this_library(tmp_path):
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(5, 4, dtype=torch.float32, path=path)
    cache.update([2], torch.tensor([[0.0, 3.0, 0.0, 4.0]]))
    cache.flush()
    content = path.read_bytes()
    header = json.loads(content[:4072].rstrip(b"\0"))
    assert (header["size"], header["dim"], header["dtype"]) == (5, 4, "float32")
    rows = np.frombuffer(content, np.float32, 20, offset=4096).reshape(5, 4)
    np.testing.assert_allclose(rows[2], [0, 0.6, 0, 0.8])
    np.testing.assert_array_equal(np.frombuffer(content, np.int32, 5, offset=4224), [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(np.frombuffer(content, np.int64, 3, offset=4072), [1, 0, 0])


def test_a_mapped_cache_equals_one_in_memory_and_exchanges_states_with_it(tmp_path):
    mapped = EmbeddingCache(30, 5, path=tmp_path / "a.bin")
    memory = EmbeddingCache(30, 5)
    for seed in range(3):
        ids = torch.randint(30, (20,), generator=torch.Generator().manual_seed(seed))
        for cache in (mapped, memory):
            cache.update(ids, random_rows(20, 5, seed=seed))
    restored = EmbeddingCache(30, 5, path=tmp_path / "b.bin")
    restored.load_state_dict(memory.state_dict())
    known = memory.filled.nonzero().squeeze(1)
    for cache in (mapped, restored):
        assert torch.equal(cache.get(known), memory.get(known))
        assert torch.equal(cache.age(range(30)), memory.age(range(30)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 11, "dim": 4}, "size 10, expected 11"),
        ({"size": 10, "dim": 5}, "dim 4, expected 5"),
        ({"size": 10, "dim": 4, "dtype": torch.float32}, "dtype 'float16', expected 'float32'"),
    ],
)
def test_a_file_of_another_layout_is_refused_and_left_alone(tmp_path, arguments, text):
    path = tmp_path / "cache.bin"
    EmbeddingCache(10, 4, path=path).update([1], random_rows(1, 4))
    before = path.read_bytes()
    with pytest.raises(CacheFileError, match=text):
        EmbeddingCache(**arguments, path=path)
    assert path.read_bytes() == before


def test_a_file_of_another_version_is_refused(tmp_path):
    path = tmp_path / "cache.bin"
    EmbeddingCache(10, 4, path=path)
    content = path.read_bytes().replace(b'"version": 2', b'"version": 9')
    path.write_bytes(content)
    with pytest.raises(CacheFileError, match="version 9, expected 2"):
        EmbeddingCache(10, 4, path=path)


@pytest.mark.parametrize("content", [b"", b"notes of last week", b"[1, 2]", bytes(5000)])
def test_a_file_that_is_no_cache_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "precious.txt"
    path.write_bytes(content)
    with pytest.raises(CacheFileError, match="not an embedding cache"):
        EmbeddingCache(10, 4, path=path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_place_that_is_not_a_regular_file_is_refused(tmp_path, kind):
    path = tmp_path / "cache.bin"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
    with pytest.raises(CacheFileError, match="not a regular file"):
        EmbeddingCache(10, 4, path=path)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "cache.bin"
    EmbeddingCache(1000, 4, path=path)
    os.truncate(path, 5000)
    with pytest.raises(CacheFileError, match="has 5000 bytes, expected"):
        EmbeddingCache(1000, 4, path=path)


def test_a_failed_creation_leaves_no_file_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        EmbeddingCache(10, 4, path=tmp_path / "cache.bin")
    assert list(tmp_path.iterdir()) == []


def test_whoever_creates_second_uses_the_file_of_the_first(tmp_path, monkeypatch):
    path, link = tmp_path / "cache.bin", os.link

    def overtaken(source, target):
        monkeypatch.setattr(os, "link", link)
        EmbeddingCache(10, 4, path=target).update([3], random_rows(1, 4))
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    second = EmbeddingCache(10, 4, path=path)
    assert second.age([3]).tolist() == [0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_of_many_rows_takes_almost_no_disk_space(tmp_path):
    """The arithmetic for 100 million rows is in docs/sampler.md; here a tenth of it."""
    size, dim = 10_000_000, 128
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(size, dim, path=path)
    ids = torch.tensor([0, size // 2, size - 1])
    cache.update(ids, random_rows(3, dim))
    cache.flush()
    assert path.stat().st_size == 4096 + size * (2 * dim + 8)
    assert path.stat().st_blocks * 512 < 1_000_000
    assert cache.age([0, 1, size - 1]).tolist() == [0, -1, 0]


def _read(path, connection):
    connection.send(EmbeddingCache(10, 4, path=path).get([7]).tolist())


def test_another_process_sees_an_update_of_the_shared_file(tmp_path):
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(10, 4, path=path)
    cache.update([7], random_rows(1, 4))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_read, args=(path, there))
    process.start()
    assert here.recv() == cache.get([7]).tolist()
    process.join()


def test_a_mapped_cache_on_another_device_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="is on the CPU"):
        EmbeddingCache(10, 4, device="meta", path=tmp_path / "cache.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_file_mapped_in_inference_mode_is_updated_outside(tmp_path):
    with torch.inference_mode():
        cache = EmbeddingCache(10, 4, towers=2, path=tmp_path / "cache.bin")
    cache.update([1], torch.ones(1, 4), torch.ones(1, 4))
    assert cache.filled.sum() == 1


def test_one_process_writes_a_file_and_others_read_it(tmp_path):
    writer = EmbeddingCache(4, 3, path=tmp_path / "cache.bin")
    reader = EmbeddingCache(4, 3, path=tmp_path / "cache.bin")
    writer.update([0, 1], random_rows(2, 3))
    assert reader.age(range(4)).tolist() == [0, 0, -1, -1]
    assert torch.equal(reader.get([0, 1]), writer.get([0, 1]))
    state = writer.state_dict()
    for change in (
        lambda: reader.update([2], random_rows(1, 3)),
        lambda: reader.load_state_dict(state),
        lambda: reader.fill(lambda batch: batch, [], progress=False),
    ):
        with pytest.raises(CacheFileError, match="open for writing elsewhere"):
            change()
    assert writer.age([2]).tolist() == [-1]
    del writer
    EmbeddingCache(4, 3, path=tmp_path / "cache.bin").update([2], random_rows(1, 3))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_of_a_mapped_cache_reads_the_same_file(tmp_path, clone):
    cache = EmbeddingCache(100, 4, path=tmp_path / "cache.bin")
    twin = clone(cache)
    cache.update([5], random_rows(1, 4))
    assert torch.equal(cache.get([5]), twin.get([5]))
    assert len(pickle.dumps(cache)) < 2000


def test_a_flipped_byte_is_noticed_wherever_it_is(tmp_path, caplog):
    """Of rows, ticks and checksums: that row counts as unknown, the others are as they were."""
    path, size, dim = tmp_path / "cache.bin", 40, 6
    cache = EmbeddingCache(size, dim, towers=2, path=path)
    for start in range(0, size, 10):  # of different ages
        ids = torch.arange(start, start + 10)
        cache.update(ids, *(random_rows(10, dim, seed=start + t) for t in range(2)))
    whole = cache.rows()
    cache.flush()
    del cache
    good = path.read_bytes()
    draw = np.random.default_rng(0)
    for place in draw.integers(4096, len(good), 300):
        damaged = bytearray(good)
        damaged[place] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        opened = EmbeddingCache(size, dim, towers=2, path=path)
        known = (opened.age(range(size)) >= 0).nonzero()[:, 0]
        assert len(known) >= size - 1
        assert torch.equal(opened.rows(known), whole[known])
        del opened
    assert "rows are damaged, the first is of sample" in caplog.text


def test_a_plan_goes_without_damaged_rows(tmp_path, caplog):
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(40, 8, towers=2, path=path)
    cache.update(range(40), *(random_rows(40, seed=t) for t in range(2)))
    cache._file.rows[7, 3] += 0.5
    sampler = SpectralBatchSampler(cache, 8, Neighbours())
    assert sorted(i for batch in sampler for i in batch) == list(range(40))
    assert sampler.plan.known == 39
    assert "1 rows are damaged, the first is of sample 7" in caplog.text


def test_a_row_whose_writing_was_interrupted_is_unknown(tmp_path, monkeypatch):
    path = tmp_path / "cache.bin"
    cache = EmbeddingCache(10, 4, path=path)
    cache.update([1, 2], random_rows(2, 4))
    monkeypatch.setattr(cache._file, "checksums", None)  # killed after the row, before its checksum
    with pytest.raises(TypeError):
        cache.update([2], random_rows(1, 4, seed=1))
    del cache
    assert EmbeddingCache(10, 4, path=path).age([1, 2]).tolist() == [1, -1]
