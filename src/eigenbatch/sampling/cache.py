"""The last known embedding of every sample, and how old it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.checks import check_tensor, check_type, described, ids_tensor, is_count, whole
from eigenbatch.core.precision import check_matrix, unit_rows
from eigenbatch.errors import ParameterError, RowError, ShapeError
from eigenbatch.sampling.cache_state import check_unit_rows, stored_like
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.mapped import VERSION, Layout, MappedRows
from eigenbatch.sampling.replicas import gathered, initialized

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_SIZE = 2**31 - 1  # ids and ticks are kept in 4 bytes


class EmbeddingCache:
    """Embeddings by sample id 0 ... size - 1: one row and a 4-byte time of its last update each.

    Rows are stored on the unit sphere, where selectors use them and where half precision is safe;
    a zero, NaN or infinite row raises. A row that was never updated is *unknown*: its age is -1,
    `filled` is False there, and `get` refuses it. Nothing here takes part in autograd.
    """

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cpu",
        path: str | Path | None = None,
    ) -> None:
        """Empty, or with what the memory-mapped file `path` already holds.

        A new file is sparse and appears atomically; an existing one must be of the same size, dim
        and dtype. Processes on one machine may share it: `update_synchronized` writes the same
        values from each.
        """
        size, dim = whole(size, "size"), whole(dim, "dim")
        if not 1 <= size <= MAX_SIZE or dim < 1:
            raise ParameterError(f"size must be 1 ... {MAX_SIZE} and dim >= 1, got {size}, {dim}")
        check_type(dtype, torch.dtype, "dtype")
        check_type(path, (str, Path, type(None)), "path")
        device = _device(device)
        if dtype not in DTYPES:
            names = ", ".join(str(known) for known in DTYPES)
            raise ParameterError(f"dtype must be one of {names}, got {dtype}")
        self.size, self.dim, self.dtype = size, dim, dtype
        self._mapped: MappedRows | None = None
        if path is None:
            self._rows = torch.zeros(size, dim, dtype=dtype, device=device)
            self._ticks = torch.zeros(size, dtype=torch.int32, device=device)  # 0: never updated
            self._tick = 0
        elif device.type == "cpu":
            layout = Layout(size=size, dim=dim, dtype=_name(dtype))
            self._mapped = MappedRows.open_or_create(Path(path), layout)
            self._rows, self._ticks = self._mapped.rows, self._mapped.ticks
            self._tick = int(self._mapped.clock)
        else:
            raise ParameterError(
                f"a memory-mapped cache lives on the CPU, got device={str(device)!r}"
            )

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(size={self.size}, dim={self.dim}, dtype={self.dtype}, "
            f"device={str(self.device)!r})"
        )

    @property
    def device(self) -> torch.device:
        """Where rows are kept and returned."""
        return self._rows.device

    @property
    def nbytes(self) -> int:
        """Bytes of rows and ticks: size * (dim * itemsize + 4)."""
        return self._rows.nbytes + self._ticks.nbytes

    @property
    def filled(self) -> Tensor:
        """(size,) True where a row is known. For some ids only, `age(ids) >= 0` is cheaper."""
        return self._ticks != 0

    def get(self, ids: Tensor | Sequence[int]) -> Tensor:
        """(n, dim) unit rows, a copy in the cache's dtype; raises if one of them is unknown."""
        index = self._index(ids)
        unknown = self._ticks[index] == 0  # (n,)
        if unknown.any():
            raise RowError(
                f"id {int(index[unknown][0])} was never updated ({int(unknown.sum())} of "
                f"{len(index)} ids asked for): keep those with cache.age(ids) >= 0"
            )
        return self._rows.index_select(0, index)  # several times faster than [index]

    def age(self, ids: Tensor | Sequence[int]) -> Tensor:
        """(n,) updates of the cache since each row was written: 0 in the newest, -1 unknown."""
        ticks = self._ticks[self._index(ids)].long()  # (n,)
        return torch.where(ticks == 0, -1, self._clock - ticks)

    def update(self, ids: Tensor | Sequence[int], z: Tensor) -> None:
        """Store row i of z (n, dim) under ids[i]; of a repeated id the last row stays.

        Every call makes all other rows one update older. On bad input nothing is changed.
        """
        index = self._index(ids)
        check_matrix(z, "z")
        if z.shape != (len(index), self.dim):
            raise ShapeError(
                f"{len(index)} ids and embeddings of shape {tuple(z.shape)}: each id needs one "
                f"row of dimension {self.dim}"
            )
        rows = unit_rows(z.detach(), "z").to(self.device, self.dtype)  # (n, dim)
        last = last_occurrences(index)
        # First: no row is ever newer than the clock of a file. Processes that write the same
        # update one after the other use the same tick; one with an older clock advances to it.
        self._set_clock(max(self._tick + 1, self._clock))
        self._rows[index[last]] = rows[last]
        self._ticks[index[last]] = self._tick

    def update_synchronized(
        self,
        ids: Tensor | Sequence[int],
        z: Tensor,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`update` with the ids and rows of all processes, so that their caches stay identical.

        A collective operation: every process calls it, with as many rows as it has. Bad input in
        one process raises in all. Without torch.distributed it is plain `update`.
        """
        check_type(group, (dist.ProcessGroup, type(None)), "group")
        if initialized():
            check_tensor(z, "z")
            ids, z = gathered(ids_tensor(ids), z, self.dim, group)
        self.update(ids, z)

    def flush(self) -> None:
        """Force a memory-mapped cache to disk."""
        if self._mapped:
            self._mapped.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything; a memory-mapped cache is rather saved by keeping its file."""
        return self._identity() | {
            "tick": self._clock,
            "rows": self._rows.clone(),
            "ticks": self._ticks.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state of a cache with the same layout.

        Raises:
            StateError: the state is of another cache or damaged; nothing was changed.
        """
        if not isinstance(state, dict):
            raise StateError(f"the state of a cache must be a dict, got {described(state)}")
        found = {name: state.get(name) for name in self._identity()}
        if found != self._identity():
            raise StateError(
                f"this state belongs to a cache with {found}, but this one has {self._identity()}"
            )
        rows = stored_like(self._rows, state.get("rows"), "rows")
        ticks = stored_like(self._ticks, state.get("ticks"), "ticks")
        tick: Any = state.get("tick")
        if not is_count(tick) or tick > MAX_SIZE:
            raise StateError(f"the state's tick must be a number of updates, got {tick!r:.60}")
        if not 0 <= ticks.min() <= ticks.max() <= tick:
            raise StateError("the state has rows from other times than its own: it is damaged")
        check_unit_rows(rows, ticks)
        self._set_clock(tick)
        self._rows.copy_(rows.detach())
        self._ticks.copy_(ticks)

    @property
    def _clock(self) -> int:
        """Updates so far, those that other processes wrote to a shared file included."""
        return max(self._tick, int(self._mapped.clock)) if self._mapped else self._tick

    def _set_clock(self, tick: int) -> None:
        self._tick = tick
        if self._mapped:
            self._mapped.clock.fill_(tick)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled by value, but a memory-mapped cache by its file: a copy shares it."""
        if self._mapped is None:
            return self.__dict__
        return self.__dict__ | {"_rows": None, "_ticks": None, "_mapped": self._mapped.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._mapped is not None:
            self._mapped = MappedRows.open_or_create(*state["_mapped"])
            self._rows, self._ticks = self._mapped.rows, self._mapped.ticks

    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "size": self.size,
            "dim": self.dim,
            "dtype": _name(self.dtype),
        }

    def _index(self, ids: Tensor | Sequence[int]) -> Tensor:
        """`ids` as an index into the rows; raises unless it is a vector of known range."""
        index = ids_tensor(ids)
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise ShapeError(
                f"ids must be a vector of integers, got {index.dtype} of shape {tuple(index.shape)}"
            )
        low, high = (int(bound) for bound in index.aminmax()) if len(index) else (0, 0)
        if low < 0 or high >= self.size:
            raise ParameterError(
                f"ids must be in 0 ... {self.size - 1}, got {low} ... {high}: was the cache made "
                "with size=len(dataset)?"
            )
        return index.to(self.device, torch.int64)


def _device(device: torch.device | str) -> torch.device:
    check_type(device, (torch.device, str), "device")
    try:
        return torch.device(device)
    except RuntimeError as reason:
        raise ParameterError(f"device {device!r} is unknown to torch: {reason}") from None


def last_occurrences(ids: Tensor) -> Tensor:
    """(u,) position of the last occurrence of each distinct id.

    Assigning to repeated indices keeps an undefined one of them.
    """
    ascending, position = ids.sort(stable=True)
    last = torch.ones_like(ascending, dtype=torch.bool)
    last[:-1] = ascending[1:] != ascending[:-1]
    return position[last]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
