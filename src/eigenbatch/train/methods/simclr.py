"""SimCLR and SupCon: both views of the global batch against each other."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from eigenbatch.core.contrast import Contrast, positive_scalar
from eigenbatch.core.spectrum import whiten
from eigenbatch.errors import ParameterError
from eigenbatch.processes import rank_and_world
from eigenbatch.train.batch import Batch
from eigenbatch.train.gather import gather_rows
from eigenbatch.train.methods.method import Method, Outcome, unit
from eigenbatch.train.objectives import nt_xent, supervised_contrastive

Transform = Callable[[Tensor], Tensor]


class SimCLR(Method):
    """NT-Xent over both views of the global batch.

    transform: applied to all 2B projections before the loss, e.g. `whiten` or `Alternating`.
    """

    def __init__(
        self, encoder: nn.Module, head: nn.Module, tau: float = 0.1, *,
        transform: Transform | None = None,
    ) -> None:  # fmt: skip
        super().__init__(encoder, head)
        self.tau = positive_scalar(tau, "tau")
        self.transform = transform

    def forward(self, batch: Batch) -> Outcome:
        """Loss of this process's 2b anchors against the 2B keys of all."""
        first, other, labels = batch
        rows = self.head(self.encoder(torch.cat([first, other])))  # (2b, d)
        keys = gather_rows(unit(rows))  # (2B, d)
        if self.transform is not None:
            keys = self.transform(keys)
        itself = _own_rows(len(rows), keys.device)  # (2b,) index into keys
        anchors = keys[itself]
        positive = itself.view(2, -1).flip(0).flatten()
        loss = self._loss(anchors, keys, itself, positive, labels)
        own, second = anchors.detach().chunk(2)
        both = keys.detach().reshape(-1, 2, len(first), keys.shape[1])  # (processes, view, b, d)

        def contrast() -> Contrast:
            z1, z2 = both.unbind(1)
            return Contrast.paired(z1.flatten(0, 1), z2.flatten(0, 1))

        return Outcome(loss=loss, embeddings=own, second=second, contrast=contrast)

    def _loss(
        self,
        anchors: Tensor,
        keys: Tensor,
        itself: Tensor,
        positive: Tensor,
        labels: Tensor | None,
    ) -> Tensor:
        return nt_xent(anchors, keys, itself, positive, self.tau)


class SupCon(SimCLR):
    """Supervised contrastive learning, an oracle: all views of one label are positives."""

    def _loss(
        self,
        anchors: Tensor,
        keys: Tensor,
        itself: Tensor,
        positive: Tensor,
        labels: Tensor | None,
    ) -> Tensor:
        if labels is None:
            raise ParameterError("supcon learns from labels, but this data has none: use simclr")
        both = labels.repeat(2)  # (2b,)
        everyone = gather_rows(both)  # (2B,)
        return supervised_contrastive(anchors, keys, itself, both, everyone, self.tau)


class Alternating(nn.Module):
    """Raw for `period` batches, whitened for `period`, and so on (the paper's protocol).

    after: raw batches before all that; the paper begins at epoch 70.
    """

    seen: Tensor

    def __init__(self, period: int = 100, *, after: int = 0, eps: float = 1e-5) -> None:
        super().__init__()
        if period < 1 or after < 0:
            raise ParameterError(
                f"period must be at least 1 and after not negative, got {period}, {after}"
            )
        self.period, self.after, self.eps = period, after, eps
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    @property
    def whitening(self) -> bool:
        """Whether the next batch will be whitened."""
        since = int(self.seen) - self.after
        return since >= 0 and since // self.period % 2 == 1

    def forward(self, rows: Tensor) -> Tensor:
        """(2B, d) unit rows, whitened or as they are."""
        result = whiten(rows, eps=self.eps) if self.whitening else rows
        if self.training:
            self.seen += 1
        return result


def _own_rows(count: int, device: torch.device) -> Tensor:
    """Where this process's rows are among those of all."""
    rank, _ = rank_and_world()
    return torch.arange(rank * count, (rank + 1) * count, device=device)
