"""Planned epochs: what a batch costs, from ten thousand to ten million rows, and other planners.

python -m benchmarks batches
"""

import json
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import alternate
from eigenbatch import EmbeddingCache, Neighbours, Random, SpectralBatchSampler
from eigenbatch_paper import peers
from eigenbatch_paper.claims import planner_peers

ROWS = Path(__file__).parent.parent / "results" / "small" / "planner-peers" / "rows.jsonl"
PAIRS, DIM = 29_000, 128
SIZES = (10**4, 10**5, 10**6, 10**7)
MAPPED = 10**7
HORIZON = 262_144


def main() -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return "\n\n".join([_a_step(), _scale(), _planners(), _runs()])
    finally:
        torch.set_num_threads(threads)


def pairs_of(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(size, 128) each: noisy copies of rows around 500 centres."""
    centres = torch.randn(500, DIM, generator=generator)
    rows = centres[torch.randint(500, (size,), generator=generator)]
    rows = rows + torch.randn(size, DIM, generator=generator)
    return tuple(rows + 0.5 * torch.randn(size, DIM, generator=generator) for _ in range(2))


def filled(size: int, path: Path | None = None) -> EmbeddingCache:
    cache, generator = EmbeddingCache(size, DIM, towers=2, path=path), torch.Generator()
    for ids in torch.arange(size).split(100_000):
        cache.update(ids, *pairs_of(len(ids), generator.manual_seed(int(ids[0]))))
    return cache


def _a_step() -> str:
    """Planning, handing out and updating, per step."""
    cache = filled(PAIRS)
    lines = [
        f"**Per step of an epoch** ({PAIRS:,} pairs, 2 x {DIM}, one thread; milliseconds for "
        "orientation, ratios within one run)\n",
        "| n | plan, ms | hand out, ms | `cache.update`, ms | plan / one product of all rows with "
        "the batch |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = cache.rows(torch.arange(PAIRS))
    for n in (64, 256):
        sampler = SpectralBatchSampler(cache, n, Neighbours())
        steps = len(sampler)
        batch, (z1, z2) = torch.arange(n), pairs_of(n, torch.Generator().manual_seed(0))

        def plan(sampler: SpectralBatchSampler = sampler) -> None:
            sampler.set_epoch(sampler.epoch + 1)
            next(iter(sampler))

        def update(batch: Tensor = batch, z1: Tensor = z1, z2: Tensor = z2) -> None:
            cache.update(batch, z1, z2)

        def products(n: int = n) -> None:
            for _ in range(10):
                rows[:n, 0] @ rows[:, 1].T

        drawn = iter(sampler)
        next(drawn)
        began = time.perf_counter()
        handed_out = sum(1 for _ in drawn)
        each = (time.perf_counter() - began) / handed_out
        timings = alternate({"plan": plan, "products": products, "update": update}, rounds=7)
        timings.seconds["plan"] = [t / steps for t in timings.seconds["plan"]]
        timings.seconds["products"] = [t / 10 for t in timings.seconds["products"]]
        lines.append(
            f"| {n} | {timings.median('plan') * 1e3:.2f} | {each * 1e3:.3f} "
            f"| {timings.median('update') * 1e3:.2f} | {timings.ratio('plan', 'products')} |"
        )
    return "\n".join(lines)


def _scale() -> str:
    """An epoch planned part by part, each size once."""
    lines = [
        f"**Planning an epoch** (2 x {DIM}, n = 256, horizon {HORIZON:,}, one thread; each size "
        "once; the largest in a memory-mapped file with checksums)\n",
        "| rows | seconds | per 10^6 rows | products of all rows of a horizon with one batch, for "
        "each horizon | extra memory, MiB | rows of a horizon in float32, MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            cache = filled(size, Path(scratch) / "cache.bin" if size >= MAPPED else None)
            part = min(size, HORIZON)
            rows = cache.rows(torch.arange(part))
            began = time.perf_counter()
            rows[:256, 0] @ rows[:, 1].T
            product = time.perf_counter() - began
            del rows
            sampler = SpectralBatchSampler(cache, 256, Neighbours(), horizon=HORIZON)
            watch = _Memory()
            began = time.perf_counter()
            for _ in sampler:
                pass
            seconds = time.perf_counter() - began
            extra = watch.stop()
            lines.append(
                f"| {size:,} | {seconds:.2f} | {seconds * 1e6 / size:.1f} "
                f"| {seconds / product / max(1, size / part):.0f} | {extra / 2**20:.0f} "
                f"| {part * 2 * DIM * 4 / 2**20:.0f} |"
            )
            del cache, sampler
    return "\n".join(lines)


class _Memory(threading.Thread):
    """The peak of memory that is no file's, above what there was."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = self._now()
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.peak = max(self.peak, self._now())

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak - self.before

    @staticmethod
    def _now() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("RssAnon:")[1].split()[0])


def _planners() -> str:
    """One plan of each planner, alternately."""
    cache = filled(PAIRS)
    rows, steps = cache.rows(torch.arange(PAIRS)), PAIRS // 64
    planners = {
        "Neighbours": Neighbours(), "Random": Random(),
        "GCBS (reverse Cuthill-McKee)": peers.GCBS(), "BatchSampler's random walk": peers.Walk(),
    }  # fmt: skip
    calls = {
        name: lambda planner=planner: planner.plan(
            rows, 64, generator=torch.Generator().manual_seed(0)
        )
        for name, planner in planners.items()
    }
    timings = alternate(calls, rounds=3)
    lines = [
        f"**Planners** ({PAIRS:,} pairs, n = 64, one thread)\n",
        "| planner | ms a step | of ours |",
        "| --- | --- | --- |",
    ]
    for name in calls:
        each = timings.median(name) / steps * 1e3
        lines.append(f"| {name} | {each:.2f} | {timings.ratio(name, 'Neighbours')} |")
    return "\n".join(lines)


def _runs() -> str:
    """What the runs of the claim planner-peers say."""
    if not ROWS.is_file():
        return "**Trained with each planner**: the claim `planner-peers` has no rows yet."
    lines = [json.loads(text) for text in ROWS.read_text().splitlines()]
    verdict = planner_peers.judge([row for line in lines for row in line["rows"]])
    return f"**Trained with each planner** (claim `planner-peers`). {verdict.measured}. " + (
        verdict.note
    )


if __name__ == "__main__":
    print(main())
