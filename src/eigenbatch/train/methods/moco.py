"""MoCo v2: queries against keys of a momentum encoder and a queue of earlier keys."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eigenbatch.core.contrast import Contrast, positive_scalar
from eigenbatch.errors import ParameterError
from eigenbatch.train.batch import Batch
from eigenbatch.train.gather import gather_rows
from eigenbatch.train.methods.method import Method, Outcome, unit
from eigenbatch.train.objectives import AllNegatives, queue_loss

Negatives = Callable[[Tensor, Tensor, Tensor], Tensor]


class MoCo(Method):
    """MoCo v2: queries against keys of a momentum encoder and a queue of earlier keys.

    Until the queue is full only what it holds is used; the very first batch has the other keys of
    the batch as negatives, every batch has them with `batch_negatives`. Instead of ShuffleBN, which
    needs several devices, the key encoder may read the batch in `key_groups` random parts: its
    batch norms then use other samples than those of the query encoder.
    """

    queue: Tensor
    fill: Tensor
    cursor: Tensor

    def __init__(
        self, encoder: nn.Module, head: nn.Module, tau: float = 0.2, *,
        queue_size: int = 65_536, dim: int = 128, momentum: float = 0.999,
        negatives: Negatives | None = None, batch_negatives: bool = False, key_groups: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(encoder, head)
        self.tau = positive_scalar(tau, "tau")
        if queue_size < 1 or not 0 <= momentum <= 1:
            raise ParameterError(
                f"queue_size must be >= 1 and momentum in [0, 1], got {queue_size}, {momentum}"
            )
        if key_groups < 1:
            raise ParameterError(f"key_groups must be at least 1, got {key_groups}")
        self.momentum, self.batch_negatives, self.key_groups = momentum, batch_negatives, key_groups
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
            keys = self._keys(second)  # (b, d)
        filled = int(self.fill)
        stored = self.queue[:filled].clone()  # (f, d)
        cosines = [self.negatives(queries, keys, stored)] if filled else []
        if self.batch_negatives or not filled:
            cosines.append((queries @ keys.T).fill_diagonal_(-torch.inf))  # (b, b)
        loss = queue_loss(queries, keys, torch.cat(cosines, 1), self.tau)
        if self.training:
            self._enqueue(gather_rows(keys))
        z, own = queries.detach(), keys

        def contrast() -> Contrast:
            if not filled:
                return Contrast.cross(z, own)
            return Contrast.queued(z, own, stored, batch_negatives=self.batch_negatives)

        return Outcome(loss=loss, embeddings=z, second=own.detach(), contrast=contrast)

    def _keys(self, images: Tensor) -> Tensor:
        """(b, d) unit keys, read in random parts while training."""
        if self.key_groups == 1 or not self.training:
            return unit(self.key_head(self.key_encoder(images)))
        if len(images) < 2 * self.key_groups:
            raise ParameterError(
                f"key_groups={self.key_groups} parts of {len(images)} images: batch norm needs at "
                "least two in each. Lower method.key_groups or raise batches.batch_size"
            )
        order = torch.randperm(len(images), device=images.device)
        parts = images[order].tensor_split(self.key_groups)
        keys = torch.cat([unit(self.key_head(self.key_encoder(part))) for part in parts])
        return keys[order.argsort()]

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
