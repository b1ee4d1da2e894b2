"""The input of a method: two views of a batch."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Two views of b samples: augmented images, or the two sides of a pair.

    `labels` is None where the data has none; only supervised methods and probes use it.
    """

    first: Tensor  # (b, ...)
    second: Tensor  # (b, ...)
    labels: Tensor | None = None  # (b,)
