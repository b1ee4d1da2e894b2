import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from lightning_ddp import BATCH, EPOCHS, SIZE, trained
from torch.utils.data import DataLoader
from toys import Numbers, filled_cache

from eigenbatch import IndexedDataset, Random, SpectralBatchSampler

# Lightning 2.6 asks torch's trees in a way that torch 2.13 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec:FutureWarning")


def test_a_trainer_shuffles_every_epoch_anew_and_covers_it():
    batches = trained(devices=1).batches
    steps = SIZE // BATCH
    epochs = [batches[:steps], batches[steps:]]
    for epoch in epochs:
        assert sorted(i for batch in epoch for i in batch) == list(range(SIZE))
    assert epochs[0] != epochs[1]


@pytest.mark.slow
def test_two_processes_of_a_trainer_share_the_batches_of_one(tmp_path):
    script = Path(__file__).with_name("lightning_ddp.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent)}
    subprocess.run([sys.executable, script, tmp_path], env=environment, check=True, timeout=240)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    together = [a + b for a, b in zip(first["batches"], second["batches"], strict=True)]
    alone = trained(devices=1)
    assert together == alone.batches
    assert len(together) == EPOCHS * (SIZE // BATCH)
    assert torch.equal(first["rows"], second["rows"])
    assert torch.equal(first["rows"], alone.cache.get(range(SIZE)))


def test_fabric_delivers_the_sampler_s_batches():
    cache = filled_cache(SIZE)
    sampler, expected = (SpectralBatchSampler(cache, BATCH, Random()) for _ in range(2))
    loader = DataLoader(IndexedDataset(Numbers(SIZE)), batch_sampler=sampler)
    fabric = Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    for epoch in range(EPOCHS):
        loader.batch_sampler.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert [ids.tolist() for ids, _ in loader] == list(expected)
