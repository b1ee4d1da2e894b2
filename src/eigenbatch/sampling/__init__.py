"""The stateful shell around selectors: embedding cache and batch sampler."""

from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.errors import CacheFileError, StateError
from eigenbatch.sampling.indexed import IndexedDataset
from eigenbatch.sampling.neighbour_index import NeighbourIndex
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.sampling.selection import Selection

__all__ = [
    "CacheFileError",
    "EmbeddingCache",
    "IndexedDataset",
    "NeighbourIndex",
    "Selection",
    "SpectralBatchSampler",
    "StateError",
]
