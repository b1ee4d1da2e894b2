"""The file behind a mapped cache: one header page and three arrays.

    0      JSON {"size", "dim", "towers", "dtype", "format", "version"}, padded with zero bytes
    4072   three int64: updates so far, finished fills, the update that an unfinished fill counts as
    4096   rows (size, towers * dim), then, each on the next multiple of 64 bytes,
           ticks (size,) int32 and checksums (size,) int32

A new file is sparse: a row that was never written takes no disk space.
"""

import json
import os
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from eigenbatch.errors import CacheFileError

HEADER, COUNTERS = 4096, 4072


@dataclass(frozen=True, slots=True)
class Layout:
    """What a cache file holds, and where."""

    size: int
    dim: int
    towers: int
    dtype: str  # as in `torch.<dtype>`
    format: str = "eigenbatch-cache"
    version: int = 2

    @property
    def offsets(self) -> tuple[int, int, int, int]:
        """First byte of rows, ticks and checksums, and the length of the file."""
        row_bytes = self.towers * self.dim * getattr(torch, self.dtype).itemsize
        ticks = -(-(HEADER + self.size * row_bytes) // 64) * 64
        checksums = -(-(ticks + 4 * self.size) // 64) * 64
        return HEADER, ticks, checksums, checksums + 4 * self.size


class MappedFile:
    """Tensors stored in a file: what is assigned to them is on disk after `flush`."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path.absolute()
        if not path.exists():
            _create(path, layout)
        _check_file(path, layout)
        self.writable = _locked(path, self)
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r+" if self.writable else "c")
        with torch.inference_mode(False):
            content = torch.from_numpy(self._bytes)
            rows, ticks, checksums, end = layout.offsets
            wide = layout.size * layout.towers * layout.dim * getattr(torch, layout.dtype).itemsize
            self.rows = content[rows : rows + wide].view(getattr(torch, layout.dtype))
            self.rows = self.rows.view(layout.size, layout.towers * layout.dim)
            self.ticks = content[ticks : ticks + 4 * layout.size].view(torch.int32)
            self.checksums = content[checksums:end].view(torch.int32)
            self.counters = content[COUNTERS:HEADER].view(torch.int64)  # (3,)

    def flush(self) -> None:
        """Write changed pages to disk now."""
        self._bytes.flush()


def _create(path: Path, layout: Layout) -> None:
    """Create an empty cache atomically; if another process was faster, its file is used."""
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with unfinished.open("xb") as file:
            file.write(json.dumps(asdict(layout)).encode())
            file.truncate(layout.offsets[-1])
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)  # unlike a rename, never replaces a file others have mapped
    except FileExistsError:
        pass
    finally:
        unfinished.unlink(missing_ok=True)


def _check_file(path: Path, wanted: Layout) -> None:
    """Raise CacheFileError, and leave the file alone, if it is not a cache of this layout."""
    if not path.is_file():  # opening a pipe would block
        raise CacheFileError(f"{path} is not a regular file: choose another path")
    with path.open("rb") as file:
        header = file.read(COUNTERS).rstrip(b"\0")
    try:
        found = json.loads(header)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != wanted.format:
        raise CacheFileError(f"{path} is not an embedding cache: choose another path")
    different = [
        f"{name} {found.get(name)!r}, expected {value!r}"
        for name, value in asdict(wanted).items()
        if found.get(name) != value
    ]
    if different:
        raise CacheFileError(
            f"{path} is a cache with {'; '.join(different)}. It was left untouched: open it with "
            "its own size, dim, towers and dtype, or choose another path"
        )
    if (length := path.stat().st_size) != wanted.offsets[-1]:
        raise CacheFileError(
            f"{path} has {length} bytes, expected {wanted.offsets[-1]}: was it cut off in a copy? "
            "Restore it, or remove it and begin with an empty cache"
        )


def _locked(path: Path, owner: object) -> bool:
    """Whether this process may write the file: it holds the lock as long as `owner` lives."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except PermissionError:
        return False
    weakref.finalize(owner, os.close, descriptor)
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def checksums(rows: Tensor, ticks: Tensor) -> Tensor:
    """(n,) int32: sum over 16-bit words of word x odd weight, and of the tick, modulo 2^32.

    A single changed word always changes the sum: an odd weight is invertible modulo 2^32.
    """
    words = rows.contiguous().view(torch.int16).numpy().view(np.uint16)  # (n, w)
    weights = np.random.default_rng(0).integers(0, 2**32, words.shape[1] + 1, dtype=np.uint32) | 1
    sums = (words * weights[1:]).sum(1, dtype=np.uint32)
    sums += ticks.numpy().astype(np.uint32) * weights[0]
    return torch.from_numpy(sums.view(np.int32))
