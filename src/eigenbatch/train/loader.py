"""Batches on the device: the data side of a training loop."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from eigenbatch.batches.sampler import IndexedDataset, SpectralBatchSampler
from eigenbatch.train.batch import Batch


class BatchLoader:
    """Reads samples, moves them to the device and draws their views.

    Args:
        data: samples by id.
        sampler: chooses the ids of every batch.
        views: from collated samples on the device to a `Batch`.
        device: where batches are needed.
        workers: processes that read samples.
        seed: of the worker processes; the global generator is left alone.
    """

    def __init__(
        self,
        data: Dataset[Any],
        sampler: SpectralBatchSampler,
        views: nn.Module,
        *,
        device: torch.device,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        self.batch_sampler, self._views, self._device = sampler, views.to(device), device
        self._data, self._workers = IndexedDataset(data), workers
        self._loader = DataLoader(
            self._data,
            batch_sampler=sampler,
            num_workers=workers,
            generator=torch.Generator().manual_seed(seed),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Batch]]:
        return self._batches(self._loader)

    def everything(self, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
        """All samples in their order, in equal batches of at most so many, and at least two."""
        size = len(self._data)
        count = min(-(-size // batch_size), max(1, size // 2))
        bounds = [i * size // count for i in range(count + 1)]
        parts = [list(range(*ends)) for ends in pairwise(bounds)]
        return self._batches(DataLoader(self._data, batch_sampler=parts, num_workers=self._workers))

    def _batches(self, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Batch]]:
        for ids, sample in loader:
            on_device = tuple(part.to(self._device) for part in sample)
            yield torch.as_tensor(ids), self._views(on_device)
