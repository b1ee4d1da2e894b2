import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset
from toys import Numbers, filled_cache

from eigenbatch import EmbeddingCache, IndexedDataset, Random, SpectralBatchSampler


def epochs_of(loader, sampler, count):
    epochs = []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        epochs.append([(ids.tolist(), items.tolist()) for ids, items in loader])
    return epochs


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        pytest.param({"num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 2, "persistent_workers": True}, marks=pytest.mark.slow),
    ],
    ids=["in_process", "two_workers", "persistent_workers"],
)
def test_a_loader_delivers_the_sampler_s_batches_with_their_ids(arguments):
    cache = filled_cache(50)
    sampler, expected = (SpectralBatchSampler(cache, 8, Random()) for _ in range(2))
    loader = DataLoader(IndexedDataset(Numbers(50)), batch_sampler=sampler, **arguments)
    assert len(loader) == len(sampler) == 6
    epochs = epochs_of(loader, sampler, 3)
    for epoch, batches in enumerate(epochs):
        expected.set_epoch(epoch)
        assert [ids for ids, _ in batches] == list(expected)
        assert all(items == [i / 2 for i in ids] for ids, items in batches)
        assert len({i for ids, _ in batches for i in ids}) == 48
    assert epochs[0] != epochs[1]


def test_it_is_a_batch_sampler():
    assert isinstance(SpectralBatchSampler(filled_cache(9), 3, Random()), BatchSampler)


def test_an_indexed_dataset_pairs_each_item_with_its_index():
    dataset = IndexedDataset(Numbers(5))
    assert len(dataset) == 5
    assert dataset[3] == (3, 1.5)
    assert list(dataset) == [(i, i / 2) for i in range(5)]


class Batched(Dataset):
    """Reads a whole batch at once, as datasets of Hugging Face do."""

    def __init__(self):
        self.reads = []

    def __len__(self):
        return 6

    def __getitem__(self, index):
        raise AssertionError("read one by one")

    def __getitems__(self, indices):
        self.reads.append(list(indices))
        return [10 * i for i in indices]


def test_an_indexed_dataset_keeps_the_batched_read_of_the_one_it_wraps():
    inner = Batched()
    loader = DataLoader(IndexedDataset(inner), batch_size=3)
    assert [[x.tolist() for x in batch] for batch in loader] == [
        [[0, 1, 2], [0, 10, 20]],
        [[3, 4, 5], [30, 40, 50]],
    ]
    assert inner.reads == [[0, 1, 2], [3, 4, 5]]


def test_a_cache_larger_than_the_dataset_is_named_where_the_missing_sample_is_read():
    sampler = SpectralBatchSampler(EmbeddingCache(12, 4), 6, Random())
    loader = DataLoader(IndexedDataset(Numbers(10)), batch_sampler=sampler)
    with pytest.raises(IndexError, match=r"the dataset has 10: .* need size=len"):
        list(loader)


def test_a_cache_smaller_than_the_dataset_is_named_where_the_new_sample_is_written():
    cache = EmbeddingCache(8, 4)
    with pytest.raises(ValueError, match="was the cache made with size=len"):
        cache.update(torch.tensor([9]), torch.ones(1, 4))
