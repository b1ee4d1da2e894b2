"""Small caches, selectors and datasets shared by the tests of the sampling layer."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from eigenbatch.sampling.cache import EmbeddingCache


def random_rows(count: int, dim: int = 8, *, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def filled_cache(size: int, dim: int = 8, *, seed: int = 0) -> EmbeddingCache:
    cache = EmbeddingCache(size, dim)
    cache.update(torch.arange(size), random_rows(size, dim, seed=seed))
    return cache


class Newest:
    """The last rows of the pool: whoever waits longest is never chosen."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return torch.arange(len(pool) - batch_size, len(pool))


class LeastSimilar:
    """Written apart from `eigenbatch.select`: each pick has the least squared cosine so far."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        rows = torch.nn.functional.normalize(pool.double(), dim=1)
        score = torch.zeros(len(rows), dtype=torch.float64)
        picks = [int(torch.randint(len(rows), (1,), generator=generator))]
        for _ in range(batch_size - 1):
            score += (rows @ rows[picks[-1]]).square()
            score[picks[-1]] = torch.inf
            picks.append(int(score.argmin()))
        return torch.tensor(picks)


class Alternating:
    """The first rows of the pool, then the last, by turns: a selector with a memory."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        self.calls += 1
        start = 0 if self.calls % 2 else len(pool) - batch_size
        return torch.arange(start, start + batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class Recording:
    """Random rows, and a note of every pool seen."""

    def __init__(self) -> None:
        self.pools: list[Tensor] = []

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        self.pools.append(pool)
        return torch.randperm(len(pool), generator=generator)[:batch_size]


class Numbers(Dataset[float]):
    """Item i is i / 2."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> float:
        return index / 2
