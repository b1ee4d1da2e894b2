"""What is contrasted with what: anchors, keys, positives and negatives of one batch.

n counts embedding rows, not images (section "Notation"). The number of negatives N- is counted
from the layout, never assumed: 2B - 2 for NT-Xent, n - 1 for CLIP, K or K + n - 1 for MoCo.
"""

from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from eigenbatch.checks import check_flags, check_tensor, check_type, whole
from eigenbatch.core.precision import check_matrix, unit_rows, working_dtype
from eigenbatch.errors import ShapeError

Layout = Literal["paired", "cross"]
"""How two matrices are contrasted: as by `Contrast.paired` or as by `Contrast.cross`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contrast:
    """One batch, detached from autograd, rows on the unit sphere.

    The negatives of anchor i are the keys `first_negative ...` except its positive and, where
    anchors are themselves keys, itself. That is all the mask there is: no (n, m) matrix is kept.
    Make one with `paired`, `cross` or `queued`.

    Args:
        anchors: (n, d) unit rows whose gradient is asked for.
        keys: (m, d) unit rows they are compared with.
        positive: (n,) index of each anchor's positive among the keys.
        itself: (n,) index of each anchor among the keys, if it is one of them.
        first_negative: keys before this one are negatives of no anchor.

    Examples:
        >>> import torch
        >>> from eigenbatch import Contrast
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> Contrast.paired(z1, z2).negative_count, Contrast.cross(z1, z2).negative_count
        (6, 3)
    """

    anchors: Tensor  # (n, d)
    keys: Tensor  # (m, d)
    positive: Tensor  # (n,) index into keys
    itself: Tensor | None = None  # (n,) index into keys
    first_negative: int = 0

    def __post_init__(self) -> None:
        for name in ("anchors", "keys", "positive"):
            check_tensor(getattr(self, name), name)
        check_type(self.itself, (Tensor, type(None)), "itself")
        whole(self.first_negative, "first_negative", least=0)

    @classmethod
    def paired(cls, z1: Tensor, z2: Tensor) -> Self:
        """NT-Xent (SimCLR): both views are anchors and keys, self excluded; N- = 2B - 2.

        Args:
            z1: (B, d) embeddings of the first views.
            z2: (B, d) embeddings of the second views; row i belongs to row i of z1.
        """
        _check_same_shape(z1, "z1", z2, "z2", least=2)
        pairs = z1.shape[0]
        rows = torch.cat(_detached_unit_rows(z1=z1, z2=z2))  # (2B, d)
        itself = torch.arange(2 * pairs, device=rows.device)
        return cls(anchors=rows, keys=rows, positive=itself.roll(pairs), itself=itself)

    @classmethod
    def cross(cls, anchors: Tensor, keys: Tensor) -> Self:
        """CLIP, sentence pairs: anchor i's positive is key i; N- = n - 1.

        Args:
            anchors: (n, d) embeddings of one side.
            keys: (n, d) embeddings of the other side.
        """
        _check_same_shape(anchors, "anchors", keys, "keys", least=2)
        rows, others = _detached_unit_rows(anchors=anchors, keys=keys)
        return cls(anchors=rows, keys=others, positive=torch.arange(len(rows), device=rows.device))

    @classmethod
    def queued(
        cls, queries: Tensor, keys: Tensor, queue: Tensor, *, batch_negatives: bool = False
    ) -> Self:
        """MoCo: query i's positive is key i, its negatives the queue (K, d); N- = K.

        `batch_negatives=True` adds the other keys of the batch: N- = K + n - 1.
        """
        _check_same_shape(queries, "queries", keys, "keys", least=1)
        check_matrix(queue, "queue")
        check_flags(batch_negatives=batch_negatives)
        if queue.shape[1] != keys.shape[1]:
            raise ShapeError(
                f"queue has dimension {queue.shape[1]} but keys have {keys.shape[1]} "
                "(MoCo stores its queue as (d, K): pass queue.T)"
            )
        rows, own, stored = _detached_unit_rows(queries=queries, keys=keys, queue=queue)
        return cls(
            anchors=rows,
            keys=torch.cat([own, stored]),  # (n + K, d)
            positive=torch.arange(len(rows), device=rows.device),
            first_negative=0 if batch_negatives else len(rows),
        )

    @property
    def candidates(self) -> Tensor:
        """(M, d) keys that are a negative of some anchor."""
        return self.keys[self.first_negative :]

    @property
    def removed(self) -> tuple[Tensor, ...]:
        """Per anchor, which candidates are not its negatives: zero, one or two indices (n,)."""
        if self.first_negative:
            return ()
        return (self.positive,) if self.itself is None else (self.itself, self.positive)

    @property
    def negative_count(self) -> int:
        """N-, the same for every anchor."""
        return self.keys.shape[0] - self.first_negative - len(self.removed)

    @property
    def negatives(self) -> Tensor:
        """(n, m) boolean mask, built on demand; the library itself never needs it."""
        mask = torch.ones(
            len(self.anchors), len(self.keys), dtype=torch.bool, device=self.keys.device
        )
        mask[:, : self.first_negative] = False
        for index in (*self.removed, self.positive):
            mask.scatter_(1, index[:, None], False)
        return mask


def check_contrast(contrast: object) -> None:
    """Raise ArgumentTypeError unless `contrast` is a Contrast."""
    check_type(contrast, Contrast, "contrast", ": make one by Contrast.paired(z1, z2)")


def _check_same_shape(a: Tensor, a_name: str, b: Tensor, b_name: str, *, least: int) -> None:
    check_matrix(a, a_name)
    check_matrix(b, b_name)
    if a.shape != b.shape:
        raise ShapeError(
            f"{a_name} has shape {tuple(a.shape)} but {b_name} has {tuple(b.shape)}: "
            "row i of one is the positive of row i of the other"
        )
    if a.shape[0] < least:
        raise ShapeError(
            f"{a_name} has {a.shape[0]} rows: at least {least} pairs are needed, "
            "a single pair has no negatives"
        )


def _detached_unit_rows(**named: Tensor) -> list[Tensor]:
    """Unit rows of all tensors in their widest working dtype, on one device."""
    devices = {str(z.device) for z in named.values()}
    if len(devices) > 1:
        raise ShapeError(f"{', '.join(named)} are on different devices: {sorted(devices)}")
    widest = max((working_dtype(z) for z in named.values()), key=lambda dtype: dtype.itemsize)
    return [unit_rows(z.detach().to(widest), name) for name, z in named.items()]
