"""MoCo in plain PyTorch: a momentum encoder, a queue of keys, and a monitor that knows about it.

Needs `pip install 'eigenbatch[train]'` for the digits of scikit-learn.

    python examples/moco_queue.py runs/moco
"""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from eigenbatch import Contrast, Recorder, SpectralMonitor

TAU, MOMENTUM, BATCH, QUEUE, DIMENSION = 0.2, 0.99, 128, 512, 32


def view(images: torch.Tensor) -> torch.Tensor:
    return images * (0.7 + 0.6 * torch.rand(len(images), 1)) + 0.2 * torch.randn(images.shape)


def main(out: str = "runs/moco", epochs: int = 30) -> None:
    torch.manual_seed(0)
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16  # (1797, 64)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, DIMENSION))
    slow = copy.deepcopy(encoder).requires_grad_(False)  # the momentum encoder
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-3)
    with torch.no_grad():  # a queue of real keys: random ones would be easy negatives
        queue = normalize(slow(view(images[torch.randperm(len(images))[:QUEUE]])))  # (k, d)
    monitor = SpectralMonitor(TAU, every=25)
    step = 0
    with Recorder(out, config={"tau": TAU, "queue": QUEUE, "momentum": MOMENTUM}) as run:
        for epoch in range(epochs):
            for ids in torch.randperm(len(images)).split(BATCH)[:-1]:
                queries = normalize(encoder(view(images[ids])))  # (b, d)
                with torch.no_grad():
                    keys = normalize(slow(view(images[ids])))  # (b, d)
                positive = (queries * keys).sum(1, keepdim=True)  # (b, 1)
                logits = torch.cat([positive, queries @ queue.T], 1) / TAU  # (b, 1 + k)
                loss = cross_entropy(logits, torch.zeros(len(ids), dtype=torch.long))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    for mean, weight in zip(slow.parameters(), encoder.parameters(), strict=True):
                        mean.lerp_(weight, 1 - MOMENTUM)
                step += 1
                run.log(step, epoch=epoch, loss=loss.item())
                contrast = Contrast.queued(queries, keys, queue)  # before the keys are queued
                run.reading(monitor(contrast=contrast, loss=loss.item()))
                queue = torch.cat([queue[len(keys) :], keys])  # the oldest keys leave
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
