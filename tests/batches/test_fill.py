"""Embedding all samples in one pass."""

import pytest
import torch
from torch.utils.data import DataLoader
from toys import filled_cache, random_rows

from eigenbatch import EmbeddingCache, IndexedDataset
from eigenbatch.errors import ArgumentTypeError, ShapeError

DATA = random_rows(10, 6)
LAYER = torch.nn.Linear(6, 4)


def loader(batch_size=4):
    return DataLoader(IndexedDataset(DATA), batch_size=batch_size)


def test_all_samples_are_embedded_without_gradients_and_counted_as_one_update():
    cache = EmbeddingCache(10, 4)
    assert cache.fill(LAYER, loader(), progress=False) == 10
    expected = torch.nn.functional.normalize(LAYER(DATA).detach())
    torch.testing.assert_close(cache.get(range(10)), expected, atol=1e-3, rtol=0)
    assert cache.age().tolist() == [0] * 10
    assert (cache.updates, cache.fills) == (1, 1)


def test_known_samples_are_embedded_again():
    cache = filled_cache(10, 4)
    before = cache.get(range(10))
    assert cache.fill(LAYER, loader(), progress=False) == 10
    assert not torch.equal(cache.get(range(10)), before)


def test_an_interrupted_pass_continues_and_embeds_nothing_twice():
    cache, seen = EmbeddingCache(10, 4), []

    def embed(batch):
        if len(seen) == 2:
            seen.append("stopped")
            raise KeyboardInterrupt
        seen.append(len(batch))
        return LAYER(batch)

    with pytest.raises(KeyboardInterrupt):
        cache.fill(embed, loader(), progress=False)
    assert cache.fills == 0
    resumed = EmbeddingCache(10, 4)
    resumed.load_state_dict(cache.state_dict())
    assert resumed.fill(embed, loader(), progress=False) == 2
    assert seen == [4, 4, "stopped", 2]
    assert resumed.fills == 1
    assert resumed.fill(embed, loader(), progress=False) == 10


def test_progress_is_told_after_every_batch():
    told = []
    EmbeddingCache(10, 4).fill(LAYER, loader(), progress=lambda *counts: told.append(counts))
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_both_towers_are_embedded_at_once():
    cache = EmbeddingCache(10, 4, towers=2)
    cache.fill(lambda batch: (LAYER(batch), -LAYER(batch)), loader(), progress=False)
    torch.testing.assert_close(cache.get(range(10), tower=1), -cache.get(range(10)))


@pytest.mark.parametrize(
    ("embed", "loader", "error", "text"),
    [
        (None, loader(), ArgumentTypeError, "embed must be callable"),
        (LAYER, "data", ArgumentTypeError, r"loader must yield \(ids, batch\), got str"),
        (LAYER, [torch.arange(3)], ArgumentTypeError, r"loader must yield \(ids, batch\)"),
        (lambda batch: None, loader(), ArgumentTypeError, "embed must return embeddings"),
        (lambda batch: LAYER(batch)[:2], loader(), ShapeError, "for 4 ids"),
        (lambda batch: (LAYER(batch),) * 2, loader(), ShapeError, "a cache with towers=1"),
    ],
)
def test_bad_arguments_are_named(embed, loader, error, text):
    with pytest.raises(error, match=text):
        EmbeddingCache(10, 4).fill(embed, loader, progress=False)


def test_rows_without_a_direction_are_left_out_and_said_once(caplog):
    cache = EmbeddingCache(10, 4)

    def embed(batch):
        rows = LAYER(batch)
        rows[0] = torch.nan
        rows[1] = 0
        return rows

    assert cache.fill(embed, loader(), progress=False) == 4
    assert cache.filled.nonzero().flatten().tolist() == [2, 3, 6, 7]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "embeddings of 6 samples are zero or not finite, the first is of sample 0"
    ]
