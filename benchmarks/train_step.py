"""What a training step costs beside the network itself: loading, views, selection, cache.

python -m benchmarks train_step
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from benchmarks.timing import Timings, alternate
from eigenbatch import (
    EmbeddingCache,
    Greedy,
    IndexedDataset,
    Neighbours,
    PoolBalanced,
    Random,
    SpectralBatchSampler,
)
from eigenbatch.train.augment import Views
from eigenbatch.train.batch import Batch
from eigenbatch.train.budget import fastest_precision
from eigenbatch.train.data.images import ImageArray
from eigenbatch.train.encoders.nets import ConvNet, projection_head, resnet18
from eigenbatch.train.methods.simclr import SimCLR

IMAGES = 256  # a batch: 512 views
POOL = 5120
DATA = 10_240
STEPS = DATA // IMAGES
SHARE = 16
"""The ResNet-18 step is timed on this part of the views and multiplied up."""


def main() -> str:
    return "\n\n".join([_whole_step(), _selection(), _aftermath()])


def _images() -> ImageArray:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (DATA, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageArray(pixels, torch.zeros(DATA, dtype=torch.long), ("any",))


def _update(encoder: nn.Module) -> Callable[[Tensor, Tensor], None]:
    """Forward, loss, backward and update of SimCLR."""
    method = SimCLR(encoder, projection_head(int(encoder.features), 128, 128), 0.2)
    method.to(memory_format=torch.channels_last)
    optimizer = SGD(method.parameters(), 1e-3)
    half = fastest_precision() == "bf16-mixed"

    def update(first: Tensor, second: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = method(Batch(first, second)).loss
        loss.backward()
        optimizer.step()

    return update


def _batches(planner: Any) -> tuple[EmbeddingCache, Iterator[Any]]:
    """A filled cache and endless batches planned from it."""
    cache = EmbeddingCache(DATA, 128)
    rows = torch.randn(DATA, 128, generator=torch.Generator().manual_seed(0))
    cache.update(torch.arange(DATA), rows)
    pools = {} if isinstance(planner, Neighbours | Random) else {"pool_size": POOL, "replace": True}
    sampler = SpectralBatchSampler(cache, IMAGES, planner, **pools)
    loader = DataLoader(IndexedDataset(_images()), batch_sampler=sampler)

    def forever() -> Iterator[Any]:
        for epoch in count():
            sampler.set_epoch(epoch)
            yield from loader

    return cache, forever()


def _whole_step() -> str:
    views = Views(32)
    update = _update(ConvNet(3, (32, 64, 128, 128)))
    _, batches = _batches(Random())
    fixed = views(_images().images[:IMAGES])

    def whole() -> None:
        _, (images, _) = next(batches)
        update(*views(images))

    timings = alternate({"bare": lambda: update(*fixed), "whole": whole}, rounds=15)
    return (
        f"**Loading, views, ConvNet and loss for {IMAGES} CIFAR images** ({fastest_precision()}, "
        f"channels last) take {timings.ratio('whole', 'bare')} the bare forward, backward and "
        "update on views made beforehand."
    )


def _selection() -> str:
    convnet, small = _update(ConvNet(3, (32, 64, 128, 128))), _update(resnet18("cifar"))
    views = torch.randn(2, IMAGES, 3, 32, 32)
    few = torch.randn(2, IMAGES // SHARE, 3, 32, 32)
    functions: dict[str, Callable[[], object]] = {
        "convnet": lambda: convnet(*views),
        "resnet": lambda: small(*few),
    }
    planners = {
        "P3": PoolBalanced(), "Greedy-64": Greedy(64), "Greedy, whole pool": Greedy(None),
        "Neighbours": Neighbours(),
    }  # fmt: skip
    for name, planner in {"random": Random(), **planners}.items():
        functions[name] = _an_epoch(planner)
    timings = alternate(functions, rounds=9)
    lines = [
        f"**Planning and cache updates of an epoch against its steps** ({2 * IMAGES} views of "
        f"32 x 32 a step, pool {POOL}, d = 128; the time of uniform sampling and loading is taken "
        f"off; ResNet-18 timed on 1/{SHARE} of the views and multiplied)\n",
        "| planner | of a ConvNet step | of a ResNet-18 step |",
        "| --- | --- | --- |",
    ]
    for name in planners:
        lines.append(
            f"| {name} | {_share(timings, name, 'convnet', STEPS)} "
            f"| {_share(timings, name, 'resnet', STEPS * SHARE)} |"
        )
    return "\n".join(lines)


def _aftermath() -> str:
    """What selection leaves behind: threads that go on spinning slow the step that follows."""
    step = _update(ConvNet(3, (32, 64, 128, 128)))
    few = torch.randn(2, IMAGES // SHARE, 3, 32, 32)
    pool = torch.randn(POOL, 128)
    timings = alternate(
        {
            "uniform": lambda: Random()(pool, IMAGES),
            "after uniform": lambda: step(*few),
            "greedy": lambda: Greedy(64)(pool, IMAGES),
            "after greedy": lambda: step(*few),
        },
        rounds=41,
        pause=0,
    )
    return (
        f"**A ConvNet step on {2 * IMAGES // SHARE} views after a Greedy-64 selection** takes "
        f"{timings.ratio('after greedy', 'after uniform')} the same step after a uniform one."
    )


def _an_epoch(planner: Any) -> Callable[[], None]:
    cache, batches = _batches(planner)
    updated = torch.randn(IMAGES, 128)

    def run() -> None:
        for _ in range(STEPS):
            ids, _ = next(batches)
            if not isinstance(planner, Random):
                cache.update(ids, updated)

    return run


def _share(timings: Timings, name: str, step: str, times: int) -> str:
    """Median share of a step, with the middle half of the rounds."""
    columns = (timings.seconds[key] for key in (name, "random", step))
    shares = sorted(
        (own - base) / (times * whole) for own, base, whole in zip(*columns, strict=True)
    )
    quarter = len(shares) // 4
    low, middle, high = shares[quarter], shares[len(shares) // 2], shares[-1 - quarter]
    return f"{middle:.1%} ({low:.1%}-{high:.1%})"


if __name__ == "__main__":
    print(main())
