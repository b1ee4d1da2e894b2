"""How batches are made: size, selector, pool and coverage."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from eigenbatch.errors import ParameterError
from eigenbatch.selectors.names import check_selector, selector_named
from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from eigenbatch.sampling.cache import EmbeddingCache
    from eigenbatch.sampling.sampler import SpectralBatchSampler


@dataclass(frozen=True, kw_only=True)
class BatchesConfig(Config):
    """Batches chosen by a selector from cached embeddings.

    Args:
        selector: a name as in `eigenbatch train --help`, e.g. greedy-64.
        batch_size: samples per batch, over all processes.
        pool_size: candidates per batch; None: ten batches.
        coverage: "epoch" uses every sample once per epoch, "stream" without borders between
            epochs, "free" draws a fresh pool for every batch.
    """

    selector: str = "random"
    batch_size: Annotated[int, Range(2, 2**20)] = 128
    pool_size: Annotated[int, Range(2, 2**31 - 1)] | None = None
    coverage: Literal["epoch", "stream", "free"] = "epoch"

    def check(self) -> None:
        """The selector must be known and the pool hold a batch."""
        check_selector(self.selector)
        if self.pool_size is not None and self.pool_size < self.batch_size:
            raise ParameterError(
                f"pool_size must be at least batch_size, got {self.pool_size} < {self.batch_size}"
            )

    def build(
        self, cache: "EmbeddingCache", *, seed: int, num_replicas: int, rank: int
    ) -> "SpectralBatchSampler":
        """The batch sampler over the cache's samples."""
        from eigenbatch.sampling.sampler import SpectralBatchSampler

        return SpectralBatchSampler(
            cache,
            self.batch_size,
            selector_named(self.selector),
            pool_size=self.pool_size,
            coverage=self.coverage,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
        )
