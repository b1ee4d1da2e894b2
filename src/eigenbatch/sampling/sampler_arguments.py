"""Whether the numbers given to a sampler fit together."""

from typing import Protocol

from eigenbatch.checks import real, whole
from eigenbatch.errors import ParameterError, ShapeError

POOL_BATCHES = 10  # the paper's pool


def check_numbers(
    size: int,
    batch_size: int,
    pool_size: int | None,
    num_replicas: int | None,
    rank: int | None,
    unknown_share: float | None,
) -> None:
    """Raise unless a sampler over `size` samples can be made of these."""
    sizes = {"pool_size": pool_size, "num_replicas": num_replicas, "rank": rank}
    for name, value in sizes.items():
        if value is not None:
            whole(value, name)
    if batch_size > size:
        raise ShapeError(
            f"batch_size is {batch_size} but the cache has {size} samples: make batches of at most "
            f"{size}, or EmbeddingCache(len(dataset), ...)"
        )
    if pool_size is not None and pool_size < batch_size:
        raise ShapeError(
            f"pool_size is {pool_size} but batch_size is {batch_size}: a batch is chosen from "
            f"a pool at least as large (None: {POOL_BATCHES} batches)"
        )
    if (num_replicas is None) != (rank is None):
        raise ParameterError(
            f"give both num_replicas and rank or neither, got {num_replicas} and {rank}"
        )
    if unknown_share is not None and not 0 < real(unknown_share, "unknown_share") <= 1:
        raise ParameterError(f"unknown_share must lie in (0, 1], got {unknown_share}")


class Sized(Protocol):
    """What is needed of a cache."""

    size: int


class Sharded(Protocol):
    """What is needed of a sampler."""

    batch_size: int
    drop_last: bool

    @property
    def coverage(self) -> str:
        """How the data is covered."""
        ...

    @property
    def cache(self) -> Sized:
        """Of which the samples are drawn."""
        ...


def check_shards(sampler: Sharded, rank: int, replicas: int) -> None:
    """Raise unless every batch can be divided among the processes."""
    if not 0 <= rank < replicas:
        raise ParameterError(f"rank must be in 0 ... {replicas - 1}, got {rank}")
    if sampler.batch_size % replicas:
        raise ShapeError(
            f"batch_size is {sampler.batch_size} for {replicas} processes: it is the global "
            "batch and must be a multiple of their number"
        )
    rest = sampler.cache.size % sampler.batch_size
    if sampler.coverage == "epoch" and not sampler.drop_last and 0 < rest < replicas:
        raise ShapeError(
            f"the last batch has {rest} samples for {replicas} processes: use drop_last=True"
        )
