"""Whether the tensors of a saved state may become the rows and ticks of a cache."""

from typing import Any

import torch
from torch import Tensor

from eigenbatch.checks import described, is_count, is_integer_tensor
from eigenbatch.sampling.errors import StateError

BLOCK = 2**16
"""Rows checked at once."""


def checked_state(
    state: object, identity: dict[str, Any], rows: Tensor, ticks: Tensor, *, towers: int, most: int
) -> tuple[Tensor, Tensor, int]:
    """Rows, ticks and clock of a saved state; raises StateError unless they fit this cache."""
    if not isinstance(state, dict):
        raise StateError(f"the state of a cache must be a dict, got {described(state)}")
    found = {name: state.get(name) for name in identity}
    if found != identity:
        raise StateError(f"this state belongs to a cache with {found}, but this one has {identity}")
    rows = stored_like(rows, state.get("rows"), "rows")
    ticks = stored_like(ticks, state.get("ticks"), "ticks")
    tick: Any = state.get("tick")
    if not is_count(tick) or tick > most:
        raise StateError(f"the state's tick must be a number of updates, got {tick!r:.60}")
    if not 0 <= ticks.min() <= ticks.max() <= tick:
        raise StateError("the state has rows from other times than its own: it is damaged")
    check_unit_rows(rows, ticks, towers)
    return rows, ticks, tick


def checked_visits(state: dict[str, Any], own: Tensor, size: int) -> tuple[Tensor, Tensor | None]:
    """Visits and latest ids of a saved state; raises StateError unless they fit this cache."""
    if not len(own):
        return own, None
    if "visits" not in state:  # of version 0.1: rows may have been trained on any number of times
        return torch.where(state["ticks"] > 0, 255, 0).to(own.dtype), None
    visits = stored_like(own, state["visits"], "visits")
    latest: Any = state.get("latest")
    if latest is not None and not (
        is_integer_tensor(latest, (None,))
        and (not len(latest) or 0 <= latest.min() <= latest.max() < size)
    ):
        raise StateError(f"the state's latest ids are not below {size}: it is damaged")
    return visits, latest


def stored_like(own: Tensor, stored: object, name: str) -> Tensor:
    """`stored`; raises StateError unless it can be copied to `own` as it is."""
    if not isinstance(stored, Tensor) or stored.shape != own.shape:
        raise StateError(f"the state's {name} are not a tensor of shape {tuple(own.shape)}")
    if stored.dtype != own.dtype or stored.layout != own.layout or stored.is_meta:
        raise StateError(f"the state's {name} are not plain {own.dtype}: it is damaged")
    return stored


def check_unit_rows(rows: Tensor, ticks: Tensor, towers: int = 1) -> None:
    """Raise StateError unless every known row has length 1; unknown rows are never read."""
    for part in rows.chunk(towers, 1):
        _check_tower(part, ticks)


def _check_tower(rows: Tensor, ticks: Tensor) -> None:
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
