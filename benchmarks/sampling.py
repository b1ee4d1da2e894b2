"""Cost and memory of the embedding cache, cost of the sampler, and R_eff over an epoch."""

import os
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, RandomSampler

from benchmarks.timing import alternate
from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.random import Random

IMAGENET, DIM, ROWS = 1_281_167, 128, 512


def main() -> str:
    return "\n\n".join([cache_cost(), memory(), sampler_cost(), rank_over_the_epoch()])


# --- the cache ------------------------------------------------------------------------------


def cache_cost() -> str:
    """One update and one read of 512 rows, beside what else one might do, and a training step."""
    random = torch.Generator().manual_seed(0)
    ids = torch.randperm(IMAGENET, generator=random)[:ROWS]
    z = torch.randn(ROWS, DIM, generator=random)
    cache, rows = EmbeddingCache(IMAGENET, DIM), torch.zeros(IMAGENET, DIM, dtype=torch.float16)
    dictionary: dict[int, Tensor] = {}

    def cached() -> None:
        cache.update(ids, z)
        cache.get(ids)

    def bare() -> None:
        rows[ids] = nn.functional.normalize(z).half()
        rows[ids].clone()

    def by_dictionary() -> None:
        unit = nn.functional.normalize(z).half()
        dictionary.update(zip(ids.tolist(), unit, strict=True))
        torch.stack([dictionary[i] for i in ids.tolist()])

    def cached_often() -> None:
        for _ in range(100):
            cached()

    step = ResNet18Step(images=32)
    quick = alternate({"cache": cached, "bare": bare, "dict": by_dictionary}, rounds=101)
    slow = alternate({"cache x 100": cached_often, "step": step}, rounds=5)
    return "\n".join(
        [
            f"`update` and `get` of {ROWS} x {DIM} rows in a cache of {IMAGENET:,}: "
            f"{quick.median('cache') * 1e3:.2f} ms",
            "",
            "| the cache, relative to | ratio (middle half) |",
            "| --- | --- |",
            f"| unchecked assignment and indexing of one tensor | {quick.ratio('cache', 'bare')} |",
            f"| a dictionary of rows | {quick.ratio('cache', 'dict')} |",
            f"| 1 % of a ResNet-18 step on only 32 of 512 views | "
            f"{slow.ratio('cache x 100', 'step')} |",
        ]
    )


def memory() -> str:
    """Resident memory of a cache of ImageNet-1k in which every row was written."""
    before = resident_bytes()
    cache = EmbeddingCache(IMAGENET, DIM)
    for ids in torch.arange(IMAGENET).split(65536):
        cache.update(ids, torch.randn(len(ids), DIM))
    used, wanted = resident_bytes() - before, IMAGENET * (2 * DIM + 4)
    return (
        f"Memory, all {IMAGENET:,} x {DIM} rows written: {used / 2**20:.0f} MiB resident, "
        f"{used / wanted:.3f} of the raw float16 array plus 4 bytes a row"
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class ResNet18Step:
    """Forward and backward of a ResNet-18 with a 32 x 32 stem."""

    def __init__(self, images: int) -> None:
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        blocks = [Block(a, b) for a, b in pairwise(widths)]
        self.net = nn.Sequential(
            convolution(3, 64), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, DIM)
        )
        self.x = torch.randn(images, 3, 32, 32)

    def __call__(self) -> None:
        """One step without the optimiser."""
        self.net(self.x).square().mean().backward()


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        stride = 1 if a == b else 2
        self.body = nn.Sequential(convolution(a, b, stride), nn.ReLU(), convolution(b, b))
        self.short = nn.Identity() if a == b else nn.Conv2d(a, b, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum."""
        return (self.body(x) + self.short(x)).relu()


def convolution(a: int, b: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b))


# --- the sampler ----------------------------------------------------------------------------


def sampler_cost() -> str:
    """Milliseconds a batch on the path of training, while a longer step runs elsewhere."""
    size, batch = 100_000, 512
    cache = EmbeddingCache(size, DIM)
    cache.update(torch.arange(size), torch.randn(size, DIM))
    greedy = Greedy(probe=None)
    samplers = {
        "torch's BatchSampler, shuffled": BatchSampler(RandomSampler(range(size)), batch, True),
        "`Random()`": SpectralBatchSampler(cache, batch, Random()),
        "`Greedy(probe=None)`": SpectralBatchSampler(cache, batch, greedy),
        "the same, `background=True`": SpectralBatchSampler(cache, batch, greedy, background=True),
    }
    choosing = waited(iter(samplers["`Greedy(probe=None)`"]), step=0)
    step = 2 * statistics.median(choosing)
    times = {name: waited(iter(sampler), step=step) for name, sampler in samplers.items()}
    rows = [
        f"| {name} | {statistics.median(values) * 1e3:.1f} | "
        f"{min(values) * 1e3:.1f} - {max(values) * 1e3:.1f} |"
        for name, values in times.items()
    ]
    return "\n".join(
        [
            f"A batch of {batch} from a pool of {10 * batch} x {DIM}, beside a training step of "
            f"{step * 1e3:.0f} ms elsewhere (twice the time of a greedy choice):",
            "",
            "| sampler | ms on the critical path | range |",
            "| --- | --- | --- |",
            *rows,
        ]
    )


def waited(batches: Iterator[list[int]], *, step: float) -> list[float]:
    """Seconds until each of ten batches came, after the first two."""
    times = []
    for _ in range(12):
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
        time.sleep(step)
    return times[2:]


# --- what coverage does to the spectrum -----------------------------------------------------


def rank_over_the_epoch() -> str:
    """R_eff of the batches of one epoch, by eighths, on clusters of unequal size."""
    size, dim, batch = 16_384, 64, 256
    z = unequal_clusters(size, dim)
    cache = EmbeddingCache(size, dim)
    cache.update(torch.arange(size), z)
    lines = [
        f"R_eff over one epoch ({size:,} x {dim}, 40 clusters of sizes 1/k, batch {batch}, pool "
        f"{10 * batch}); the data as a whole has {participation_ratio(z):.1f}:",
        "",
        "| coverage, selector | " + " | ".join(f"{k}/8" for k in range(1, 9)) + " | least | "
        "harmonic mean |",
        "| --- |" + " --- |" * 10,
    ]
    for coverage in ("epoch", "stream", "free"):
        for name, selector in (("Random", Random()), ("Greedy", Greedy(probe=None))):
            sampler = SpectralBatchSampler(cache, batch, selector, coverage=coverage)
            ranks = torch.tensor([participation_ratio(cache.get(ids)) for ids in sampler])
            eighths = " | ".join(f"{part.mean():.1f}" for part in ranks.tensor_split(8))
            harmonic = 1 / (1 / ranks).mean()
            lines.append(
                f'| "{coverage}", {name} | {eighths} | {ranks.min():.1f} | {harmonic:.1f} |'
            )
    return "\n".join(lines)


def unequal_clusters(size: int, dim: int) -> Tensor:
    """(size, dim) unit rows: 40 clusters, the k-th of weight 1/k, with anisotropic noise."""
    random = torch.Generator().manual_seed(0)
    centres = nn.functional.normalize(torch.randn(40, dim, generator=random))
    weights = 1 / torch.arange(1.0, 41)
    label = torch.multinomial(weights, size, replacement=True, generator=random)
    spread = nn.functional.normalize(torch.arange(1.0, dim + 1) ** -0.5, dim=0)
    noise = 0.8 * spread * torch.randn(size, dim, generator=random)
    return nn.functional.normalize(centres[label] + noise)


if __name__ == "__main__":
    print(main())
