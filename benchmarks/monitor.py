"""Cost of the monitor: a reading against the loss it describes, and against a training step.

python -m benchmarks monitor
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.core import nt_xent_step
from benchmarks.timing import alternate
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.train.encoders.nets import projection_head, resnet18

TAU = 0.1
EVERY = 50
VIEWS = 32
"""Views in the timed ResNet-18 step; its time is multiplied up to the batch of the reading."""


def main() -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads wait for each other when the cores are shared
    try:
        return "\n\n".join([_against_loss(), _against_step()])
    finally:
        torch.set_num_threads(threads)


def _views(rows: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(rows // 2, d, generator=generator)
    second = first + torch.randn(rows // 2, d, generator=generator)
    return normalize(first), normalize(second)


def _against_loss() -> str:
    lines = [
        "**One reading against NT-Xent forward and backward** (float32, one thread, n rows)\n",
        '| n | d | `method="certified"` | `method="theorem"` | skipped call |',
        "| --- | --- | --- | --- | --- |",
    ]
    for n, d in ((512, 128), (1024, 128), (4096, 128), (1024, 512), (128, 2048)):
        z1, z2 = _views(n, d)
        a, b = z1.clone().requires_grad_(), z2.clone().requires_grad_()
        certified = SpectralMonitor(TAU, every=1, strict=True, quiet=True)
        theorem = SpectralMonitor(TAU, every=1, strict=True, quiet=True, method="theorem")
        skipping = SpectralMonitor(TAU, every=10**9)
        skipping(z1, z2)
        timings = alternate(
            {
                "loss": lambda a=a, b=b: nt_xent_step(a, b),
                "certified": lambda z1=z1, z2=z2, monitor=certified: monitor(z1, z2),
                "theorem": lambda z1=z1, z2=z2, monitor=theorem: monitor(z1, z2),
                "skipped": lambda z1=z1, z2=z2, monitor=skipping: monitor(z1, z2),
            },
            rounds=31,
        )
        cells = [timings.ratio(name, "loss") for name in ("certified", "theorem")]
        skipped = f"{timings.median('skipped') * 1e6:.1f} us"
        lines.append(f"| {n} | {d} | {cells[0]} | {cells[1]} | {skipped} |")
    return "\n".join(lines)


def _against_step() -> str:
    n, d = 1024, 128
    model = nn.Sequential(resnet18("cifar"), projection_head(512, out=d))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images = torch.randn(VIEWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        first, second = normalize(model(images)).chunk(2)
        optimizer.zero_grad()
        nt_xent_step(first, second)
        optimizer.step()

    z1, z2 = _views(n, d)
    monitor = SpectralMonitor(TAU, every=1, strict=True, quiet=True)
    timings = alternate({"step": step, "reading": lambda: monitor(z1, z2)}, rounds=7)
    shares = sorted(
        reading / EVERY / (seconds * n / VIEWS)
        for reading, seconds in zip(
            timings.seconds["reading"], timings.seconds["step"], strict=True
        )
    )
    return (
        f"**Every {EVERY}th step read, against a ResNet-18 step on {n} views of 32 x 32** "
        f"(float32, one thread; the step is timed on {VIEWS} views and multiplied up): "
        f"{shares[len(shares) // 2]:.5%} ({shares[0]:.5%} ... {shares[-1]:.5%}) of the step."
    )


if __name__ == "__main__":
    print(main())
