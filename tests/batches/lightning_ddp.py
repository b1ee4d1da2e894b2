"""Run as a script by test_with_lightning.py: Lightning starts it again for the second process."""

import gc
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader
from toys import LeastSimilar, Numbers, filled_cache

from eigenbatch import EmbeddingCache, IndexedDataset, SpectralBatchSampler

SIZE, BATCH, EPOCHS = 40, 8, 2


class Trained(LightningModule):
    """Notes the ids of every step, and embeds them anew."""

    def __init__(self, cache: EmbeddingCache) -> None:
        super().__init__()
        self.cache = cache
        self.layer = torch.nn.Linear(1, 8)
        self.batches: list[list[int]] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        ids, items = batch
        self.batches.append(ids.tolist())
        z = torch.sin(torch.outer(ids + 1.0, torch.arange(1.0, 9)) * len(self.batches))
        self.cache.update(ids, z)
        return self.layer(items[:, None].float()).square().mean()

    def train_dataloader(self) -> DataLoader:
        sampler = SpectralBatchSampler(self.cache, BATCH, LeastSimilar(), pool_size=24)
        return DataLoader(IndexedDataset(Numbers(SIZE)), batch_sampler=sampler)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trained(devices: int) -> Trained:
    """The module after two epochs."""
    module = Trained(filled_cache(SIZE))
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module)
    return module


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    result = trained(2)
    result.cache.gather()
    saved = {"batches": result.batches, "rows": result.cache.get(range(SIZE))}
    torch.save(saved, directory / f"{result.global_rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    gc.collect()
    torch.distributed.destroy_process_group()  # gloo's threads may abort the process otherwise
