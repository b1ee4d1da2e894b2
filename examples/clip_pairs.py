"""CLIP's two towers in plain PyTorch, with batches of similar pairs against random batches.

Needs `pip install 'eigenbatch[cli,report]'`. The data are made here: a caption has four words of
48, its picture is a noisy mixture of one pattern for each word. Pairs that differ in one word are
hard negatives of each other, and they are rare in random batches.

    python examples/clip_pairs.py runs/clip
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from eigenbatch import EmbeddingCache, Neighbours, Random, SpectralBatchSampler, SpectralMonitor
from eigenbatch.runs import Recorder, compare

TAU, BATCH, EPOCHS, DIMENSION = 0.05, 32, 3, 32
SLOTS, CHOICES, PIXELS, TRAINING, TEST = 4, 12, 64, 4000, 1000


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures and the words of their captions; no caption is there twice."""
    generator = torch.Generator().manual_seed(0)
    captions = torch.cartesian_prod(*torch.arange(SLOTS * CHOICES).split(CHOICES))  # (20736, 4)
    captions = captions[torch.randperm(len(captions), generator=generator)[: TRAINING + TEST]]
    patterns = torch.randn(SLOTS * CHOICES, PIXELS, generator=generator)
    pictures = patterns[captions].sum(1).tanh()  # (m, 64)
    return pictures + 0.5 * torch.randn(pictures.shape, generator=generator), captions


def train(selector: Random | Neighbours, seed: int, run: Recorder) -> None:
    torch.manual_seed(seed)
    pictures, captions = pairs()
    new = pictures[TRAINING:], captions[TRAINING:]  # never trained on
    image = nn.Sequential(nn.Linear(PIXELS, 256), nn.ReLU(), nn.Linear(256, DIMENSION))
    words = nn.EmbeddingBag(SLOTS * CHOICES, 64, mode="sum")
    text = nn.Sequential(words, nn.ReLU(), nn.Linear(64, DIMENSION))
    optimizer = torch.optim.Adam([*image.parameters(), *text.parameters()], 2e-3)
    cache = EmbeddingCache(TRAINING, DIMENSION, towers=2)
    sampler = SpectralBatchSampler(cache, BATCH, selector, tau=TAU, seed=seed)
    monitor = SpectralMonitor(TAU, every=100, quiet=True)
    target, step = torch.arange(BATCH), 0
    every = [(ids, ids) for ids in torch.arange(TRAINING).split(500)]  # (ids, samples)
    run.log(step, epoch=0, mrr=retrieval(image, text, *new))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for ids in sampler:
            z1, z2 = normalize(image(pictures[ids])), normalize(text(captions[ids]))  # (b, d)
            logits = z1 @ z2.T / TAU  # (b, b)
            loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cache.update(ids, z1, z2)  # later epochs are planned by both towers
            step += 1
            if step == 60:  # embed all samples once: the first epoch is planned too
                cache.fill(lambda ids: (image(pictures[ids]), text(captions[ids])), every)
            run.log(step, epoch=epoch, loss=loss.detach())
            run.reading(monitor(z1, z2, layout="cross"))
        run.log(step, epoch=epoch + 1, mrr=retrieval(image, text, *new))


@torch.no_grad()
def retrieval(image: nn.Module, text: nn.Module, pictures: torch.Tensor, captions: torch.Tensor):
    """Mean reciprocal rank of the picture that belongs to a caption."""
    scores = normalize(text(captions)) @ normalize(image(pictures)).T  # (m, m)
    return (1 / (scores >= scores.diagonal()[:, None]).sum(1)).mean().item()


def main(out: str = "runs/clip") -> None:
    print(f"mean reciprocal rank of {TEST} new pictures, by caption:")
    print(compare(train, {"random": Random(), "neighbours": Neighbours()}, seeds=3, path=out))
    print(f"look at it: eigenbatch report {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
