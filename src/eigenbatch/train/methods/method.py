"""What a method is: from a batch to a loss and its embeddings."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenbatch.core.contrast import Contrast, working_dtype
from eigenbatch.train.batch import Batch


class Outcome(NamedTuple):
    """What one batch gave: the loss to descend, and detached embeddings to look at."""

    loss: Tensor  # ()
    embeddings: Tensor  # (b, d) of the first view
    contrast: Callable[[], Contrast]  # made only when asked for
    second: Tensor | None = None  # (b, d) of the other view or side


class Method(nn.Module):
    """An encoder with a head; `encoder` is what training is for, `tau` the temperature now."""

    tau: float

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, batch: Batch) -> Outcome:
        """Loss and embeddings of a batch."""
        raise AssertionError("a method defines its forward")

    def embed(self, inputs: Tensor, side: int = 0) -> Tensor:
        """(b, d) unit embeddings; `side` chooses the tower of a method that has two."""
        return unit(self.head(self.encoder(inputs)))


def unit(rows: Tensor) -> Tensor:
    """Rows on the sphere, at least in float32 whatever the precision of the network."""
    return normalize(rows.to(working_dtype(rows)))
