"""Figure "Diminishing returns with pool size k": effective rank gained, against time."""

import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenbatch.batches import Greedy, PoolMax, Selector
from eigenbatch.core import participation_ratio, unit_rows
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, CYCLE, GREY, ORANGE, tidy
from eigenbatch_paper.synthetic import gaussian_rows, spiked_eigenvalues
from eigenbatch_paper.verdict import Verdict, any_of, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("isotropic", "anisotropic", "clustered", "duplicated")
SELECTORS: dict[str, Callable[[], Selector]] = {
    "Pool-P1": PoolMax,
    "Greedy-16": lambda: Greedy(16),
    "Greedy-64": lambda: Greedy(64),
    "Greedy-256": lambda: Greedy(256),
    "Greedy, whole pool": lambda: Greedy(None),
}
PRINTED_SHARE, LOW, HIGH = 0.8, 0.7, 0.9
MIDDLE, LARGE = 4, 10  # times the batch: 2,048 and 5,120

_SIZES: dict[Scale, tuple[int, int, int]] = {  # batch, d, seeds
    "smoke": (32, 16, 1),
    "small": (512, 128, 2),
    "paper": (512, 128, 10),
}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    batch, dim, seeds = _SIZES[scale]
    return [
        Chunk(f"{kind}, seed {seed}", {"kind": kind, "batch": batch, "dim": dim, "seed": seed})
        for kind in KINDS
        for seed in range(seeds)
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    batch, dim = chunk.settings["batch"], chunk.settings["dim"]
    generator = torch.Generator().manual_seed(
        100 * chunk.settings["seed"] + KINDS.index(chunk.settings["kind"])
    )
    pool = _pool(chunk.settings["kind"], LARGE * batch, dim, generator)
    rows = []
    for factor in (1, 2, MIDDLE, LARGE):
        part = pool[: factor * batch]
        for name, make in SELECTORS.items():
            seconds = []
            for _ in range(3):
                chosen, spent = _timed(make(), part, batch, generator)
                seconds.append(spent)
            rows.append(
                {
                    "kind": chunk.settings["kind"],
                    "selector": name,
                    "factor": factor,
                    "rank": participation_ratio(part[chosen]),
                    "cost": median(seconds) / _product_seconds(part, batch),
                }
            )
    return rows


def _timed(
    selector: Selector, pool: Tensor, batch: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    started = time.perf_counter()
    chosen = selector(pool, batch, generator=generator)
    return chosen, time.perf_counter() - started


def _product_seconds(pool: Tensor, batch: int) -> float:
    """A bare product of the pool with a batch, as a unit of time: the machine is shared."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        _ = pool @ pool[:batch].T
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _pool(kind: str, count: int, dim: int, generator: torch.Generator) -> Tensor:
    """(count, d) float32 unit rows in random order."""
    flat = spiked_eigenvalues(dim, 1 / dim).float()
    if kind == "isotropic":
        return gaussian_rows(count, flat, generator=generator)
    if kind == "anisotropic":  # eigenvalues fall as 1/j, as in trained encoders
        steep = 1 / torch.arange(1, dim + 1, dtype=torch.float32)
        return gaussian_rows(count, steep / steep.sum(), generator=generator)
    if kind == "clustered":  # ten classes of unequal size, rows close to their centre
        centres = gaussian_rows(10, flat, generator=generator)
        sizes = torch.arange(10, 0, -1, dtype=torch.float32)
        which = torch.multinomial(sizes, count, replacement=True, generator=generator)
        noise = torch.randn(count, dim, generator=generator) / dim**0.5
        return unit_rows(centres[which] + 0.7 * noise)
    originals = gaussian_rows(count // 8, flat, generator=generator)  # each about eight times
    which = torch.randint(len(originals), (count,), generator=generator)
    noise = torch.randn(count, dim, generator=generator) / dim**0.5
    return unit_rows(originals[which] + 0.05 * noise)


def _means(rows: list[Row], value: str) -> dict[tuple[str, str, int], float]:
    """Mean over seeds by (kind, selector, factor)."""
    found: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        found.setdefault((row["kind"], row["selector"], row["factor"]), []).append(row[value])
    return {key: fmean(values) for key, values in found.items()}


def _share(ranks: dict[tuple[str, str, int], float], kind: str, selector: str) -> float:
    """Of the rank gained from k = n to k = 10 n, what k = 4 n gives."""
    base, middle, large = (ranks[kind, selector, factor] for factor in (1, MIDDLE, LARGE))
    return (middle - base) / (large - base)


def _judge(rows: list[Row]) -> Verdict:
    ranks, costs = _means(rows, "rank"), _means(rows, "cost")
    shares = {
        name: [_share(ranks, kind, name) for kind in KINDS] for name in ("Pool-P1", "Greedy-64")
    }
    gains = {
        name: [ranks[kind, name, LARGE] / ranks[kind, name, 1] - 1 for kind in KINDS]
        for name in SELECTORS
    }
    relative = [
        costs[kind, "Greedy, whole pool", LARGE] / costs[kind, "Greedy-64", LARGE] for kind in KINDS
    ]
    measured = (
        f"share of the rank gained at 4 n: Greedy-64 {_range(shares['Greedy-64'])}, "
        f"Pool-P1 {_range(shares['Pool-P1'])}"
    )
    note = (
        "Effective rank stands in for epochs here. Gain in rank from k = n to 10 n: "
        + ", ".join(f"{name} {_range(values)}" for name, values in gains.items())
        + f". The whole pool costs {min(relative):.1f} to {max(relative):.1f} times Greedy-64."
    )
    inside = {
        f"{name} on {kind} pools": LOW <= value <= HIGH
        for name, values in shares.items()
        for kind, value in zip(KINDS, values, strict=True)
    }
    return decided({"about 80 % on some pools": any_of(inside.values())}, inside, measured, note)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0%}" if round(low, 2) == round(high, 2) else f"{low:.0%} to {high:.0%}"


def _draw(rows: list[Row], figure: "Figure") -> None:
    ranks = _means(rows, "rank")
    panels = figure.subplots(1, len(KINDS))
    factors = (1, 2, MIDDLE, LARGE)
    for axes, kind in zip(panels, KINDS, strict=True):
        for name, colour in zip(SELECTORS, (ORANGE, *CYCLE[2:], BLUE), strict=True):
            axes.plot(factors, [ranks[kind, name, f] for f in factors], "o-", color=colour,
                      markersize=3, linewidth=1.2, label=name)  # fmt: skip
        axes.axvline(MIDDLE, color=GREY, linewidth=1, linestyle=":")
        axes.set_xticks(factors)
        tidy(axes, f"{kind} pool", "pool / batch", "")
    panels[0].set_ylabel("effective rank of the chosen batch", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.suptitle("Larger pools pay off for greedy selection, hardly for picking the best of "
                    "random batches", fontsize=10)  # fmt: skip


CLAIM = Claim(
    name="pool-returns",
    section="Computational Efficiency and Wall-Clock Analysis",
    statement="Diminishing returns: a pool of 4 batches captures about 80 % of what a pool of 10 "
    "batches gives.",
    printed="about 80 % at k = 2,048 of 5,120 (epochs saved)",
    criterion="Reproduced if, of the effective rank gained from k = n to k = 10 n, 70 to 90 % is "
    "there at k = 4 n for both Greedy-64 and Pool-P1 on all four kinds of pools; holds under "
    "stated conditions if on some; otherwise does not reproduce.",
    size={
        "smoke": "4 kinds of pools x 1 seed, n = 32, d = 16, k up to 320",
        "small": "4 kinds of pools x 2 seeds, n = 512, d = 128, k up to 5,120",
        "paper": "4 kinds of pools x 10 seeds, n = 512, d = 128, k up to 5,120",
    },
    minutes={"smoke": 0.02, "small": 0.3, "paper": 1.5},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
