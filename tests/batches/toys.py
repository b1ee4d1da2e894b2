"""Small caches, selectors and datasets shared by the tests of batches."""

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import Dataset

from eigenbatch import EmbeddingCache


def random_rows(count: int, dim: int = 8, *, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def two_towers(count: int, dim: int = 8, *, noise: float = 0.3, seed: int = 0) -> Tensor:
    """(count, 2, dim) unit rows whose towers agree but for some noise."""
    z = random_rows(count, dim, seed=seed)
    other = z + noise * random_rows(count, dim, seed=seed + 1)
    return normalize(torch.stack([z, other], 1), dim=2)


def filled_cache(size: int, dim: int = 8, *, towers: int = 1, seed: int = 0) -> EmbeddingCache:
    cache = EmbeddingCache(size, dim, towers=towers)
    rows = two_towers(size, dim, seed=seed)
    cache.update(torch.arange(size), *rows.unbind(1)[:towers])
    return cache


class LeastSimilar:
    """Written apart from the library: each pick has the least squared cosine so far."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        rows = normalize(pool.double(), dim=1)
        score = torch.zeros(len(rows), dtype=torch.float64)
        picks = [int(torch.randint(len(rows), (1,), generator=generator))]
        for _ in range(batch_size - 1):
            score += (rows @ rows[picks[-1]]).square()
            score[picks[-1]] = torch.inf
            picks.append(int(score.argmin()))
        return torch.tensor(picks)


class Newest:
    """The last rows of the pool: those that are there longest are never chosen."""

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        return torch.arange(len(pool) - batch_size, len(pool))


class Numbers(Dataset[float]):
    """Item i is i / 2."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> float:
        return index / 2
