"""MoCo v2: queries against keys of a momentum encoder and a queue of earlier keys."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.precision import positive_scalar
from eigenbatch.errors import ParameterError
from eigenbatch.train.batch import Batch
from eigenbatch.train.gather import gather_rows
from eigenbatch.train.methods.method import Method, Outcome, unit
from eigenbatch.train.objectives import AllNegatives, queue_loss

Negatives = Callable[[Tensor, Tensor, Tensor], Tensor]


class MoCo(Method):
    """MoCo v2: queries against keys of a momentum encoder and a queue of earlier keys.

    Until the queue is full only what it holds is used; the very first batch has the other keys of
    the batch as negatives. Batch norm is not shuffled across processes: give encoders per-process
    statistics (torch's default) or SyncBatchNorm, as published MoCo v2 code on one device does.
    """

    queue: Tensor
    fill: Tensor
    cursor: Tensor

    def __init__(
        self, encoder: nn.Module, head: nn.Module, tau: float = 0.2, *,
        queue_size: int = 65_536, dim: int = 128, momentum: float = 0.999,
        negatives: Negatives | None = None,
    ) -> None:  # fmt: skip
        super().__init__(encoder, head)
        self.tau = positive_scalar(tau, "tau")
        if queue_size < 1 or not 0 <= momentum <= 1:
            raise ParameterError(
                f"queue_size must be >= 1 and momentum in [0, 1], got {queue_size}, {momentum}"
            )
        self.momentum = momentum
        self.negatives: Negatives = negatives or AllNegatives()
        self.key_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.key_head = copy.deepcopy(head).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(queue_size, dim))
        self.register_buffer("fill", torch.zeros((), dtype=torch.long))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def forward(self, batch: Batch) -> Outcome:
        """Loss of the first views as queries against the keys of the second."""
        first, second, _ = batch
        queries = unit(self.head(self.encoder(first)))  # (b, d)
        with torch.no_grad():
            if self.training:
                self._follow()
            keys = unit(self.key_head(self.key_encoder(second)))  # (b, d)
        filled = int(self.fill)
        if filled:
            stored = self.queue[:filled].clone()  # (f, d)
            loss = queue_loss(queries, keys, self.negatives(queries, keys, stored), self.tau)
        else:
            stored = keys
            others = (queries @ keys.T).fill_diagonal_(-torch.inf)  # (b, b)
            loss = queue_loss(queries, keys, others, self.tau)
        if self.training:
            self._enqueue(gather_rows(keys))
        z, own = queries.detach(), keys

        def contrast() -> Contrast:
            return Contrast.queued(z, own, stored) if filled else Contrast.cross(z, own)

        return Outcome(loss=loss, embeddings=z, second=own.detach(), contrast=contrast)

    def _follow(self) -> None:
        """Move the key encoder a little towards the query encoder."""
        for key, query in ((self.key_encoder, self.encoder), (self.key_head, self.head)):
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.lerp_(fast.detach(), 1 - self.momentum)

    def _enqueue(self, keys: Tensor) -> None:
        """Overwrite the oldest keys of the ring."""
        size = len(self.queue)
        keys = keys[-size:]
        places = (self.cursor + torch.arange(len(keys), device=keys.device)) % size
        self.queue[places] = keys
        self.cursor.copy_((self.cursor + len(keys)) % size)
        self.fill.copy_((self.fill + len(keys)).clamp(max=size))
