"""SimCLR, SupCon and MoCo v2: from two views of a batch to a loss and its embeddings.

A method is an `nn.Module` whose forward takes both views and the labels and returns an `Outcome`.
The loop that calls it knows nothing else about it.
"""

import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.precision import positive_scalar, working_dtype
from eigenbatch.core.whitening import whiten
from eigenbatch.errors import ParameterError
from eigenbatch.train.gather import gather_rows, world
from eigenbatch.train.objectives import AllNegatives, nt_xent, queue_loss, supervised_contrastive

Transform = Callable[[Tensor], Tensor]
Negatives = Callable[[Tensor, Tensor, Tensor], Tensor]


class Outcome(NamedTuple):
    """What one batch gave: the loss to descend, and detached embeddings to look at."""

    loss: Tensor  # ()
    embeddings: Tensor  # (b, d) of the first view
    contrast: Callable[[], Contrast]  # made only when asked for


class Method(nn.Module):
    """An encoder with a head at temperature tau; `encoder` is what training is for."""

    def __init__(self, encoder: nn.Module, head: nn.Module, tau: float) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.tau = positive_scalar(tau, "tau")

    def forward(self, first: Tensor, second: Tensor, labels: Tensor) -> Outcome:
        """Loss and embeddings of two views (b, c, h, w)."""
        raise AssertionError("a method defines its forward")

    def trained(self) -> Iterator[nn.Module]:
        """The modules an optimiser should know."""
        yield self.encoder
        yield self.head


class SimCLR(Method):
    """NT-Xent over both views of the global batch.

    transform: applied to all 2B projections before the loss, e.g. `whiten` or `Alternating`.
    """

    def __init__(
        self, encoder: nn.Module, head: nn.Module, tau: float = 0.1, *,
        transform: Transform | None = None,
    ) -> None:  # fmt: skip
        super().__init__(encoder, head, tau)
        self.transform = transform

    def forward(self, first: Tensor, second: Tensor, labels: Tensor) -> Outcome:
        """Loss of this process's 2b anchors against the 2B keys of all."""
        rows = self.head(self.encoder(torch.cat([first, second])))  # (2b, d)
        keys = gather_rows(_unit(rows))  # (2B, d)
        if self.transform is not None:
            keys = self.transform(keys)
        itself = _own_rows(len(rows), keys.device)  # (2b,) index into keys
        anchors = keys[itself]
        positive = itself.view(2, -1).flip(0).flatten()
        loss = self._loss(anchors, keys, itself, positive, labels)
        own = anchors.detach()[: len(first)]
        both = keys.detach().reshape(-1, 2, len(first), keys.shape[1])  # (processes, view, b, d)

        def contrast() -> Contrast:
            z1, z2 = both.unbind(1)
            return Contrast.paired(z1.flatten(0, 1), z2.flatten(0, 1))

        return Outcome(loss=loss, embeddings=own, contrast=contrast)

    def _loss(
        self, anchors: Tensor, keys: Tensor, itself: Tensor, positive: Tensor, labels: Tensor
    ) -> Tensor:
        return nt_xent(anchors, keys, itself, positive, self.tau)


class SupCon(SimCLR):
    """Supervised contrastive learning, an oracle: all views of one label are positives."""

    def _loss(
        self, anchors: Tensor, keys: Tensor, itself: Tensor, positive: Tensor, labels: Tensor
    ) -> Tensor:
        both = labels.repeat(2)  # (2b,)
        everyone = gather_rows(both)  # (2B,)
        return supervised_contrastive(anchors, keys, itself, both, everyone, self.tau)


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
        super().__init__(encoder, head, tau)
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

    def forward(self, first: Tensor, second: Tensor, labels: Tensor) -> Outcome:
        """Loss of the first views as queries against the keys of the second."""
        queries = _unit(self.head(self.encoder(first)))  # (b, d)
        with torch.no_grad():
            if self.training:
                self._follow()
            keys = _unit(self.key_head(self.key_encoder(second)))  # (b, d)
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

        return Outcome(loss=loss, embeddings=z, contrast=contrast)

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


class Alternating(nn.Module):
    """Raw for `period` batches, whitened for `period`, and so on (the paper's protocol)."""

    seen: Tensor

    def __init__(self, period: int = 100, *, eps: float = 1e-5) -> None:
        super().__init__()
        if period < 1:
            raise ParameterError(f"period must be at least 1, got {period}")
        self.period, self.eps = period, eps
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @property
    def whitening(self) -> bool:
        """Whether the next batch will be whitened."""
        return int(self.seen) // self.period % 2 == 1

    def forward(self, rows: Tensor) -> Tensor:
        """(2B, d) unit rows, whitened or as they are."""
        result = whiten(rows, eps=self.eps) if self.whitening else rows
        if self.training:
            self.seen += 1
        return result


def _unit(rows: Tensor) -> Tensor:
    """Rows on the sphere, at least in float32 whatever the precision of the network."""
    return normalize(rows.to(working_dtype(rows)))


def _own_rows(count: int, device: torch.device) -> Tensor:
    """Where this process's rows are among those of all."""
    rank, _ = world()
    return torch.arange(rank * count, (rank + 1) * count, device=device)
