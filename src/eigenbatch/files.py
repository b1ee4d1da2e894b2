"""Embeddings from disk, without ever unpickling: .npy, .npz, .safetensors, .pt (weights only)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class FileFormatError(ValueError):
    """A file that holds no (rows, d) matrix of numbers, or several without saying which."""


def load_embeddings(path: Path) -> Tensor:
    """The (rows, d) floating-point matrix stored in `path`."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        stored = _read(path)
    except (ValueError, OSError, EOFError, BadZipFile) as reason:
        raise FileFormatError(f"{path}: {reason}") from reason
    if not isinstance(stored, Tensor):
        raise FileFormatError(f"{path}: holds a {type(stored).__name__}, not one array")
    if stored.ndim != 2:
        raise FileFormatError(f"{path}: shape {tuple(stored.shape)}, expected (rows, d)")
    if stored.is_complex() or stored.dtype == torch.bool:
        raise FileFormatError(f"{path}: dtype {stored.dtype}, expected real numbers")
    return stored if stored.is_floating_point() else stored.to(torch.float64)


def _read(path: Path) -> object:
    match path.suffix:
        case ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False))
        case ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return torch.from_numpy(_only(dict(archive)))
        case ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                return _only(load_file(path))
            except SafetensorError as reason:
                raise FileFormatError(reason) from reason
        case ".pt" | ".pth":
            return _load_weights(path)
        case other:
            raise FileFormatError(
                f"unknown ending {other!r}; save as .npy, .npz, .safetensors or .pt"
            )


def _load_weights(path: Path) -> object:
    """A tensor saved by torch; refuses anything that would need code to load."""
    import pickle

    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as reason:
        first_line = str(reason).splitlines()[0]
        raise FileFormatError(f"not a plain tensor file ({first_line})") from reason
    return _only(stored) if isinstance(stored, Mapping) else stored


def _only(arrays: Mapping[str, T]) -> T:
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)) or "none"
        raise FileFormatError(f"holds {len(arrays)} arrays ({names}), expected exactly one")
    return next(iter(arrays.values()))
