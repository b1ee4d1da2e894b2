"""Where numbers get their precision: working dtype, accumulation dtype, unit rows.

Half-precision input is worked on in float32. Sums over rows and all eigenvalues are formed in
float64, except on devices that have none (MPS). Autocast is switched off inside.
"""

import math

import torch
from torch import Tensor

from eigenbatch.checks import check_tensor, real
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
