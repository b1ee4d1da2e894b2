"""The file behind a memory-mapped cache: one header page, the rows, the ticks.

    0     JSON {"format", "version", "size", "dim", "dtype"}, padded with zero bytes;
          with two towers also "towers": 2
    4080  int64, number of the last update that was an inference pass; 0: there was none
    4088  int64, number of updates so far
    4096  rows (size, towers * dim), then, on the next multiple of 64 bytes, ticks (size,) int32;
          with two towers then visits (size,) uint8

A new file is sparse: a row that was never written takes no disk space.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from eigenbatch.sampling.errors import CacheFileError

FORMAT, VERSION = "eigenbatch-cache", 1
HEADER, CLOCK, INFERRED, ALIGNMENT = 4096, 4088, 4080, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a cache file holds, and where."""

    size: int
    dim: int
    dtype: str  # as in `torch.<dtype>`
    towers: int = 1
    format: str = FORMAT
    version: int = VERSION

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows."""
        itemsize: int = getattr(torch, self.dtype).itemsize
        return self.size * self.towers * self.dim * itemsize

    @property
    def tick_offset(self) -> int:
        """First byte of the ticks."""
        return -(-(HEADER + self.row_bytes) // ALIGNMENT) * ALIGNMENT

    @property
    def file_bytes(self) -> int:
        """Apparent length of the file."""
        return self.visit_offset + (self.size if self.towers == 2 else 0)

    @property
    def visit_offset(self) -> int:
        """First byte of the visits."""
        return self.tick_offset + 4 * self.size

    def header(self) -> bytes:
        """The first bytes of the file."""
        entries = asdict(self)
        if self.towers == 1:
            del entries["towers"]  # as before there were two
        return json.dumps(entries).encode()


class MappedRows:
    """Tensors stored in a file: what is assigned to them is on disk after `flush`."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.place = path.absolute(), layout  # enough to open it again elsewhere
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r+")
        with torch.inference_mode(False):  # or they could never be changed outside of it
            whole = torch.from_numpy(self._bytes)
            rows = whole[HEADER : HEADER + layout.row_bytes].view(getattr(torch, layout.dtype))
            self.rows: Tensor = rows.view(layout.size, layout.towers * layout.dim)
            self.ticks: Tensor = whole[layout.tick_offset : layout.visit_offset].view(torch.int32)
            self.visits: Tensor = whole[layout.visit_offset : layout.file_bytes]
            self.inferred: Tensor = whole[INFERRED:CLOCK].view(torch.int64)  # (1,)
            self.clock: Tensor = whole[CLOCK:HEADER].view(torch.int64)  # (1,)

    @classmethod
    def open_or_create(cls, path: Path, layout: Layout) -> Self:
        """Map `path`; raises CacheFileError, and leaves the file alone, if it does not fit."""
        if not path.exists():
            _create(path, layout)
        _check(path, layout)
        return cls(path, layout)

    def flush(self) -> None:
        """Write changed pages to disk now; otherwise the system does so later."""
        self._bytes.flush()


def _create(path: Path, layout: Layout) -> None:
    """Create an empty cache atomically; if another process was faster, its file is used."""
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with unfinished.open("xb") as file:
            file.write(layout.header())
            file.truncate(layout.file_bytes)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)  # unlike a rename, never replaces a file others have mapped
    except FileExistsError:
        pass
    finally:
        unfinished.unlink(missing_ok=True)


def _check(path: Path, wanted: Layout) -> None:
    if not path.is_file():  # opening a pipe would block
        raise CacheFileError(f"{path} is not a regular file; choose another path")
    with path.open("rb") as file:
        header = file.read(INFERRED).rstrip(b"\0")
    try:
        found = json.loads(header)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CacheFileError(f"{path} is not an embedding cache; choose another path")
    found = {"towers": 1} | found
    different = [
        f"{name} {found.get(name)!r}, expected {value!r}"
        for name, value in asdict(wanted).items()
        if found.get(name) != value
    ]
    if different:
        raise CacheFileError(
            f"{path} is a cache with {'; '.join(different)}. It was left untouched: open it with "
            "its own size, dim and dtype, or choose another path"
        )
    if (length := path.stat().st_size) != wanted.file_bytes:
        raise CacheFileError(
            f"{path} has {length} bytes, expected {wanted.file_bytes}: was it cut off in a "
            "copy, or made by an earlier version with two towers? Then remove it"
        )
