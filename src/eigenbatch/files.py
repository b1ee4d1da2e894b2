"""Embeddings from disk, without ever unpickling: .npy, .npz, .safetensors, .pt (weights only).

What a file claims to hold is checked before its numbers are loaded: a small file cannot ask for a
large amount of memory.
"""

import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

LARGE = 2**28
"""Bytes above which an array must not be compressed more than MAX_RATIO times."""

MAX_RATIO = 100
"""Embeddings are nearly incompressible. Only made-up ones shrink this much: a zip bomb."""


class FileFormatError(ValueError):
    """A file that holds no (rows, d) matrix of numbers, or several without saying which."""


def load_embeddings(path: Path, key: str | None = None) -> Tensor:
    """The (rows, d) floating-point matrix stored in a file.

    Args:
        path: a regular file ending in .npy, .npz, .safetensors, .pt or .pth.
        key: which of several arrays it is; not needed where there is one.

    Returns:
        The matrix, on the CPU.

    Raises:
        FileFormatError: the file is absent, not a regular file, damaged, or holds something else.

    Examples:
        >>> import numpy
        >>> from eigenbatch.files import load_embeddings
        >>> numpy.save(tmp_path / "z.npy", numpy.eye(3))
        >>> load_embeddings(tmp_path / "z.npy").shape
        torch.Size([3, 3])
    """
    with _explained(path):
        stored = _read(path, key)
        if not isinstance(stored, Tensor):
            raise FileFormatError(f"holds a {type(stored).__name__}, not one array")
        return _dense_matrix(stored)


def array_names(path: Path) -> tuple[str, ...]:
    """Names of the arrays in a file; none for .npy, which holds one."""
    with _explained(path):
        match path.suffix.lower():
            case ".npz":
                with zipfile.ZipFile(path) as archive:
                    return tuple(one.filename.removesuffix(".npy") for one in archive.infolist())
            case ".safetensors":
                from safetensors import safe_open

                with safe_open(path, "pt") as tensors:
                    return tuple(tensors.keys())
            case ".pt" | ".pth":
                stored = torch.load(path, map_location="cpu", weights_only=True)
                return tuple(map(str, stored)) if isinstance(stored, Mapping) else ()
    return ()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise a FileFormatError that names the file, whatever goes wrong."""
    if not path.is_file():  # opening a pipe would block
        kind = "a folder" if path.is_dir() else "not a regular file" if path.exists() else None
        raise FileFormatError(f"{path}: {f'{kind}, not a file' if kind else 'no such file'}")
    try:
        yield
    except ModuleNotFoundError:
        raise
    except Exception as reason:  # any exception while reading means an invalid file
        text = (str(reason).splitlines() or [type(reason).__name__])[0]
        if "pickle" in text or "Weights only" in text:  # their advice is to open it all the same
            text = "damaged, or holds Python objects; save one plain array of numbers"
        raise FileFormatError(f"{path}: {text}") from reason


def _read(path: Path, key: str | None) -> object:
    match path.suffix.lower():
        case ".npy":
            if key is not None:
                raise FileFormatError(f"holds one array without a name, not {key!r}")
            with path.open("rb") as file:
                return _numpy_array(file, path.stat().st_size)
        case ".npz":
            with zipfile.ZipFile(path) as archive:
                return _zipped_array(archive, path.stat().st_size, key)
        case ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as tensors:
                return tensors.get_tensor(_only(tensors.keys(), key))
        case ".pt" | ".pth":
            stored = torch.load(path, map_location="cpu", weights_only=True)
            return stored[_only(stored, key)] if isinstance(stored, Mapping) else stored
        case other:
            raise FileFormatError(
                f"unknown ending {other!r}; save as .npy, .npz, .safetensors or .pt"
            )


def _zipped_array(archive: zipfile.ZipFile, size: int, key: str | None) -> Tensor:
    """One array of a .npz file of `size` bytes, read after its sizes were compared."""
    members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
    member = members[_only(members, key)]
    if member.file_size > max(LARGE, MAX_RATIO * size):
        raise FileFormatError(
            f"{size:,} bytes would become {member.file_size:,}: "
            "if these are real embeddings, save them with np.save"
        )
    with archive.open(member) as file:
        return _numpy_array(file, member.file_size)


def _numpy_array(file: IO[bytes], size: int) -> Tensor:
    """The array in .npy format at the start of `file`, whose length is `size` bytes."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # 3.0 only adds field names outside Latin-1
        raise FileFormatError(f"format version {version}, expected one plain array of numbers")
    first = version == (1, 0)
    read_header = (
        np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    if not dtype.hasobject and file.tell() + math.prod(shape) * dtype.itemsize != size:
        raise FileFormatError(
            f"its header promises shape {shape} of {dtype}, which does not fit its {size:,} bytes: "
            "damaged or cut off"
        )
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError:
        raise FileFormatError(f"entries of type {dtype}, expected float16, 32 or 64") from None


def _dense_matrix(stored: Tensor) -> Tensor:
    """`stored` as floating-point numbers, checked to be a matrix that holds its own data."""
    if stored.is_nested or stored.is_quantized or stored.is_meta:
        kind = "nested" if stored.is_nested else "quantised" if stored.is_quantized else "meta"
        raise FileFormatError(f"a {kind} tensor, expected a dense matrix of real numbers")
    if stored.ndim != 2:
        raise FileFormatError(f"shape {tuple(stored.shape)}, expected (rows, d)")
    if stored.is_complex() or stored.dtype == torch.bool or stored.layout != torch.strided:
        raise FileFormatError(
            f"{stored.layout} of {stored.dtype}, expected a dense matrix of real numbers"
        )
    if stored.numel() * stored.dtype.itemsize > stored.untyped_storage().nbytes():
        raise FileFormatError(
            f"shape {tuple(stored.shape)} repeats fewer stored numbers; save z.contiguous()"
        )
    stored = stored.detach()
    if not stored.is_floating_point():
        return stored.to(torch.float64)
    return stored.to(torch.float32) if stored.dtype.itemsize == 1 else stored  # float8


def _only(names: Collection[str], key: str | None) -> str:
    """The array that is meant: the one named `key`, or the only one."""
    listed = ", ".join(sorted(map(str, names))[:10]) or "none"
    if key is not None:
        if key not in names:
            raise FileFormatError(f"has no array {key!r}; it holds {listed}")
        return key
    if len(names) != 1:
        raise FileFormatError(
            f"holds {len(names)} arrays ({listed}), expected one: name it, as --key of diagnose "
            "does, or save it alone"
        )
    return next(iter(names))
