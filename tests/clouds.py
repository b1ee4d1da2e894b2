"""Embedding geometries that break things: used by many tests."""

import torch
from torch import Tensor

KINDS = ("random", "anisotropic", "clustered", "duplicated", "collapsed", "antipodal", "one_hot")


def cloud(kind: str, count: int, dim: int, *, seed: int = 0) -> Tensor:
    """(count, dim) float64 rows, not normalised."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(count, dim, generator=g, dtype=torch.float64)
    match kind:
        case "random":
            return z
        case "anisotropic":
            return z * torch.arange(1, dim + 1, dtype=torch.float64) ** -1.5
        case "clustered":
            centres = torch.randn(max(2, count // 8), dim, generator=g, dtype=torch.float64)
            return centres[torch.randint(len(centres), (count,), generator=g)] + 0.05 * z
        case "duplicated":
            return z[torch.randint(max(2, count // 4), (count,), generator=g)]
        case "collapsed":
            return z[:1] / z[:1].norm() + 1e-6 * z
        case "antipodal":
            sign = 2.0 * torch.randint(2, (count, 1), generator=g) - 1
            return sign * (z[:1] + 1e-4 * z)
        case "one_hot":
            return torch.eye(dim, dtype=torch.float64)[torch.randint(dim, (count,), generator=g)]
    raise AssertionError(kind)


def unit(z: Tensor) -> Tensor:
    return z / z.norm(dim=1, keepdim=True)
