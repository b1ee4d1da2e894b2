"""Any training loop in plain PyTorch: three lines record it for the report.

python examples/plain_loop.py runs/plain  # needs scikit-learn for its digits
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from eigenbatch import EmbeddingCache, Greedy, Recorder, SpectralBatchSampler, SpectralMonitor

TAU = 0.2


def nt_xent(z1: torch.Tensor, z2: torch.Tensor) -> torch.Tensor:
    z = torch.cat([z1, z2])  # (2b, d), unit rows
    logits = (z @ z.T / TAU).fill_diagonal_(-torch.inf)
    positive = torch.arange(len(z)).roll(len(z1))
    return cross_entropy(logits, positive)


def view(images: torch.Tensor) -> torch.Tensor:
    return images * (0.7 + 0.6 * torch.rand(len(images), 1)) + 0.2 * torch.randn(images.shape)


def main(out: str = "runs/plain", epochs: int = 4) -> None:
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16  # (1797, 64)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    cache = EmbeddingCache(len(images), 32)
    sampler = SpectralBatchSampler(cache, 128, Greedy())
    monitor = SpectralMonitor(TAU, every=10)
    step = 0
    with Recorder(out, config={"tau": TAU, "selector": "greedy-64"}) as run:  # 1
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for ids in sampler:
                z1, z2 = (normalize(model(view(images[ids]))) for _ in range(2))
                loss = nt_xent(z1, z2)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                cache.update(ids, z1)
                step += 1
                run.log(step, epoch=epoch, loss=loss.detach())  # 2
                run.reading(monitor(z1, z2))  # 3
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
