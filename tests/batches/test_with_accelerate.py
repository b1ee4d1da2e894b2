import os
import socket

import pytest
import torch
import torch.multiprocessing as mp
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from toys import LeastSimilar, Numbers, filled_cache

from eigenbatch import IndexedDataset, SpectralBatchSampler
from eigenbatch.errors import ParameterError

pytestmark = pytest.mark.slow
SIZE, BATCH, EPOCHS = 40, 8, 2


def delivered(shard=False, **configuration):
    """Ids of two epochs through accelerate; it splits the global batch itself."""
    sampler = SpectralBatchSampler(
        filled_cache(SIZE), BATCH, LeastSimilar(), pool_size=24, shard=shard
    )
    loader = DataLoader(IndexedDataset(Numbers(SIZE)), batch_sampler=sampler)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True, **configuration)
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


def whole_batches(**arguments):
    """Ids of an epoch where accelerate gives each process every second batch."""
    sampler = SpectralBatchSampler(
        filled_cache(SIZE), BATCH, LeastSimilar(), pool_size=24, **arguments
    )
    loader = DataLoader(IndexedDataset(Numbers(SIZE)), batch_sampler=sampler)
    return [ids.tolist() for ids, _ in Accelerator(cpu=True).prepare(loader)]


def work(rank, port, directory):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    found = {"halves": delivered()}
    AcceleratorState._reset_state()
    found["whole"] = whole_batches(shard=False)
    for refused in (delivered, whole_batches):  # empty epochs otherwise
        AcceleratorState._reset_state()
        with pytest.raises(ParameterError, match="shard=False"):
            refused(shard=True)
    if rank == 0:  # the others wait for it in their loader
        AcceleratorState._reset_state()
        with pytest.raises(ParameterError, match="dispatch_batches=False"):
            delivered(dispatch_batches=True)
    torch.save(found, directory / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_one_process_gets_the_sampler_s_batches_and_a_new_order_each_epoch():
    epochs = delivered()
    assert epochs == expected()
    assert epochs[0] != epochs[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    directory = tmp_path_factory.mktemp("accelerate")
    mp.spawn(work, (free_port(), directory), nprocs=2)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_get_the_halves_of_each_batch(both):
    together = [
        [a + b for a, b in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(*(one["halves"] for one in both), strict=True)
    ]
    assert together == expected()


def test_two_processes_get_every_second_batch_by_accelerates_default(both):
    first, second = (one["whole"] for one in both)
    planned = expected()[0]
    assert first == planned[::2][: len(first)]
    assert second[: len(planned) // 2] == planned[1::2]
