import os
import socket

import pytest
import torch
import torch.multiprocessing as mp
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from sampling_toys import LeastSimilar, Numbers, filled_cache
from torch.utils.data import DataLoader

from eigenbatch.sampling.indexed import IndexedDataset
from eigenbatch.sampling.sampler import SpectralBatchSampler

pytestmark = pytest.mark.slow
SIZE, BATCH, EPOCHS = 40, 8, 2


def delivered():
    """Ids of two epochs through accelerate; it splits the global batch itself."""
    sampler = SpectralBatchSampler(
        filled_cache(SIZE), BATCH, LeastSimilar(), pool_size=24, num_replicas=1, rank=0
    )
    loader = DataLoader(IndexedDataset(Numbers(SIZE)), batch_sampler=sampler)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    loader = accelerator.prepare(loader)
    return [[ids.tolist() for ids, _ in loader] for _ in range(EPOCHS)]


def expected():
    sampler = SpectralBatchSampler(filled_cache(SIZE), BATCH, LeastSimilar(), pool_size=24)
    epochs = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs


def work(rank, port, directory):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.save(delivered(), directory / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_one_process_gets_the_sampler_s_batches_and_a_new_order_each_epoch():
    epochs = delivered()
    assert epochs == expected()
    assert epochs[0] != epochs[1]


def test_two_processes_get_the_halves_of_each_batch(tmp_path):
    mp.spawn(work, (free_port(), tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    together = [
        [a + b for a, b in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(first, second, strict=True)
    ]
    assert together == expected()
