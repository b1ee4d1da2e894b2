"""What a selector is: a callable from a pool of embeddings to the indices of one batch."""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eigenbatch.core.errors import ParameterError, ShapeError
from eigenbatch.core.precision import check_matrix


class Selector(Protocol):
    """`batch_size` distinct indices into `pool` (k, d), a LongTensor on the pool's device.

    All randomness comes from `generator`; the global one is never seeded or read when it is given.
    """

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor: ...


@runtime_checkable
class Stateful(Protocol):
    """A selector that remembers earlier pools, and can be saved with the training run."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def check_pool(pool: Tensor, batch_size: int) -> None:
    """Raise unless `batch_size` rows can be chosen from `pool`."""
    check_matrix(pool, "pool")
    if batch_size < 1:
        raise ParameterError(f"batch_size must be at least 1, got {batch_size}")
    if len(pool) < batch_size:
        raise ShapeError(
            f"pool has {len(pool)} rows but batch_size is {batch_size}: a selector needs k >= n "
            "(is drop_last=False leaving a short last pool?)"
        )


def shuffled(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A random permutation of `count` indices, drawn where the generator lives; on `device`."""
    source = device if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=source).to(device)
