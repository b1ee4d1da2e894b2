"""The input of a method: two views of a batch."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Two views of b samples: augmented images, or the two sides of a pair.

    Args:
        first: (b, ...) first views.
        second: (b, ...) second views.
        labels: (b,) classes, for supervised methods and probes; None where the data has none.

    Examples:
        >>> import torch
        >>> from eigenbatch.train import Batch
        >>> Batch(torch.zeros(4, 3, 32, 32), torch.zeros(4, 3, 32, 32)).labels is None
        True
    """

    first: Tensor
    second: Tensor
    labels: Tensor | None = None
