import pytest
import torch

from clouds import cloud, unit
from eigenbatch import Random, participation_ratio
from eigenbatch.batches import BatchBuilder
from eigenbatch.errors import ParameterError, ShapeError


def stream(pool, chunk):
    for start in range(0, len(pool), chunk):
        block = slice(start, start + chunk)
        yield torch.arange(len(pool))[block], pool[block]


@pytest.mark.parametrize("chunk", [1, 7, 64, 500])
def test_the_chunks_of_the_stream_do_not_matter(chunk):
    pool = cloud("anisotropic", 500, 12)
    builder, whole = BatchBuilder(40, probe=16), BatchBuilder(40, probe=16)
    for ids, z in stream(pool, chunk):
        builder.offer(ids, z)
    for ids, z in stream(pool, 1):
        whole.offer(ids, z)
    assert builder.full
    assert builder.ids == whole.ids


def test_every_pick_is_the_least_similar_of_those_waiting():
    pool = unit(cloud("random", 200, 8))
    builder, waiting, batch = BatchBuilder(20, probe=10), [], []
    for ids, z in stream(pool, 1):
        waiting += ids.tolist()
        if len(waiting) == 10 and len(batch) < 20:
            scores = (pool[waiting] @ pool[batch].T).square().sum(1)
            batch.append(waiting.pop(int(scores.argmin())))
        builder.offer(ids, z)
    assert builder.ids == batch


def test_trace_and_rank_are_those_of_the_batch_held():
    pool = cloud("anisotropic", 100, 8)
    builder = BatchBuilder(64, probe=16)
    builder.offer(torch.arange(100, 150), pool[:50])
    rows = unit(pool)
    batch = rows[[i - 100 for i in builder.ids]]
    assert len(batch) == 35
    assert builder.trace == pytest.approx(1 / participation_ratio(batch), abs=1e-12)
    assert builder.participation_ratio == pytest.approx(participation_ratio(batch), rel=1e-10)


def test_a_streamed_batch_is_more_diverse_than_a_random_one():
    pool = cloud("anisotropic", 2000, 32)
    builder = BatchBuilder(128, probe=64)
    for ids, z in stream(pool, 100):
        builder.offer(ids, z)
    chosen = Random()(pool, 128, generator=torch.Generator().manual_seed(0))
    assert participation_ratio(pool[builder.ids]) > 1.3 * participation_ratio(pool[chosen])


def test_finish_fills_the_batch_from_those_waiting():
    pool = cloud("random", 30, 8)
    builder = BatchBuilder(25, probe=16)
    joined = builder.offer(torch.arange(30), pool)
    assert joined == 15
    assert len(set(builder.finish())) == 25


def test_candidates_after_the_batch_is_full_are_ignored():
    builder = BatchBuilder(4, probe=2)
    builder.offer(torch.arange(50), cloud("random", 50, 8))
    ids = list(builder.ids)
    assert builder.offer(torch.arange(50, 60), cloud("random", 10, 8)) == 0
    assert builder.ids == ids


def test_an_id_is_taken_once_however_often_it_is_offered():
    builder = BatchBuilder(6, probe=3)
    for _ in range(4):
        builder.offer(torch.tensor([1, 2, 3, 4, 4, 5, 6]), cloud("random", 7, 8))
    assert sorted(builder.finish()) == [1, 2, 3, 4, 5, 6]


def test_bad_input_raises_and_changes_nothing():
    builder = BatchBuilder(4, probe=2)
    builder.offer(torch.arange(3), cloud("random", 3, 8))
    before = list(builder.ids)
    with pytest.raises(ShapeError, match="need 5 whole ids"):
        builder.offer(torch.arange(3), cloud("random", 5, 8))
    with pytest.raises(ShapeError, match="dimension 7, the batch 8"):
        builder.offer(torch.arange(5), cloud("random", 5, 7))
    with pytest.raises(ShapeError, match="cannot be filled"):
        builder.finish()
    assert builder.ids == before
    with pytest.raises(ParameterError, match="at least 1, got 0"):
        BatchBuilder(0)
    with pytest.raises(ParameterError, match="empty"):
        _ = BatchBuilder(3).participation_ratio
