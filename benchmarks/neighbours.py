"""Hard batches from the whole cache: what they cost beside the product that they are made of.

Each table is from one run; a ratio is the median over rounds with the middle half in brackets.
"""

import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median, quantiles

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.timing import alternate
from benchmarks.train_step import _update
from eigenbatch import (
    Auto,
    EmbeddingCache,
    Neighbours,
    NoNearDuplicates,
    Random,
    SpectralBatchSampler,
)
from eigenbatch.train.encoders.nets import resnet18

SIZE, DIM, BATCH, SEEDS = 29_000, 128, 256, 4
PART = 16  # of the views of a step are enough to time it


def main() -> str:
    torch.set_num_threads(1)
    tables = [
        whole_cache(),
        others(),
        hardness(),
        large_cache(),
        indexed(),
        simulated(),
        duplicates(),
    ]
    return "\n\n".join(tables)


def rows_of(size: int, dim: int = DIM, *, clusters: int = 500, seed: int = 0) -> Tensor:
    """Clusters of neighbours, as sentence embeddings have them."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, dim, generator=generator)
    kinds = torch.randint(clusters, (size,), generator=generator)
    return normalize(centres[kinds] + torch.randn(size, dim, generator=generator))


def filled(size: int, towers: int = 1, rows: Tensor | None = None) -> EmbeddingCache:
    """Rows with noise of length 0.11: copies of a sample have a cosine of about 0.987."""
    cache = EmbeddingCache(size, DIM, towers=towers)
    for ids in torch.arange(size).split(8192):
        part = rows_of(len(ids), seed=int(ids[0])) if rows is None else rows[ids]
        cache.update(ids, *(part + 0.01 * torch.randn(part.shape) for _ in range(towers)))
    return cache


def drawing(
    cache: EmbeddingCache, selector: object, coverage: str = "free", **options: object
) -> Callable[[], None]:
    """Draws one batch and stores its embeddings, as a training step does."""
    sampler = SpectralBatchSampler(cache, BATCH, selector, coverage=coverage, **options)  # type: ignore[arg-type]

    def endless():  # type: ignore[no-untyped-def]
        for epoch in range(10**6):
            sampler.set_epoch(epoch)
            yield from sampler

    batches = endless()

    def draw() -> None:
        ids = next(batches)
        cache.update(ids, *(cache.get(ids, tower) for tower in range(cache.towers)))

    return draw


def whole_cache() -> str:
    """Time per batch in every coverage, against the bare product of the seeds with the cache."""
    rows = rows_of(SIZE)
    seeds = rows[:SEEDS].clone()
    one, two = filled(SIZE), filled(SIZE, 2)
    functions: dict[str, Callable[[], object]] = {
        "bare product": lambda: rows @ seeds.T,
        "product and top-k": lambda: (rows @ seeds.T).T.contiguous().topk(BATCH // SEEDS),
        "Random, pool 2,560": drawing(one, Random()),
        "Neighbours, free": drawing(one, Neighbours(SEEDS)),
        "Neighbours, epoch": drawing(one, Neighbours(SEEDS), "epoch"),
        "Neighbours, stream": drawing(one, Neighbours(SEEDS), "stream"),
        "Neighbours, free, two towers": drawing(two, Neighbours(SEEDS)),
        "NoNearDuplicates(Neighbours), free": drawing(one, NoNearDuplicates(Neighbours(SEEDS))),
        "Auto, free, two towers": drawing(two, Auto(0.07)),
    }
    timings = alternate(functions, rounds=25, pause=0.01)
    lines = [
        f"Whole cache of {SIZE:,} x {DIM}, batch {BATCH}, {SEEDS} seeds, one thread:\n",
        "| | ms per batch | against the product |\n| --- | --- | --- |",
    ]
    for name in functions:
        ratio = timings.ratio(name, "bare product")
        lines.append(f"| {name} | {1e3 * timings.median(name):.2f} | {ratio} |")
    random, hard = (timings.seconds[n] for n in ("Random, pool 2,560", "Neighbours, free"))
    added = [1e3 * (b - a) for a, b in zip(random, hard, strict=True)]
    low, middle, high = quantiles(added, n=4)
    usual = timings.median("Random, pool 2,560")
    epoch, stream, towers, auto = (
        1e3 * (timings.median(name) - usual)
        for name in ("Neighbours, epoch", "Neighbours, stream", "Neighbours, free, two towers",
                     "Auto, free, two towers")
    )  # fmt: skip
    lines.append(
        f"\nNeighbours add {middle:.1f} ms ({low:.1f}-{high:.1f}) to a batch of `Random` in "
        f'coverage "free", {epoch:.1f} in "epoch", {stream:.1f} in "stream" and {towers:.1f} with '
        f"two towers; `Auto` adds {auto:.1f}. Storing the embeddings of the batch is part of every "
        "line but the products."
    )
    return "\n".join(lines)


def others() -> str:
    """The same neighbours by other libraries, where they are installed."""
    rows, cache = rows_of(SIZE), filled(SIZE)
    draw = drawing(cache, Neighbours(SEEDS))
    functions: dict[str, Callable[[], object]] = {"Neighbours, with sampler": draw}
    missing = []
    share = BATCH // SEEDS
    if find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(1)
        index = faiss.IndexFlatIP(DIM)
        index.add(rows.numpy())
        functions["faiss, flat index, search only"] = lambda: index.search(
            rows[:SEEDS].numpy(), share
        )
    else:
        missing.append("faiss")
    if find_spec("apricot"):
        from apricot import FacilityLocationSelection

        pool = rows[:2560].numpy()
        functions["apricot, facility location, pool 2,560"] = lambda: FacilityLocationSelection(
            BATCH, metric="cosine", optimizer="lazy"
        ).fit(pool)
    else:
        missing.append("apricot")
    batches = dict.fromkeys(functions, 1)
    if find_spec("sentence_transformers"):
        name = f"mine_hard_negatives among {SIZE // 10:,} samples"
        functions[name], batches[name] = mined(rows), SIZE // 10 // BATCH
    else:
        missing.append("sentence-transformers")
    timings = alternate(functions, rounds=5, pause=0.01)
    for name, count in batches.items():
        timings.seconds[name] = [t / count for t in timings.seconds[name]]
    lines = [
        "Other libraries, per batch of the same size. mine_hard_negatives (sentence-transformers) "
        "finds 63 negatives for each sample, embeddings given; its time is divided by the number "
        "of batches that these samples make:\n",
        "| | ms per batch | ratio |\n| --- | --- | --- |",
    ]
    ours = next(iter(functions))
    lines += [
        f"| {name} | {1e3 * timings.median(name):.2f} | {timings.ratio(name, ours)} |"
        for name in functions
    ]
    note = f"\nNot installed here, so not timed: {', '.join(missing)}." if missing else ""
    return "\n".join(lines) + note


def mined(rows: Tensor) -> Callable[[], object]:
    """mine_hard_negatives for a tenth of the samples, as many negatives as a batch has."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    some = rows[: SIZE // 10].numpy()

    class Known(SentenceTransformer):
        """Looks embeddings up: only the search is timed."""

        def __init__(self) -> None:
            super().__init__(modules=[torch.nn.Identity()])

        def encode(self, inputs, **_):  # type: ignore[no-untyped-def]
            return some[[int(text.split()[1]) for text in inputs]]

    texts = [f"text {i}" for i in range(len(some))]
    pairs = Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
    model = Known()

    def mine() -> None:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            mine_hard_negatives(
                pairs, model, num_negatives=BATCH // SEEDS - 1, range_max=BATCH, verbose=False
            )

    return mine


def hardness() -> str:
    """What using every sample costs: how close each sample is to its nearest in the batch."""
    rows = rows_of(SIZE)
    cache = filled(SIZE, rows=rows)
    lines = [
        "Mean cosine of a sample to its 10 nearest in the batch, over one epoch in eighths "
        f"({SIZE:,} samples, batch {BATCH}):\n",
        "| coverage, selector | 1/8 | 2/8 | 3/8 | 4/8 | 5/8 | 6/8 | 7/8 | 8/8 | mean |",
        "| --- |" + " --- |" * 9,
    ]
    for coverage, selector in (
        ("epoch", Random()),
        ("epoch", Neighbours(SEEDS)),
        ("stream", Neighbours(SEEDS)),
        ("free", Neighbours(SEEDS)),
    ):
        sampler = SpectralBatchSampler(cache, BATCH, selector, coverage=coverage)  # type: ignore[arg-type]
        values = []
        for batch in sampler:
            cosines = rows[batch] @ rows[batch].T
            values.append(cosines.fill_diagonal_(-1).topk(10).values.mean())
        parts = [part.mean() for part in torch.stack(values).tensor_split(8)]
        cells = " | ".join(f"{float(part):.2f}" for part in [*parts, torch.stack(values).mean()])
        lines.append(f'| "{coverage}", {type(selector).__name__} | {cells} |')
    return "\n".join(lines)


def large_cache(size: int = 1_280_000) -> str:
    """1.28 million rows: 65,536 random candidates per batch; how near the neighbours are."""
    cache = filled(size)
    step = _update(resnet18("cifar"))
    views = torch.rand(2, BATCH // PART, 3, 32, 32)
    both = {"draw": drawing(cache, Neighbours(SEEDS)), "step": lambda: step(*views)}
    timings = alternate(both, rounds=10, pause=0.01)
    low, middle, high = (1e3 * value for value in quantiles(timings.seconds["draw"], n=4))
    share = timings.median("draw") / (PART * timings.median("step"))
    every = cache.get(torch.arange(size)).float()
    generator = torch.Generator().manual_seed(1)
    found = {"all": [], "65,536": [], "2,560": []}  # type: dict[str, list[float]]
    for seed in torch.randint(size, (8,), generator=generator).tolist():
        cosines = every @ every[seed]
        cosines[seed] = -1
        found["all"].append(cosines.topk(63).values.mean().item())
        for name, count in (("65,536", 65_536), ("2,560", 2_560)):
            some = cosines[torch.randperm(size, generator=generator)[:count]]
            found[name].append(some.topk(63).values.mean().item())
    lines = [
        f"{size:,} x {DIM}: {middle:.0f} ms per batch ({low:.0f}-{high:.0f}), {share:.2%} of a "
        f"ResNet-18 step with {2 * BATCH} views of 32 x 32 (timed on a {PART}th of them). Mean "
        "cosine of a seed to its 63 nearest, by the number of candidates:\n",
        "| candidates | cosine |\n| --- | --- |",
    ]
    lines += [f"| {name} | {median(values):.3f} |" for name, values in found.items()]
    return "\n".join(lines)


def indexed(sizes: tuple[int, ...] = (100_000, 400_000)) -> str:
    """An index by size: what a search costs and finds."""
    if not find_spec("faiss"):
        return "faiss is not installed: no index was timed."
    import faiss

    from eigenbatch.sampling import NeighbourIndex

    faiss.omp_set_num_threads(1)
    lines = [
        "`NeighbourIndex`, one thread, 192 neighbours of each of 4 seeds:\n",
        "| rows | kept | probes | build | search | recall of 63 | rows compared |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in sizes:
        cache = filled(size)
        for probes, kept in ((32, None), (128, None), (128, 32)):
            index = NeighbourIndex(cache, probes=probes, bytes=kept)
            start = time.perf_counter()
            index.build()
            built, lists = time.perf_counter() - start, index._index.nlist
            seeds = torch.randint(size, (20, SEEDS), generator=torch.Generator().manual_seed(2))
            seconds = []
            for ids in seeds:
                start = time.perf_counter()
                index.neighbours(ids, 3 * BATCH // SEEDS)
                seconds.append(time.perf_counter() - start)
            lines.append(
                f"| {size:,} | {'half precision' if kept is None else f'{kept} bytes'} | {probes} "
                f"| {built:.0f} s | {1e3 * median(seconds):.1f} ms | {index.recall():.2f} "
                f"| {lists + probes * size // lists:,} |"
            )
    return "\n".join(lines)


def simulated(size: int = 10**8, probes: int = 32, batches: int = 4) -> str:
    """The search in an index of 10^8 rows, of which only the lists that are looked into exist.

    A search reads all centres and `probes` lists. So an index with as many centres, whose lists
    near the queries are filled to the length they would have, costs what the full one costs.
    """
    if not find_spec("faiss"):
        return ""
    import faiss

    faiss.omp_set_num_threads(1)
    lists = 4 * round(size**0.5)
    length = size // lists
    centres = rows_of(lists)  # (lists, d)
    queries = rows_of(batches * SEEDS, seed=1)
    lines = [
        f"Simulated, {size:.0e} x {DIM}: {lists:,} lists of {length:,} rows, {probes} probes, one "
        "thread:\n",
        "| kept | memory | search for 4 seeds |",
        "| --- | --- | --- |",
    ]
    for kind, name, width in (("SQfp16", "half precision", 2 * DIM), ("PQ32", "32 bytes", 32)):
        index = faiss.index_factory(DIM, f"IVF{lists},{kind}", faiss.METRIC_INNER_PRODUCT)
        index.nprobe = probes
        index.quantizer.add(centres.numpy())
        index.train(rows_of(20_000, seed=2).numpy())  # the codes; the centres are given
        _, near = index.quantizer.search(queries.numpy(), probes)
        for number in set(near.flatten().tolist()):
            part = normalize(centres[number] + 0.3 * torch.randn(length, DIM) / DIM**0.5).numpy()
            ids, where = (torch.full((length,), number).numpy() for _ in range(2))
            pointers = [faiss.swig_ptr(array) for array in (part, ids, where)]
            index.add_core(length, *pointers)
        seconds = []
        for four in queries.split(SEEDS):
            start = time.perf_counter()
            index.search(four.numpy(), 3 * BATCH // SEEDS)
            seconds.append(time.perf_counter() - start)
        memory = size * (width + 8) / 1e9
        lines.append(f"| {name} | {memory:.0f} GB | {1e3 * median(seconds):.0f} ms |")
    return "\n".join(lines)


def duplicates() -> str:
    """The guard on data where every sample stands three times."""
    rows = rows_of(SIZE // 3).repeat(3, 1)
    cache = filled(len(rows), rows=rows)
    lines = [
        "Every sample three times in the data; distinct samples in a batch of "
        f"{BATCH}, and ms per batch:\n",
        "| | distinct | ms |\n| --- | --- | --- |",
    ]
    for name, selector in (
        ("Neighbours", Neighbours(SEEDS)),
        ("NoNearDuplicates(Neighbours)", NoNearDuplicates(Neighbours(SEEDS))),
    ):
        sampler = SpectralBatchSampler(cache, BATCH, selector, coverage="free")
        seconds, distinct = [], []
        start = time.perf_counter()
        for number, batch in enumerate(sampler):
            seconds.append(time.perf_counter() - start)
            distinct.append(len({sample % (SIZE // 3) for sample in batch}))
            if number == 25:
                break
            start = time.perf_counter()
        lines.append(f"| {name} | {median(distinct):.0f} | {1e3 * median(seconds):.1f} |")
    return "\n".join(lines)
