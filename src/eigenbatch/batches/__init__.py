"""Which samples share a batch: an epoch planned at once from cached embeddings."""

from eigenbatch.batches.auto import Auto
from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.greedy import BatchBuilder, Blend, Greedy
from eigenbatch.batches.neighbours import Neighbours, miss_of
from eigenbatch.batches.plan import Plan
from eigenbatch.batches.planner import InTurn, Planner, Random, Selector, select
from eigenbatch.batches.pools import PoolBalanced, PoolMax, PoolMin, candidate_ranks
from eigenbatch.batches.sampler import IndexedDataset, SpectralBatchSampler
from eigenbatch.batches.schedule import (
    AfterBatches,
    EveryNth,
    IsotropyBelow,
    OnLossPlateau,
    RankSteady,
    Schedule,
)

__all__ = [
    "AfterBatches", "Auto", "BatchBuilder", "Blend", "EmbeddingCache", "EveryNth", "Greedy",
    "InTurn", "IndexedDataset", "IsotropyBelow", "Neighbours", "OnLossPlateau", "Plan", "Planner",
    "PoolBalanced", "PoolMax", "PoolMin", "Random", "RankSteady", "Schedule", "Selector",
    "SpectralBatchSampler", "candidate_ranks", "miss_of", "select",
]  # fmt: skip
