"""Sample ids for the training step."""

from collections.abc import Sequence
from typing import Any, TypeVar

from torch.utils.data import Dataset

from eigenbatch.checks import described
from eigenbatch.errors import ArgumentTypeError

T_co = TypeVar("T_co", covariant=True)


class IndexedDataset(Dataset[tuple[int, T_co]]):
    """Any map-style dataset, whose items become `(index, item)`.

    The index is the id under which the training step updates the cache.

    Args:
        dataset: anything with `__getitem__` and `__len__`.

    Examples:
        >>> from eigenbatch import IndexedDataset
        >>> IndexedDataset(["cat", "dog"])[1]
        (1, 'dog')
    """

    def __init__(self, dataset: Dataset[T_co]) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise ArgumentTypeError(
                "dataset must be a map-style dataset, with __getitem__ and __len__, got "
                f"{described(dataset)}"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[int, T_co]:
        self._check(index)
        return index, self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, T_co]]:
        """A whole batch, by the dataset's own batched read where it has one."""
        for index in indices:
            self._check(index)
        read: Any = getattr(self.dataset, "__getitems__", None)
        items = read(indices) if read else [self.dataset[index] for index in indices]
        return list(zip(indices, items, strict=True))

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(
                f"sample {index} was asked for but the dataset has {len(self)}: an EmbeddingCache "
                "and its sampler need size=len(dataset)"
            )
