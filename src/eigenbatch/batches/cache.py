"""The last known embedding of every sample, and how old it is.

A cache may be a mapped file, larger than memory. One process at a time may write a file; whoever
opens it meanwhile can only read it. A row whose checksum does not fit (a damaged disk, a process
that was killed between two writes) counts as unknown.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.batches.mapped import Layout, MappedFile, checksums
from eigenbatch.checks import check_callable, check_type, described, ids_tensor, is_count, whole
from eigenbatch.core.contrast import check_matrix, unit_rows
from eigenbatch.errors import (
    ArgumentTypeError,
    CacheFileError,
    ParameterError,
    RowError,
    ShapeError,
    StateError,
)
from eigenbatch.processes import all_gather, all_reduce, rank_and_world

logger = logging.getLogger("eigenbatch")

Embed = Callable[[Any], Tensor | tuple[Tensor, Tensor]]
Progress = Callable[[int, int], None]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_SIZE = 2**31 - 1  # ids and ticks are kept in 4 bytes
BLOCK = 2**16
"""Rows that are read, checked or exchanged at once."""


class EmbeddingCache:
    """Embeddings by sample id 0 ... size - 1: one row per tower, and when it was written.

    Rows are stored on the unit sphere, where half precision is safe. A row that was never written
    is *unknown*: its age is -1, `filled` is False there, and `rows` refuses it.

    `update` is local: with several processes each stores the rows it has. A plan brings the newest
    rows together (`gather`), and so should you before you save a state.

    Args:
        size: samples of the data set.
        dim: dimension of an embedding.
        towers: 2 keeps two embeddings of every sample: both sides of a pair, or both views.
        dtype: of the stored rows.
        device: where they are kept.
        path: a file to map instead of memory; created if it does not exist.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache
        >>> cache = EmbeddingCache(100, dim=8, towers=2)
        >>> cache.update([7, 9], torch.ones(2, 8), torch.eye(2, 8))
        >>> cache.rows([9]).shape, cache.age([7, 8]).tolist()
        (torch.Size([1, 2, 8]), [0, -1])
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
        self.size, self.dim = whole(size, "size"), whole(dim, "dim")
        if not 1 <= self.size <= MAX_SIZE or self.dim < 1:
            raise ParameterError(f"size must be 1 ... {MAX_SIZE} and dim >= 1, got {size}, {dim}")
        self.towers = whole(towers, "towers")
        if self.towers not in (1, 2):
            raise ParameterError(f"towers must be 1 or 2, got {towers}")
        check_type(dtype, torch.dtype, "dtype")
        check_type(path, (str, Path, type(None)), "path")
        if dtype not in DTYPES:
            raise ParameterError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
        self.dtype = dtype
        place = _device(device)
        self._file: MappedFile | None = None
        if path is not None:
            if place.type != "cpu":
                raise ParameterError(f"a mapped cache is on the CPU, got device={str(device)!r}")
            self._open(Path(path))
            return
        with torch.inference_mode(False):  # or they could never be changed outside of it
            self._rows = torch.zeros(self.size, self.towers * self.dim, dtype=dtype, device=place)
            self._ticks = torch.zeros(self.size, dtype=torch.int32, device=place)  # 0: unknown
            self._counters = torch.zeros(3, dtype=torch.int64)  # updates, fills, unfinished fill

    def _open(self, path: Path) -> None:
        layout = Layout(self.size, self.dim, self.towers, str(self.dtype).removeprefix("torch."))
        self._file = MappedFile(path, layout)
        self._rows, self._ticks = self._file.rows, self._file.ticks
        self._counters = self._file.counters

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return (
            f"EmbeddingCache(size={self.size}, dim={self.dim}, towers={self.towers}, "
            f"dtype={self.dtype}, device={str(self.device)!r})"
        )

    @property
    def device(self) -> torch.device:
        """Where rows are kept and returned."""
        return self._rows.device

    @property
    def nbytes(self) -> int:
        """Bytes of rows and ticks: size * (towers * dim * itemsize + 4)."""
        return self._rows.nbytes + self._ticks.nbytes

    @property
    def updates(self) -> int:
        """How often it was written to."""
        return int(self._counters[0])

    @property
    def fills(self) -> int:
        """How many times `fill` has finished: a sampler plans anew after each."""
        return int(self._counters[1])

    @property
    def filled(self) -> Tensor:
        """(size,) True where a row is known."""
        return self._ticks != 0

    def age(self, ids: Tensor | Sequence[int] | None = None) -> Tensor:
        """(n,) updates since each row was written: 0 in the newest, -1 unknown; of all by default.

        With a mapped cache, damaged rows among the given ids become unknown first.
        """
        if ids is None:
            ticks = self._ticks
        else:
            index = self._index(ids)
            self._forget_damaged(index)
            ticks = self._ticks.index_select(0, index)
        return (self.updates - ticks.long()).masked_fill_(ticks == 0, -1)

    def rows(self, ids: Tensor | Sequence[int] | None = None) -> Tensor:
        """(n, towers, dim) float32 unit rows, a copy; of all samples by default.

        Raises:
            RowError: one of them is unknown.
        """
        index = torch.arange(self.size, device=self.device) if ids is None else self._index(ids)
        unknown = self._ticks.index_select(0, index) == 0  # (n,)
        if unknown.any():
            raise RowError(
                f"sample {int(index[unknown][0])} has no embedding ({int(unknown.sum())} of "
                f"{len(index)} samples asked for): take those with cache.age(ids) >= 0"
            )
        rows = torch.empty(len(index), self.towers, self.dim, device=self.device)
        for start in range(0, len(index), BLOCK):  # no second copy of all rows
            block = slice(start, start + BLOCK)
            part = rows[block]
            part.copy_(self._rows.index_select(0, index[block]).view_as(part))
            part /= torch.linalg.vector_norm(part, dim=2, keepdim=True)
        return rows

    def get(self, ids: Tensor | Sequence[int], tower: int = 0) -> Tensor:
        """(n, dim) float32 unit rows of one tower; raises if one of them is unknown."""
        if not 0 <= whole(tower, "tower") < self.towers:
            raise ParameterError(f"tower must be below {self.towers}, got {tower}")
        return self.rows(self._index(ids))[:, tower]

    def update(self, ids: Tensor | Sequence[int], z: Tensor, second: Tensor | None = None) -> None:
        """Store row i of z (n, dim) for sample ids[i]; of a repeated id the last row stays.

        Local to this process. Every call makes all other rows one update older. On bad input
        nothing is changed.

        Args:
            ids: (n,) samples.
            z: their embeddings; with two towers those of the first.
            second: embeddings by the second tower, if the cache has one.
        """
        self._check_writable()
        index = self._index(ids)
        rows = self._stored(z, second, count=len(index))
        self._counters[0] += 1
        self._write(index, rows, self.updates)

    def fill(
        self, embed: Embed, loader: Iterable[tuple[Any, Any]], *, progress: Progress | bool = True
    ) -> int:
        """Embed all samples in one pass without gradients; the sampler then plans anew.

        A pass that was interrupted continues: batches that it has stored are not embedded again.
        With several processes give each the same loader, not a share: each embeds every world-th
        batch, and all call `embed` equally often.

        Args:
            embed: from a batch to its embeddings (n, dim), or a pair of them with two towers. Put
                the model into the mode you want before.
            loader: yields (ids, batch), as `DataLoader(IndexedDataset(data), batch_size=256)`.
            progress: True: a progress bar, if tqdm is installed; False: none; or a function that
                is called after every batch with the number of embedded samples and of all.

        Returns:
            How many rows this process has stored.

        Examples:
            >>> import torch
            >>> from torch.utils.data import DataLoader
            >>> from eigenbatch import EmbeddingCache, IndexedDataset
            >>> loader = DataLoader(IndexedDataset(torch.randn(10, 6)), batch_size=4)
            >>> cache = EmbeddingCache(10, dim=3)
            >>> cache.fill(torch.nn.Linear(6, 3), loader)
            10
        """
        check_callable(embed, "embed", "a function of a batch")
        if not isinstance(progress, bool):
            check_callable(progress, "progress", "a function of two counts")
        if not isinstance(loader, Iterable) or isinstance(loader, str):
            raise ArgumentTypeError(f"loader must yield (ids, batch), got {described(loader)}")
        self._check_writable()
        if not self._counters[2]:
            self._counters[0] += 1
            self._counters[2] = self.updates
        tick, stored, seen, useless = int(self._counters[2]), 0, 0, []
        with _shown(progress, self.size) as show:
            for ids, batch, count, own in _shares(loader):
                index = self._index(ids)
                if not own or (self._ticks[index] < tick).any():
                    with torch.no_grad():
                        towers = _towers(embed(batch), len(index))
                    usable = with_direction(*towers).to(self.device)
                    towers = [z[usable.to(z.device)] for z in towers]
                    if own:
                        useless += index[~usable].tolist()
                        index = index[usable]
                        self._write(index, self._stored(*towers, count=len(index)), tick)
                        stored += len(index)
                seen += count
                show(min(seen, self.size), self.size)
        if useless:
            logger.warning(
                "embeddings of %d samples are zero or not finite, the first is of sample %d: they "
                "are left out, and these samples share random batches", len(useless), useless[0],
            )  # fmt: skip
        self._counters[1] += 1
        self._counters[2] = 0
        return stored

    def gather(self, ids: Tensor | None = None, *, group: dist.ProcessGroup | None = None) -> None:
        """Bring the newest row of every sample, or of some, to all processes.

        A collective operation: every process calls it with the same ids. Of rows that are equally
        new the lowest rank's is taken. Without torch.distributed it does nothing.
        """
        check_type(group, (dist.ProcessGroup, type(None)), "group")
        index = torch.arange(self.size, device=self.device) if ids is None else self._index(ids)
        rank, world = rank_and_world()
        if world == 1:
            return
        width = self._rows.shape[1] * self.dtype.itemsize
        for block in torch.split(index, BLOCK):
            ticks = torch.stack(all_gather(self._ticks[block], group))  # (world, b)
            newest, owner = ticks.max(0)  # of equal ones the first
            sent = torch.zeros(len(block), width, dtype=torch.uint8, device=self.device)
            own = owner == rank
            sent[own] = self._rows[block[own]].view(torch.uint8)
            rows = all_reduce(sent, group).view(self.dtype)  # one process at most gave each row
            other = (owner != rank) & (newest > 0)
            self._write(block[other], rows[other], newest[other])
        counts = torch.stack(all_gather(self._counters[:1].clone(), group))
        self._counters[0] = int(counts.max())

    def flush(self) -> None:
        """Force a mapped cache to disk now; otherwise the system does so later."""
        if self._file is not None:
            self._file.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of what this process holds; with several, call `gather()` in all of them before.

        A mapped cache is rather saved by keeping its file.
        """
        return self._identity() | {
            "rows": self._rows.clone(),
            "ticks": self._ticks.clone(),
            "counters": self._counters.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of a cache with the same layout.

        Raises:
            StateError: the state is of another cache or damaged; nothing was changed.
        """
        self._check_writable()
        own = {"rows": self._rows, "ticks": self._ticks, "counters": self._counters}
        _check_state(state, self._identity(), own)
        if self._file is not None:
            known = state["ticks"].nonzero().squeeze(1)
            self._ticks.zero_()
            for block in torch.split(known, BLOCK):
                self._write(block, state["rows"][block], state["ticks"][block])
            self._counters.copy_(state["counters"])
            return
        for name, tensor in own.items():
            tensor.copy_(state[name].detach())

    def _identity(self) -> dict[str, Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        return {"size": self.size, "dim": self.dim, "towers": self.towers, "dtype": dtype}

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

    def _stored(self, z: Tensor, second: Tensor | None = None, *, count: int) -> Tensor:
        """(count, towers * dim) unit rows in the cache's dtype; raises unless they fit."""
        if (second is not None) != (self.towers == 2):
            raise ShapeError(
                f"a cache with towers={self.towers} stores {self.towers} embeddings of a sample, "
                f"but second is {'missing' if second is None else 'given'}: call "
                f"update({'ids, z' if self.towers == 1 else 'ids, z, second'})"
            )
        parts = {"z": z} if second is None else {"z": z, "second": second}
        for name, part in parts.items():
            check_matrix(part, name, least=0)
            if part.shape != (count, self.dim):
                raise ShapeError(
                    f"{count} ids and embeddings {name} of shape {tuple(part.shape)}: each id "
                    f"needs one row of dimension {self.dim}"
                )
        rows = [unit_rows(part.detach(), name) if count else part for name, part in parts.items()]
        return torch.cat(rows, dim=1).to(self.device, self.dtype)

    def _write(self, index: Tensor, rows: Tensor, tick: int | Tensor) -> None:
        """Store rows at a tick; of a repeated index the last row stays."""
        last = _last_occurrences(index)
        index, rows = index[last], rows[last]
        ticks = torch.as_tensor(tick, dtype=torch.int32, device=self.device)
        ticks = ticks[last] if ticks.ndim else ticks.expand(len(index))
        self._ticks[index] = 0  # unknown until it is whole again, should the process be killed
        self._rows[index] = rows
        if self._file is not None:
            self._file.checksums[index] = checksums(rows, ticks)
        self._ticks[index] = ticks

    def _forget_damaged(self, index: Tensor) -> None:
        """Make rows of a mapped file unknown whose checksum does not fit."""
        if self._file is None:
            return
        for block in torch.split(index, BLOCK):
            ticks = self._ticks[block]
            wrong = checksums(self._rows[block], ticks) != self._file.checksums[block]
            damaged = block[wrong & (ticks != 0)]
            if len(damaged):
                self._ticks[damaged] = 0
                logger.warning(
                    "%s: %d rows are damaged, the first is of sample %d. They count as unknown "
                    "until their next update", self._file.path, len(damaged), int(damaged[0]),
                )  # fmt: skip

    def _check_writable(self) -> None:
        if self._file is not None and not self._file.writable:
            raise CacheFileError(
                f"{self._file.path} is open for writing elsewhere, so it can only be read here: "
                "give each process a file of its own, e.g. path=f'cache-{rank}.bin'"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Pickled by value, but a mapped cache by its file: a copy shares it."""
        if self._file is None:
            return self.__dict__
        state = {name: getattr(self, name) for name in ("size", "dim", "towers", "dtype")}
        return state | {"path": self._file.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        path = state.pop("path", None)
        self.__dict__.update(state)
        if path is not None:
            self._open(path)


def _last_occurrences(ids: Tensor) -> Tensor:
    """(u,) position of the last occurrence of each distinct id, ids ascending.

    Assigning to repeated indices keeps an undefined one of them.
    """
    ascending, position = ids.sort(stable=True)
    last = torch.ones_like(ascending, dtype=torch.bool)
    last[:-1] = ascending[1:] != ascending[:-1]
    return position[last]


def _shares(loader: Iterable[Any]) -> Iterator[tuple[Tensor, Any, int, bool]]:
    """(ids, batch, samples of all processes, own): every world-th batch of a loader.

    If the last round has too few batches, the others get its first one again, which is not `own`.
    """
    rank, world = rank_and_world()
    round_: list[tuple[Tensor, Any]] = []
    for pair in loader:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentTypeError(f"loader must yield (ids, batch), got {described(pair)}")
        round_.append((ids_tensor(pair[0]), pair[1] if len(round_) in (0, rank) else None))
        if len(round_) == world:
            yield *round_[rank], sum(len(ids) for ids, _ in round_), True
            round_ = []
    if round_:
        own = rank < len(round_)
        yield *round_[rank if own else 0], sum(len(ids) for ids, _ in round_), own


def _towers(rows: object, count: int) -> list[Tensor]:
    """What `embed` returned, one matrix per tower."""
    parts: list[Any] = list(rows) if isinstance(rows, tuple | list) else [rows]
    wanted = f"embed must return embeddings ({count}, dim), or a pair of them with two towers"
    if not 1 <= len(parts) <= 2 or not all(isinstance(part, Tensor) for part in parts):
        raise ArgumentTypeError(f"{wanted}, got {described(rows)}")
    for part in parts:
        if part.ndim != 2 or len(part) != count:
            raise ShapeError(f"{wanted}, got shape {tuple(part.shape)} for {count} ids")
    return parts


def with_direction(*towers: Tensor) -> Tensor:
    """(n,) True where the rows of all towers are finite and not zero."""
    lengths = torch.stack([rows.detach().abs().amax(1).cpu() for rows in towers])  # (towers, n)
    return (lengths.isfinite() & (lengths > 0)).all(0)


@contextmanager
def _shown(progress: Progress | bool, size: int) -> Iterator[Progress]:
    """What to call after every batch: the caller's function, a bar of tqdm, or nothing."""
    bar = None
    if progress is True:
        with suppress(ModuleNotFoundError):
            from tqdm.auto import tqdm

            # None: unless it is no terminal
            disable = None if rank_and_world()[0] == 0 else True
            bar = tqdm(total=size, desc="Embedding all samples", unit="row", disable=disable)
    if bar is None:
        yield (lambda done, total: None) if isinstance(progress, bool) else progress
        return
    with bar:
        yield lambda done, _: bar.update(done - bar.n)


def _check_state(state: object, identity: dict[str, Any], own: dict[str, Tensor]) -> None:
    """Raise StateError unless `state` can be copied into the tensors of this cache."""
    if not isinstance(state, dict):
        raise StateError(f"the state of a cache must be a dict, got {described(state)}")
    if (found := {name: state.get(name) for name in identity}) != identity:
        raise StateError(f"this state belongs to a cache with {found}, but this one has {identity}")
    for name, tensor in own.items():
        stored = state.get(name)
        if not isinstance(stored, Tensor) or stored.shape != tensor.shape:
            raise StateError(f"the state's {name} are not a tensor of shape {tuple(tensor.shape)}")
        if stored.dtype != tensor.dtype or stored.layout != tensor.layout or stored.is_meta:
            raise StateError(f"the state's {name} are not plain {tensor.dtype}: it is damaged")
    ticks, counters = state["ticks"], state["counters"].tolist()
    if not all(map(is_count, counters)) or not 0 <= ticks.min() <= ticks.max() <= counters[0]:
        raise StateError("the state has rows from other times than its own: it is damaged")
    slack = 2 * torch.finfo(own["rows"].dtype).eps + 1e-6  # rounding of the entries
    for start in range(0, len(ticks), BLOCK):
        block = slice(start, start + BLOCK)
        for part in state["rows"][block].detach().chunk(identity["towers"], 1):
            norms = torch.linalg.vector_norm(part.double(), dim=1)
            bad = ~((norms - 1).abs() <= slack) & (ticks[block] > 0)  # NaN is bad too
            if bad.any():
                row = int(bad.nonzero()[0])
                raise StateError(
                    f"row {start + row} of the state has length {norms[row]:.4g}, expected 1: "
                    "it is damaged"
                )


def _device(device: torch.device | str) -> torch.device:
    """The device; raises ParameterError if torch does not know it or this machine lacks it."""
    check_type(device, (torch.device, str), "device")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as reason:  # no CUDA is an AssertionError
        raise ParameterError(f"device {str(device)!r} cannot be used here: {reason}") from None
