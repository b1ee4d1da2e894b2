"""Approximate neighbours in caches that are too large to search as a whole; needs faiss."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenbatch.checks import check_generator, check_type, ids_tensor, whole
from eigenbatch.errors import ParameterError, RowError
from eigenbatch.missing import require
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.coverage import Candidates, FreshPools

PER_LIST = 39
"""Rows that k-means sees for each list; faiss warns below this number."""

CODES = 256
"""Values of a byte: product quantisation needs as many rows."""

BLOCK = 65_536
"""Rows that are read from the cache at a time."""


class NeighbourIndex:
    """An inverted-file index of a cache: a query is compared with the rows of a few lists only.

    K-means sorts the known rows into `lists` lists. A search compares the query with all centres
    and with the rows of the `probes` nearest lists: lists + probes * size / lists products instead
    of `size`. The sampler rebuilds the index before an epoch, because embeddings move; neighbours
    that it proposes are compared again by their present embeddings before one is chosen.

    A resumed run builds the index from the cache at the time of the resume, so that its later
    batches differ from those of an uninterrupted run.

    Args:
        cache: the rows; with two towers a neighbour is a hard negative in the mean of both
            directions, as for `Neighbours`.
        lists: number of lists; None: four times the square root of the number of rows.
        probes: lists that a search looks into. More find more of the true neighbours, see `recall`.
        bytes: None keeps every row in two bytes a number; a number keeps so many bytes a row by
            product quantisation, for 10^8 rows. It must divide the length of a row.
        every: epochs, or other passes over the data, between two builds.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Neighbours, SpectralBatchSampler
        >>> from eigenbatch.sampling import NeighbourIndex
        >>> cache = EmbeddingCache(2000, dim=8)
        >>> index = NeighbourIndex(cache, lists=10, probes=4)
        >>> sampler = SpectralBatchSampler(cache, 50, Neighbours(), coverage="free", index=index)
        >>> cache.update(torch.arange(2000), torch.randn(2000, 8))
        >>> index.build()
        >>> index.recall(count=10) > 0.5
        True
    """

    def __init__(
        self,
        cache: EmbeddingCache,
        *,
        lists: int | None = None,
        probes: int = 32,
        bytes: int | None = None,
        every: int = 1,
    ) -> None:
        require("faiss")
        check_type(cache, EmbeddingCache, "cache")
        self.cache = cache
        self.lists = None if lists is None else whole(lists, "lists", least=1)
        self.probes = whole(probes, "probes", least=1)
        self.every = whole(every, "every", least=1)
        self.bytes = None if bytes is None else whole(bytes, "bytes", least=1)
        if self.bytes is not None and (cache.towers * cache.dim) % self.bytes:
            raise ParameterError(
                f"bytes must divide the length of a row, {cache.towers * cache.dim}, got {bytes}"
            )
        self._index: Any = None
        self._passes = 0  # over the data, since the index was built

    @property
    def ready(self) -> bool:
        """Whether there is something to search in."""
        return self._index is not None

    def refresh(self) -> None:
        """Build before a pass over the data, if it is time and enough rows are known."""
        due = not self.ready or self._passes >= self.every
        if due and int(self.cache.filled.sum()) >= self._least:
            self.build()
        self._passes += 1

    @property
    def _least(self) -> int:
        """Known rows without which faiss cannot train an index."""
        return PER_LIST if self.bytes is None else CODES

    def build(self) -> None:
        """Sort all known rows of the cache into lists, as they are now."""
        import faiss

        known = self.cache.filled.nonzero().squeeze(1).cpu()
        if len(known) < self._least:
            raise ParameterError(
                f"an index needs at least {self._least} known rows, the cache has {len(known)}: "
                "fill it first, e.g. with cache.fill(embed, loader)"
            )
        most = max(1, len(known) // PER_LIST)
        lists = min(self.lists or math.ceil(4 * math.sqrt(len(known))), most)
        kind = "SQfp16" if self.bytes is None else f"PQ{self.bytes}"
        index: Any = faiss.index_factory(
            self.cache.towers * self.cache.dim, f"IVF{lists},{kind}", faiss.METRIC_INNER_PRODUCT
        )
        index.nprobe = min(self.probes, lists)
        chosen = np.random.default_rng(0).choice(
            len(known), min(len(known), 2 * PER_LIST * max(lists, CODES)), replace=False
        )
        index.train(self._rows(known[torch.from_numpy(np.sort(chosen))]))
        for part in torch.split(known, BLOCK):
            index.add_with_ids(self._rows(part), part.numpy())
        self._index, self._passes = index, 0

    def neighbours(self, ids: Tensor, count: int) -> Tensor:
        """(s, count) ids of the nearest samples of each of some known ones; -1 where none is left.

        A sample is not its own neighbour.
        """
        ids, count = ids_tensor(ids), whole(count, "count", least=1)
        if not self.ready:
            raise ParameterError("the index is empty: call build() once the cache has rows")
        _, found = self._index.search(self._queries(ids), count + 1)
        near = torch.from_numpy(found)
        near[near == ids[:, None]] = -1
        order = (near < 0).to(torch.int8).argsort(dim=1, stable=True)  # the nearest first, then -1
        return near.gather(1, order)[:, :count]

    def recall(
        self, *, queries: int = 100, count: int = 63, generator: torch.Generator | None = None
    ) -> float:
        """Share of the true `count` nearest samples that a search finds, for random queries.

        Args:
            queries: random known samples that are searched for.
            count: neighbours of each.
            generator: of the queries; one with seed 0 by default.
        """
        whole(queries, "queries", least=1)
        check_generator(generator)
        generator = generator or torch.Generator().manual_seed(0)
        known = self.cache.filled.nonzero().squeeze(1).cpu()
        chosen = known[torch.randperm(len(known), generator=generator)[:queries]]
        found = self.neighbours(chosen, count)
        wanted = torch.from_numpy(self._queries(chosen))
        best = torch.full((len(chosen), count), -torch.inf)
        ids = torch.full((len(chosen), count), -1)
        for part in torch.split(known, BLOCK):
            similarity = wanted @ torch.from_numpy(self._rows(part)).T
            similarity[chosen[:, None] == part] = -torch.inf
            both = torch.cat([best, similarity], dim=1)
            best, places = both.topk(count, dim=1)
            ids = torch.cat([ids, part.expand(len(chosen), -1)], dim=1).gather(1, places)
        hits = (found[:, :, None] == ids[:, None, :]).any(1)
        return hits.double().mean().item()

    def _queries(self, ids: Tensor) -> np.ndarray[Any, Any]:
        """Rows of known samples with both towers exchanged: keys are compared with anchors."""
        if (unknown := ids[self.cache.age(ids).cpu() < 0]).numel():
            raise RowError(f"id {int(unknown[0])} was never updated: it has no neighbours yet")
        rows = self._rows(ids).reshape(len(ids), self.cache.towers, -1)
        return np.ascontiguousarray(rows[:, ::-1]).reshape(len(ids), -1)

    def _rows(self, ids: Tensor) -> np.ndarray[Any, Any]:
        return self.cache.unit_rows(ids).cpu().numpy()


class IndexedPools(FreshPools):
    """Random candidates, of which the first are seeds, and the seeds' neighbours by an index."""

    def __init__(self, *arguments: Any, index: NeighbourIndex, seeds: int, epoch: int) -> None:
        super().__init__(*arguments, epoch=epoch)
        self._index, self._seeds = index, seeds

    def candidates(self, batch: int, batch_size: int, random_pool: int | None = None) -> Candidates:
        """As many neighbours of the seeds as a batch has, three times over, then random ids."""
        pool = super().candidates(batch, batch_size, random_pool).ids
        if random_pool is not None or not self._index.ready:
            return Candidates(ids=pool, due=0)
        seeds = pool[: min(self._seeds, batch_size)]
        seeds = seeds[self._index.cache.age(seeds).cpu() >= 0]
        if not len(seeds):
            return Candidates(ids=pool, due=0)
        near = self._index.neighbours(seeds, 3 * -(-batch_size // len(seeds))).flatten()
        ids = torch.cat([seeds, near[near >= 0], pool]).tolist()
        return Candidates(ids=torch.tensor(list(dict.fromkeys(ids))), due=0, seeds=len(seeds))


def check_index(
    index: NeighbourIndex | None, cache: EmbeddingCache, coverage: str, seeds: int | None
) -> NeighbourIndex | None:
    """The index; raises if a sampler with this coverage and selector cannot use it."""
    check_type(index, (NeighbourIndex, type(None)), "index")
    if index is None:
        return None
    if index.cache is not cache:
        raise ParameterError("index was made for another cache: NeighbourIndex(cache)")
    if coverage != "free":
        raise ParameterError(
            f'index needs coverage="free", got {coverage!r}: it proposes samples of the whole data'
        )
    if seeds is None:
        raise ParameterError("index needs a selector with seeds: Neighbours or Auto")
    return index
