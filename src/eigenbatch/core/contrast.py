"""Who is contrasted with whom, and rows on the unit sphere, exactly.

Where numbers get their precision: working dtype, accumulation dtype, unit rows.

Half-precision input is worked on in float32. Sums over rows and all eigenvalues are formed in
float64, except on devices that have none (MPS). Autocast is switched off inside.

What is contrasted with what: anchors, keys, positives and negatives of one batch.

n counts embedding rows, not images (section "Notation"). The number of negatives N- is counted
from the layout, never assumed: 2B - 2 for NT-Xent, n - 1 for CLIP, K or K + n - 1 for MoCo.
"""

import math
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from eigenbatch.checks import check_flags, check_tensor, check_type, real, whole
from eigenbatch.errors import ParameterError, RowError, ShapeError

ZERO_ROW = "is zero and has no direction"
"""In the message about such a row."""


def working_dtype(z: Tensor) -> torch.dtype:
    """float64 stays, everything narrower becomes float32."""
    if not z.is_floating_point():
        raise ParameterError(f"embeddings must be floating point, got {z.dtype}; use z.float()")
    return torch.float64 if z.dtype == torch.float64 else torch.float32


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to nearest: 2^-24 for float32, 2^-53 for float64."""
    return torch.finfo(dtype).eps / 2


def accumulated(x: Tensor) -> Tensor:
    """`x` in the dtype that sums are formed in."""
    return x.to(accumulation_dtype(x.device))


def no_autocast(z: Tensor) -> torch.autocast:
    """Matrix products inside this context keep their dtype even in an autocast region."""
    return torch.autocast(z.device.type, enabled=False)


def full_float32_products() -> bool:
    """Whether a matrix product of float32 is rounded as float32, not as TF32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set for a single backend: torch refuses to say
        return False


def check_matrix(z: Tensor, name: str, *, least: int = 1) -> None:
    """Raise unless `z` is a (rows, d) matrix with at least `least` rows."""
    check_tensor(z, name)
    if z.ndim != 2 or z.shape[1] == 0:
        raise ShapeError(f"{name} must be a (rows, d) matrix, got shape {tuple(z.shape)}")
    if z.shape[0] < least:
        raise ShapeError(f"{name} has {z.shape[0]} rows, at least {least} are needed")


def finite_rows(z: Tensor, name: str) -> Tensor:
    """`z` in the working dtype; raises and names the first row with NaN or infinity."""
    return _measured(z, name)[0]


def _measured(z: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """`z` in the working dtype and the largest absolute entry of each row (n, 1), all finite."""
    check_matrix(z, name)
    z = z.to(working_dtype(z))
    largest = z.detach().abs().amax(1, keepdim=True)
    bad = ~largest.isfinite().squeeze(1)  # (n,)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise RowError(
            f"row {row} of {name} holds NaN or infinity ({int(bad.sum())} such rows in all): "
            "did the loss diverge or half precision overflow?"
        )
    return z, largest


def unit_rows(z: Tensor, name: str = "z") -> Tensor:
    """Rows of `z` on the unit sphere, in the working dtype; differentiable and idempotent.

    Where a square might over- or underflow, each row is scaled by its largest entry first; its
    length is summed in the accumulation dtype. `row_error` bounds the distance to the exact row.
    """
    check_matrix(z, name)
    z = z.to(working_dtype(z))
    length = _lengths(z)
    if ((length > 1e-10) & (length < 1e10)).all():  # False for NaN
        return z / length.to(z.dtype)
    z, largest = _measured(z, name)
    if (zero := largest.squeeze(1) == 0).any():
        row = int(zero.nonzero()[0])
        raise RowError(
            f"row {row} of {name} {ZERO_ROW} ({int(zero.sum())} such rows in all): is a ReLU or a "
            "padding row the last layer?"
        )
    z = z / largest
    return z / _lengths(z).to(z.dtype)


def _lengths(z: Tensor) -> Tensor:
    """(n, 1) in the accumulation dtype."""
    length: Tensor = torch.linalg.vector_norm(
        z, dim=1, keepdim=True, dtype=accumulation_dtype(z.device)
    )
    return length


def row_error(z: Tensor) -> float:
    """How far a row that `unit_rows` made of an exact row may be from that row's exact direction.

    At most two divisions and the rounding of the length cost a unit roundoff of the working dtype
    each; a length of d squares costs (d / 2 + 2) of the accumulation dtype, in any order of
    summation.
    """
    wide = unit_roundoff(accumulation_dtype(z.device))
    return 3 * unit_roundoff(z.dtype) + (z.shape[1] + 8) * wide


def positive_scalar(value: float | Tensor, name: str) -> float:
    """`value` as a float above zero whose powers are in range; raises ParameterError otherwise."""
    number = real(value, name)
    if not (math.isfinite(number) and number > 0):
        raise ParameterError(f"{name} must be a finite number above 0, got {number}")
    if not 1e-30 <= number <= 1e30:
        raise ParameterError(f"{name} must lie between 1e-30 and 1e30, got {number}")
    return number


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
