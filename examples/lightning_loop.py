"""Lightning: one callback reads, records and carries the cache of a chosen batch sampler.

Needs `pip install 'eigenbatch[integrations,train]'`.

    python examples/lightning_loop.py runs/lightning
"""

import sys

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

from eigenbatch import EmbeddingCache, Greedy, IndexedDataset, SpectralBatchSampler, SpectralMonitor
from eigenbatch.integrations.lightning import SpectralCallback

TAU = 0.2


class SimCLR(lightning.LightningModule):
    """A small encoder with NT-Xent."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))

    def training_step(self, batch: tuple, batch_index: int) -> dict:
        """Return the views and ids beside the loss: the callback reads them."""
        ids, (images,) = batch  # IndexedDataset adds the ids
        z1, z2 = (normalize(self.net(view(images))) for _ in range(2))
        z = torch.cat([z1, z2])  # (2b, d)
        logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
        loss = cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z1)))
        self.log("loss", loss)
        return {"loss": loss, "z1": z1, "z2": z2, "ids": ids}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), 1e-3)


def view(images: torch.Tensor) -> torch.Tensor:
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, device=images.device)
    return images * contrast + 0.2 * torch.randn_like(images)


def main(out: str = "runs/lightning", epochs: int = 4) -> None:
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.tensor(load_digits().data, dtype=torch.float32) / 16)  # (1797, 64)
    cache = EmbeddingCache(len(data), 32)
    sampler = SpectralBatchSampler(cache, 128, Greedy())
    callback = SpectralCallback(
        SpectralMonitor(TAU, every=10), record=out, cache=cache, sampler=sampler
    )
    trainer = lightning.Trainer(
        max_epochs=epochs, callbacks=[callback], accelerator="cpu", log_every_n_steps=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(SimCLR(), DataLoader(IndexedDataset(data), batch_sampler=sampler))
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
