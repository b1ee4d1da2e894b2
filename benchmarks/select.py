"""Selectors against plain loops and against what a user would pick instead.

python -m benchmarks select
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.timing import alternate
from eigenbatch import (
    Blend,
    Greedy,
    PoolBalanced,
    PoolMax,
    PoolMin,
    Random,
    participation_ratio,
)
from eigenbatch.batches import Selector, candidate_ranks

K, N, D = 5120, 512, 128
WHOLE = "Greedy, whole pool"
FIGURE = Path(__file__).parent.parent / "docs" / "images" / "selection.png"


def main() -> str:
    return "\n\n".join([_costs(), _growth(), _scoring(), _peers()])


def pool_of(kind: str, k: int, d: int) -> Tensor:
    """(k, d) unit rows in float32: isotropic, a 1/sqrt(j) power law, or 200 clusters of it."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(k, d, generator=generator)
    if kind != "isotropic":
        rows *= torch.arange(1, d + 1) ** -0.5
    if kind == "clustered":
        centres = torch.randn(200, d, generator=generator) * torch.arange(1, d + 1) ** -0.5
        rows = centres[torch.randint(200, (k,), generator=generator)] + 0.5 * rows
    return rows / rows.norm(dim=1, keepdim=True)


def plain_greedy_64(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Algorithm 2 as one would write it: z^T Sigma_B z for 64 fresh probes at each step."""
    batch = [0, 1]
    left = torch.ones(len(rows), dtype=torch.bool)
    left[:2] = False
    while len(batch) < n:
        candidates = left.nonzero()[:, 0]
        candidates = candidates[torch.randperm(len(candidates), generator=generator)[:64]]
        sigma = rows[batch].T @ rows[batch] / len(batch)
        scores = ((rows[candidates] @ sigma) * rows[candidates]).sum(1)
        best = int(candidates[scores.argmin()])
        batch.append(best)
        left[best] = False
    return torch.tensor(batch)


def bare_products(rows: Tensor, n: int) -> None:
    """The matrix-vector products that a plain whole-pool greedy contains, and nothing else."""
    matrix, out = rows.numpy(), np.empty(len(rows), dtype=np.float32)
    for i in range(n):
        np.dot(matrix, matrix[i], out=out)


def run(selector: Selector, rows: Tensor, n: int) -> Tensor:
    return selector(rows, n, generator=torch.Generator().manual_seed(0))


def _costs() -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lines = [
        f"**Greedy against plain loops** (pool {K} x {D} -> {N}, float32, one thread; "
        "R_eff in brackets)\n",
        "| pool | whole pool / bare products | whole pool / one product of pool and batch "
        "| Greedy-64 / that product | plain Greedy-64 / whole pool "
        "| plain Greedy-64 / our Greedy-64 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in ("isotropic", "power law", "clustered"):
        rows = pool_of(kind, K, D)
        generator = torch.Generator().manual_seed(0)
        timings = alternate(
            {
                "bare": partial(bare_products, rows, N),
                "product": partial(torch.mm, rows, rows[:N].T),
                "whole": partial(run, Greedy(None), rows, N),
                "ours": partial(run, Greedy(64), rows, N),
                "plain": partial(plain_greedy_64, rows, N, generator),
            }
        )
        rank = {
            name: participation_ratio(rows[chosen])
            for name, chosen in {
                "whole": run(Greedy(None), rows, N),
                "ours": run(Greedy(64), rows, N),
                "plain": plain_greedy_64(rows, N, generator),
            }.items()
        }
        lines.append(
            f"| {kind} | {timings.ratio('whole', 'bare')} [{rank['whole']:.2f}] "
            f"| {timings.ratio('whole', 'product')} "
            f"| {timings.ratio('ours', 'product')} "
            f"| {timings.ratio('plain', 'whole')} [{rank['plain']:.2f}] "
            f"| {timings.ratio('plain', 'ours')} [{rank['ours']:.2f}] |"
        )
    torch.set_num_threads(threads)
    return "\n".join(lines)


def _growth() -> str:
    """Whole-pool greedy against the bare products over pool, batch and dimension."""
    lines = [
        "**Whole-pool greedy against its bare products over sizes** (power-law pool; the products "
        "are timed on 64 picks and multiplied up)\n",
        "| k | n | d | whole pool / bare products | seconds, for orientation |",
        "| --- | --- | --- | --- | --- |",
    ]
    sizes = [
        (512, 64, 128), (K, 64, D), (K, N, 64), (K, N, D), (K, N, 1024), (K, 4096, D),
        (20480, N, D), (81920, N, D), (81920, N, 1024),
    ]  # fmt: skip
    for k, n, d in sizes:
        rows = pool_of("power law", k, d)
        timings = alternate(
            {
                "bare": partial(bare_products, rows, 64),
                "whole": partial(run, Greedy(None), rows, n),
            },
            rounds=5,
        )
        timings.seconds["bare"] = [t * n / 64 for t in timings.seconds["bare"]]
        lines.append(
            f"| {k} | {n} | {d} | {timings.ratio('whole', 'bare')} "
            f"| {timings.median('whole'):.3f} |"
        )
    return "\n".join(lines)


def _scoring() -> str:
    rows = pool_of("power law", K, D)
    batches = rows.view(K // N, N, D)
    timings = alternate(
        {
            "score": lambda: candidate_ranks(batches),
            "pool gram": lambda: rows.T @ rows,
            "batch gram": lambda: batches[0] @ batches[0].T,
            "policy": partial(run, PoolMax(), rows, N),
        },
        rounds=51,
    )
    return "\n".join(
        [
            f"**Pool policies: scoring {K // N} candidate batches of {N}**\n",
            "| scoring / Gram product of the pool (Z^T Z) | scoring / Gram product of one batch "
            "(Z Z^T) | whole policy / Gram product of the pool |",
            "| --- | --- | --- |",
            f"| {timings.ratio('score', 'pool gram')} | {timings.ratio('score', 'batch gram')} "
            f"| {timings.ratio('policy', 'pool gram')} |",
        ]
    )


def k_centre(rows: Tensor, n: int) -> Tensor:
    """Farthest-first traversal, vectorised."""
    matrix = rows.numpy()
    nearest = matrix @ matrix[0]
    chosen = [0]
    while len(chosen) < n:
        best = int(nearest.argmin())
        chosen.append(best)
        np.maximum(nearest, matrix @ matrix[best], out=nearest)
    return torch.tensor(chosen)


def apricot_redundancy(rows: Tensor, n: int) -> Tensor:
    """Sum-redundancy on squared cosines: the same objective in a general package."""
    from apricot import SumRedundancySelection

    squares = (rows @ rows.T).square().double().numpy()
    selection = SumRedundancySelection(n, metric="precomputed", optimizer="lazy").fit(squares)
    return torch.from_numpy(selection.ranking.astype(np.int64))


def apricot_facility(rows: Tensor, n: int) -> Tensor:
    from apricot import FacilityLocationSelection

    squares = (rows @ rows.T).square().double().numpy()
    selection = FacilityLocationSelection(n, metric="precomputed", optimizer="lazy").fit(squares)
    return torch.from_numpy(selection.ranking.astype(np.int64))


def k_dpp(rows: Tensor, n: int) -> Tensor:
    """An exact k-DPP on squared cosines (the linear kernel has rank d < n)."""
    from dppy.finite_dpps import FiniteDPP

    squares = (rows @ rows.T).square().double().numpy()
    dpp = FiniteDPP("likelihood", L=squares * n / len(rows))  # scaled: else E_n overflows
    return torch.tensor(dpp.sample_exact_k_dpp(size=n, random_state=0))


def faiss_clusters(rows: Tensor, n: int) -> Tensor:
    """k-means with n clusters, the row nearest to each centre."""
    import faiss

    matrix = rows.numpy()
    kmeans = faiss.Kmeans(
        matrix.shape[1], n, niter=10, spherical=True, seed=0, min_points_per_centroid=1
    )
    kmeans.train(matrix)
    index = faiss.IndexFlatIP(matrix.shape[1])
    index.add(matrix)
    _, nearest = index.search(kmeans.centroids, 20)
    chosen: dict[int, None] = {}
    for candidates in nearest:
        chosen.setdefault(int(next((c for c in candidates if int(c) not in chosen), candidates[0])))
    return torch.tensor(list(chosen))


def _peers() -> str:
    lines = [
        f"**Against what one would pick instead** (pool {K} x {D} -> {N}; times relative to our "
        "whole-pool greedy in the same run)\n"
    ]
    for kind in ("isotropic", "power law", "clustered"):
        rows = pool_of(kind, K, D)
        ours: dict[str, Selector] = {
            "Random": Random(), "Pool P1": PoolMax(), "Pool P2": PoolMin(),
            "Pool P3": PoolBalanced(), "Greedy-16": Greedy(16), "Greedy-64": Greedy(64),
            "Greedy-256": Greedy(256), WHOLE: Greedy(None),
            "Greedy, centroid": Greedy(None, score="centroid"),
            "Blend -0.3": Blend(-0.3),
        }  # fmt: skip
        others: dict[str, Callable[[Tensor, int], Tensor]] = {
            "apricot sum-redundancy": apricot_redundancy,
            "apricot facility location": apricot_facility,
            "k-centre (numpy)": k_centre,
            "faiss k-means": faiss_clusters,
            "DPPy k-DPP": k_dpp,
        }
        calls = {name: partial(run, selector, rows, N) for name, selector in ours.items()}
        calls |= {name: partial(find, rows, N) for name, find in others.items()}
        slow = {name: calls.pop(name) for name in ("apricot facility location", "DPPy k-DPP")}
        if kind != "power law":
            del slow["DPPy k-DPP"]  # minutes a call
        timings = alternate(calls, rounds=5)
        chosen = {name: call() for name, call in calls.items()}
        multiple = {name: timings.ratio(name, WHOLE) for name in calls}
        seconds = {name: timings.median(name) for name in calls}
        for name, call in slow.items():  # once, between two runs of ours
            before = _seconds(calls[WHOLE])[0]
            seconds[name], chosen[name] = _seconds(call)
            yardstick = (before + _seconds(calls[WHOLE])[0]) / 2
            multiple[name] = f"{seconds[name] / yardstick:,.0f}x (once)"
        lines += [
            f"\n{kind} pool:\n",
            "| selector | R_eff | Vendi score | smallest distance | time / ours |",
            "| --- | --- | --- | --- | --- |",
        ]
        for name, indices in chosen.items():
            batch = rows[indices]
            lines.append(
                f"| {name} | {participation_ratio(batch):.2f} | {_vendi(batch):.1f} "
                f"| {_smallest_distance(batch):.3f} | {multiple[name]} |"
            )
        if kind == "power law":
            points = {n: (seconds[n], participation_ratio(rows[chosen[n]])) for n in chosen}
    _draw(points)
    lines.append("\n![R_eff against time](images/selection.png)")
    return "\n".join(lines)


def _seconds(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _vendi(rows: Tensor) -> float:
    from vendi_score import vendi

    return float(vendi.score_dual(rows.double().numpy(), normalize=True))


def _smallest_distance(rows: Tensor) -> float:
    distances = torch.cdist(rows.double(), rows.double())
    return float(distances.fill_diagonal_(torch.inf).min())


def _draw(points: dict[str, tuple[float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    peers = ("apricot", "DPPy", "faiss", "k-centre")
    figure, axes = plt.subplots(figsize=(7.5, 4.4), dpi=110)
    for name, (seconds, rank) in points.items():
        ours = not name.startswith(peers)
        axes.scatter(seconds * 1e3, rank, s=42, color="#0072B2" if ours else "#D55E00",
                     marker="o" if ours else "^")  # fmt: skip
        side = "right" if name in ("Greedy, whole pool", "k-centre (numpy)") else "left"
        offset = {"Greedy-64": (4, 7), "Greedy-256": (6, -4), "Pool P1": (6, 5), "Pool P3": (7, -3),
                  "Greedy, centroid": (-4, 8), "Greedy, whole pool": (-6, 3),
                  "k-centre (numpy)": (-6, -4)}.get(name, (6, -11))  # fmt: skip
        axes.annotate(name, (seconds * 1e3, rank), textcoords="offset points", xytext=offset,
                      fontsize=8, ha=side)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 3)
    axes.set_xlabel("time to choose 512 of 5,120 rows, ms (log)")
    axes.set_ylabel("effective rank of the batch (higher: more diverse)")
    axes.set_title(
        "Diversity bought per millisecond (circles: eigenbatch, triangles: others)", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE)


if __name__ == "__main__":
    print(main())
