"""Whether the tensors of a saved state may become the rows and ticks of a cache."""

import torch
from torch import Tensor

from eigenbatch.sampling.errors import StateError

BLOCK = 2**16
"""Rows checked at once."""


def stored_like(own: Tensor, stored: object, name: str) -> Tensor:
    """`stored`; raises StateError unless it can be copied to `own` as it is."""
    if not isinstance(stored, Tensor) or stored.shape != own.shape:
        raise StateError(f"the state's {name} are not a tensor of shape {tuple(own.shape)}")
    if stored.dtype != own.dtype or stored.layout != own.layout or stored.is_meta:
        raise StateError(f"the state's {name} are not plain {own.dtype}: it is damaged")
    return stored


def check_unit_rows(rows: Tensor, ticks: Tensor) -> None:
    """Raise StateError unless every known row has length 1; unknown rows are never read."""
    slack = 2 * torch.finfo(rows.dtype).eps + 1e-6  # rounding of the entries
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        wide = torch.promote_types(rows.dtype, torch.float32)
        norms = torch.linalg.vector_norm(rows[block].detach().to(wide), dim=1)
        bad = ~((norms - 1).abs() <= slack) & (ticks[block] > 0)  # NaN is bad too
        if bad.any():
            row = int(bad.nonzero()[0])
            raise StateError(
                f"row {start + row} of the state has length {norms[row]:.4g}, expected 1: "
                "it is damaged"
            )
