"""Batches on the device: the data side of a training loop."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from eigenbatch.sampling.indexed import IndexedDataset
from eigenbatch.sampling.sampler import SpectralBatchSampler
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

    def once(self, ids: list[int], batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
        """The given samples in their order, in equal batches of at most so many."""
        count = min(-(-len(ids) // batch_size), max(1, len(ids) // 2))  # and of at least two
        parts = [ids[i * len(ids) // count : (i + 1) * len(ids) // count] for i in range(count)]
        return self._batches(DataLoader(self._data, batch_sampler=parts, num_workers=self._workers))

    def _batches(self, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Batch]]:
        for ids, sample in loader:
            on_device = tuple(part.to(self._device) for part in sample)
            yield torch.as_tensor(ids), self._views(on_device)
