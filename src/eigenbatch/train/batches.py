"""How batches are made: size, selector, pool and coverage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from eigenbatch.errors import ParameterError
from eigenbatch.selectors.names import check_selector, selector_named
from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from eigenbatch.core.contrast import Layout
    from eigenbatch.sampling.cache import EmbeddingCache
    from eigenbatch.sampling.sampler import SpectralBatchSampler


@dataclass(frozen=True, kw_only=True)
class BatchesConfig(Config):
    """Batches chosen by a selector from cached embeddings.

    Args:
        selector: a name as in `eigenbatch train --help`, e.g. greedy-64.
        batch_size: samples per batch, over all processes.
        pool_size: candidates per batch, at most all the data; None: ten batches, for neighbours
            65,536 samples, in coverage "free" all of up to 262,144.
        coverage: "epoch" uses every sample once per epoch, "stream" without borders between
            epochs, "free" draws a fresh pool for every batch.
        unknown_share: how much of a batch may be samples without an embedding, while there are
            enough others to select from; None: half of it for neighbours and auto, else all.
        guard: cosine above which two samples are near-duplicates and not put into one batch.
        fill_cache: embed all samples that have no embedding yet, once, after `fill_step` steps:
            otherwise coverage "epoch" selects nothing in the first epoch.
        fill_step: steps before that; auto waits then until random batches of unseen samples are
            easy. An untrained encoder knows little about its samples. 0, for an encoder that is
            not: before the first step, outside of the training time.
    """

    selector: str = "random"
    batch_size: Annotated[int, Range(2, 2**20)] = 128
    pool_size: Annotated[int, Range(2, 2**31 - 1)] | None = None
    coverage: Literal["epoch", "stream", "free"] = "epoch"
    unknown_share: Annotated[float, Range(0, 1, open_low=True)] | None = None
    guard: Annotated[float, Range(-1, 1, open_high=True)] | None = None
    fill_cache: bool = False
    fill_step: Annotated[int, Range(0, 2**31 - 1)] = 0

    def check(self) -> None:
        """The selector must be known and the pool hold a batch."""
        check_selector(self.selector)
        if self.pool_size is not None and self.pool_size < self.batch_size:
            raise ParameterError(
                f"pool_size must be at least batch_size, got {self.pool_size} < {self.batch_size}"
            )

    @property
    def towers(self) -> int:
        """Embeddings of a sample that the selector needs."""
        return 2 if self.selector.partition("-")[0] == "auto" else 1

    def build(
        self,
        cache: "EmbeddingCache",
        *,
        seed: int,
        num_replicas: int,
        rank: int,
        tau: Callable[[], float],
        layout: "Layout",
    ) -> "SpectralBatchSampler":
        """The batch sampler over the cache's samples, for a loss of this temperature and layout."""
        from eigenbatch.sampling.sampler import SpectralBatchSampler
        from eigenbatch.selectors.auto import Auto
        from eigenbatch.selectors.duplicates import NoNearDuplicates

        selector = selector_named(self.selector)
        if isinstance(selector, Auto):
            selector.tau, selector.layout = tau, layout
        if self.guard is not None:
            selector = NoNearDuplicates(selector, self.guard, shortfall="fill")
        return SpectralBatchSampler(
            cache,
            self.batch_size,
            selector,
            pool_size=self.pool_size,
            coverage=self.coverage,
            unknown_share=self.unknown_share,
            seed=seed,
            num_replicas=num_replicas,
            rank=rank,
        )
