"""The last known embedding of every sample, and how old it is."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.checks import check_flags, check_tensor, check_type, ids_tensor, whole
from eigenbatch.errors import ParameterError, RowError
from eigenbatch.processes import initialized
from eigenbatch.sampling.cache_arguments import (
    device_of,
    dtype_name,
    index_of,
    last_occurrences,
    tower_parts,
)
from eigenbatch.sampling.cache_state import checked_state, checked_visits
from eigenbatch.sampling.filling import Embed, Progress, fill
from eigenbatch.sampling.mapped import VERSION, Layout, MappedRows
from eigenbatch.sampling.replicas import gathered, refuse
from eigenbatch.sampling.working import LIMIT, WorkingCopy

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_SIZE = 2**31 - 1  # ids and ticks are kept in 4 bytes


class EmbeddingCache:
    """Embeddings by sample id 0 ... size - 1: one row and a 4-byte time of its last update each.

    Rows are stored on the unit sphere, where selectors use them and where half precision is safe;
    a zero, NaN or infinite row raises. A row that was never updated is *unknown*: its age is -1,
    `filled` is False there, and `get` refuses it. Nothing here takes part in autograd.

    Args:
        size: samples of the data set.
        dim: dimension of an embedding.
        towers: 2 keeps two embeddings of every sample, anchor and key: the two sides of a pair.
        dtype: of the stored rows.
        device: where they are kept.
        path: a file to map instead of memory.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache
        >>> cache = EmbeddingCache(100, dim=8, towers=2)
        >>> cache.update([7, 9], torch.ones(2, 8), torch.eye(2, 8))
        >>> cache.get([9], tower=1).argmax().item()
        1
    """

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        towers: int = 1,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str = "cpu",
        path: str | Path | None = None,
    ) -> None:
        """Empty, or with what the memory-mapped file `path` already holds.

        A new file is sparse and appears atomically; an existing one must be of the same layout.
        Processes on one machine may share it: `update_synchronized` writes the same values from
        each.
        """
        size, dim = whole(size, "size"), whole(dim, "dim")
        if not 1 <= size <= MAX_SIZE or dim < 1:
            raise ParameterError(f"size must be 1 ... {MAX_SIZE} and dim >= 1, got {size}, {dim}")
        towers = whole(towers, "towers")
        if towers not in (1, 2):
            raise ParameterError(f"towers must be 1 or 2, got {towers}")
        check_type(dtype, torch.dtype, "dtype")
        check_type(path, (str, Path, type(None)), "path")
        device = device_of(device)
        if dtype not in DTYPES:
            names = ", ".join(str(known) for known in DTYPES)
            raise ParameterError(f"dtype must be one of {names}, got {dtype}")
        self.size, self.dim, self.towers, self.dtype = size, dim, towers, dtype
        self._working = WorkingCopy(towers)
        self._latest: Tensor | None = None  # ids of the last update, if it was a training step
        self._mapped: MappedRows | None = None
        if path is None:
            counted = size if towers == 2 else 0
            with torch.inference_mode(False):  # or they could never be changed outside of it
                self._rows = torch.zeros(size, towers * dim, dtype=dtype, device=device)
                self._ticks = torch.zeros(size, dtype=torch.int32, device=device)  # 0: unknown
                self._visits = torch.zeros(counted, dtype=torch.uint8, device=device)
            self._counted = self._visits
            self._tick = 0
        elif device.type == "cpu":
            layout = Layout(size=size, dim=dim, dtype=dtype_name(dtype), towers=towers)
            self._mapped = MappedRows.open_or_create(Path(path), layout)
            self._take_mapped()
            self._tick = int(self._mapped.clock)
            self._latest = self._last_written()
        else:
            raise ParameterError(f"a memory-mapped cache is on the CPU, got device={str(device)!r}")

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        towers = f" towers={self.towers}," if self.towers > 1 else ""
        return (
            f"{type(self).__name__}(size={self.size}, dim={self.dim},{towers} dtype={self.dtype}, "
            f"device={str(self.device)!r})"
        )

    @property
    def device(self) -> torch.device:
        """Where rows are kept and returned."""
        return self._rows.device

    @property
    def nbytes(self) -> int:
        """Bytes of all: size * (towers * dim * itemsize + 4), with two towers + 5."""
        return self._rows.nbytes + self._ticks.nbytes + self._visits.nbytes

    @property
    def filled(self) -> Tensor:
        """(size,) True where a row is known. For some ids only, `age(ids) >= 0` is cheaper."""
        return self._ticks != 0

    def get(self, ids: Tensor | Sequence[int], tower: int = 0) -> Tensor:
        """(n, dim) unit rows, a copy in the cache's dtype; raises if one of them is unknown."""
        if not 0 <= whole(tower, "tower") < self.towers:
            raise ParameterError(f"tower must be below {self.towers}, got {tower}")
        index = self._index(ids)
        unknown = self._ticks[index] == 0  # (n,)
        if unknown.any():
            raise RowError(
                f"id {int(index[unknown][0])} was never updated ({int(unknown.sum())} of "
                f"{len(index)} ids asked for): keep those with cache.age(ids) >= 0"
            )
        rows = self._rows.index_select(0, index)  # several times faster than [index]
        return rows[:, tower * self.dim : (tower + 1) * self.dim]

    def unit_rows(self, ids: Tensor | None = None) -> Tensor:
        """(n, towers * dim) float32 rows of known ids; of all, unknown ones zero, without `ids`.

        For selection: anchors and keys side by side. All rows are not copied and must not be
        changed; they change with the next update. Of a cache above 2^18 rows, some rows have the
        lengths of the stored dtype: 1 within 5e-4 for float16.
        """
        check_type(ids, (Tensor, type(None)), "ids")
        if ids is not None and self.size > LIMIT:
            return self._rows.index_select(0, self._index(ids)).float()
        shared = self._mapped is not None
        rows = self._working.rows(self._rows, self._ticks, self._clock, shared=shared)
        return rows if ids is None else rows.index_select(0, self._index(ids))

    def age(self, ids: Tensor | Sequence[int] | None = None) -> Tensor:
        """(n,) updates of the cache since each row was written: 0 in the newest, -1 unknown.

        Without `ids`, of all samples.
        """
        ticks = self._ticks if ids is None else self._ticks.index_select(0, self._index(ids))
        return (self._clock - ticks.long()).masked_fill_(ticks == 0, -1)  # (n,)

    def update(
        self,
        ids: Tensor | Sequence[int],
        z: Tensor,
        second: Tensor | None = None,
        *,
        trained: bool = True,
    ) -> None:
        """Store row i of z (n, dim) under ids[i]; of a repeated id the last row stays.

        Every call makes all other rows one update older. On bad input nothing is changed.

        Args:
            ids: (n,) samples.
            z: their embeddings; with two towers those of the first.
            second: embeddings by the second tower, where the cache has one.
            trained: False for an inference pass: the model does not learn from these samples now.
                `Auto` tells memorised samples by how often they were trained on.
        """
        check_flags(trained=trained)
        index = self._index(ids)
        parts = tower_parts(z, second, count=len(index), dim=self.dim, towers=self.towers)
        rows = torch.cat(parts, dim=1).to(self.device, self.dtype)  # (n, towers * dim)
        last = last_occurrences(index)
        # First: no row is ever newer than the clock of a file. Processes that write the same
        # update one after the other use the same tick; one with an older clock advances to it.
        self._set_clock(max(self._tick + 1, self._clock))
        index = index[last]  # ascending
        if trained and self.towers == 2:
            visits = self._counted[index]
            self._counted[index] = visits + (visits < 255).to(torch.uint8)
            self._visits[index] = self._counted[index]  # the same from every process
        elif self._mapped and not trained:
            self._mapped.inferred.fill_(self._tick)
        self._rows[index] = rows[last]
        self._ticks[index] = self._tick
        self._latest = index if trained and self.towers == 2 and len(index) else None

    def latest(self) -> tuple[Tensor, Tensor, int] | None:
        """What the last update of a cache with two towers wrote, if it was a training step.

        Returns:
            (n, 2 dim) float32 rows in ascending order of ids, (n,) how often each sample was
            trained on, and the number of the update.
        """
        if self._latest is None:
            return None
        rows = self.unit_rows(self._latest)
        return rows, self._visits[self._latest].long(), self._clock

    def update_synchronized(
        self,
        ids: Tensor | Sequence[int],
        z: Tensor,
        second: Tensor | None = None,
        *,
        group: dist.ProcessGroup | None = None,
        trained: bool = True,
    ) -> None:
        """`update` with the ids and rows of all processes, so that their caches stay identical.

        A collective operation: every process calls it, with as many rows as it has. Bad input in
        one process raises in all. Without torch.distributed it is plain `update`.
        """
        check_type(group, (dist.ProcessGroup, type(None)), "group")
        if initialized():
            try:
                check_tensor(z, "z")
                if second is not None:
                    check_tensor(second, "second")
                ids = ids_tensor(ids)
            except Exception:
                refuse(group)
                raise
            if second is not None and second.shape == z.shape:
                z = torch.cat([z, second], dim=1)  # otherwise too narrow, which raises in all
            ids, z = gathered(ids, z, self.towers * self.dim, group)
            z, second = z.chunk(2, dim=1) if self.towers == 2 else (z, None)
        self.update(ids, z, second, trained=trained)

    def fill(
        self,
        embed: Embed,
        loader: Iterable[tuple[Any, Any]],
        *,
        progress: Progress | bool = True,
    ) -> int:
        """Embed all samples that are unknown, in one pass without gradients.

        With a filled cache the first batch is selected already. A pass that was interrupted
        continues where it was: batches whose rows are all known are not embedded. Nothing is sent
        to other processes: give each of them all the data, not a share (see docs/sampler.md).

        Args:
            embed: from a batch to its embeddings (n, dim), or a pair of them with two towers. Put
                the model into evaluation mode before.
            loader: yields (ids, batch), as `DataLoader(IndexedDataset(data), batch_size=256)`.
            progress: True: a progress bar, if tqdm is installed; False: none; or a function that
                is called after every batch with the number of known rows and of all.

        Returns:
            How many rows were added.

        Examples:
            >>> import torch
            >>> from torch.utils.data import DataLoader
            >>> from eigenbatch import EmbeddingCache, IndexedDataset
            >>> loader = DataLoader(IndexedDataset(torch.randn(10, 6)), batch_size=4)
            >>> cache = EmbeddingCache(10, dim=3)
            >>> cache.fill(torch.nn.Linear(6, 3), loader)
            10
            >>> cache.fill(torch.nn.Linear(6, 3), loader)  # nothing is left to do
            0
        """
        return fill(self, embed, loader, progress)

    def flush(self) -> None:
        """Force a memory-mapped cache to disk."""
        if self._mapped:
            self._mapped.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything; a memory-mapped cache is rather saved by keeping its file."""
        return (
            self._identity()
            | {
                "tick": self._clock,
                "rows": self._rows.clone(),
                "ticks": self._ticks.clone(),
            }
            | ({"visits": self._visits.clone(), "latest": self._latest} if self.towers == 2 else {})
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state of a cache with the same layout.

        Raises:
            StateError: the state is of another cache or damaged; nothing was changed.
        """
        rows, ticks, tick = checked_state(
            state, self._identity(), self._rows, self._ticks, towers=self.towers, most=MAX_SIZE
        )
        visits, latest = checked_visits(state, self._visits, self.size)
        self._set_clock(tick)
        self._working = WorkingCopy(self.towers)
        self._rows.copy_(rows.detach())
        self._ticks.copy_(ticks)
        self._visits.copy_(visits)
        self._counted.copy_(visits)
        self._latest = None if latest is None else latest.to(self.device)

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
        plain = self.__dict__ | {"_working": WorkingCopy(self.towers)}
        if self._mapped is None:
            return plain
        return plain | {
            "_rows": None,
            "_ticks": None,
            "_visits": None,
            "_counted": None,
            "_mapped": self._mapped.place,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._mapped is not None:
            self._mapped = MappedRows.open_or_create(*state["_mapped"])
            self._take_mapped()

    def _take_mapped(self) -> None:
        assert self._mapped is not None
        self._rows, self._ticks = self._mapped.rows, self._mapped.ticks
        self._visits = self._mapped.visits
        # Counted apart: a process could find the visit of another in the file, and count it again.
        with torch.inference_mode(False):
            self._counted = self._visits.clone()

    def _last_written(self) -> Tensor | None:
        """Ids of the last update of a file, if it was a training step."""
        assert self._mapped is not None
        if self.towers == 1 or self._tick == 0 or int(self._mapped.inferred) == self._tick:
            return None
        index = (self._ticks == self._tick).nonzero().squeeze(1)
        return index if bool((self._visits[index] > 0).all()) else None

    def _identity(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "size": self.size,
            "dim": self.dim,
            "dtype": dtype_name(self.dtype),
        } | ({"towers": self.towers} if self.towers > 1 else {})  # absent before version 0.2

    def _index(self, ids: Tensor | Sequence[int]) -> Tensor:
        return index_of(ids, self.size, self.device)
