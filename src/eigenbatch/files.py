"""Embeddings from disk, without ever unpickling: .npy, .npz, .safetensors, .pt (weights only)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class FileFormatError(ValueError):
    """A file that holds no (rows, d) matrix of numbers, or several without saying which."""


def load_embeddings(path: Path) -> Tensor:
    """The (rows, d) floating-point matrix stored in `path`."""
    if not path.is_file():
        raise FileFormatError(f"{path}: {'a folder, not a' if path.is_dir() else 'no such'} file")
    try:
        stored = _read(path)
    except ModuleNotFoundError:
        raise
    except Exception as reason:  # whatever a damaged file does to a reader, it is the file
        text = (str(reason).splitlines() or [type(reason).__name__])[0]
        if "pickle" in text or "Weights only" in text:  # their advice is to open it all the same
            text = "damaged, or holds Python objects; save one plain array of numbers"
        raise FileFormatError(f"{path}: {text}") from reason
    if not isinstance(stored, Tensor):
        raise FileFormatError(f"{path}: holds a {type(stored).__name__}, not one array")
    if stored.ndim != 2:
        raise FileFormatError(f"{path}: shape {tuple(stored.shape)}, expected (rows, d)")
    if stored.is_complex() or stored.dtype == torch.bool or stored.layout != torch.strided:
        raise FileFormatError(
            f"{path}: {stored.layout} of {stored.dtype}, expected a dense matrix of real numbers"
        )
    if not stored.is_floating_point():
        return stored.to(torch.float64)
    return stored.to(torch.float32) if stored.dtype.itemsize == 1 else stored  # float8


def _read(path: Path) -> object:
    match path.suffix.lower():
        case ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False))
        case ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return torch.from_numpy(_only(dict(archive)))
        case ".safetensors":
            from safetensors.torch import load_file

            return _only(load_file(path))
        case ".pt" | ".pth":
            return _load_weights(path)
        case other:
            raise FileFormatError(
                f"unknown ending {other!r}; save as .npy, .npz, .safetensors or .pt"
            )


def _load_weights(path: Path) -> object:
    """A tensor saved by torch; refuses anything that would need code to load."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    return _only(stored) if isinstance(stored, Mapping) else stored


def _only(arrays: Mapping[str, T]) -> T:
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)) or "none"
        raise FileFormatError(f"holds {len(arrays)} arrays ({names}), expected exactly one")
    return next(iter(arrays.values()))
