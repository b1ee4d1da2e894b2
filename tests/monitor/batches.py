"""Two views of a healthy batch, to be spoilt by one thing at a time."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

PAIRS, DIMENSION, TAU = 128, 64, 0.2


def healthy_views(
    *, pairs: int = PAIRS, d: int = DIMENSION, noise: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Isotropic samples and two noisy views of each, on the sphere."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(pairs, d, generator=generator)
    return spoilt(samples, noise=noise, generator=generator)


def spoilt(
    samples: Tensor, *, noise: float = 0.6, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Two noisy views of given samples."""
    generator = generator or torch.Generator().manual_seed(1)
    noises = noise * torch.randn(2, *samples.shape, generator=generator)
    return normalize(samples + noises[0]), normalize(samples + noises[1])


def samples(*, pairs: int = PAIRS, d: int = DIMENSION, seed: int = 0) -> Tensor:
    return torch.randn(pairs, d, generator=torch.Generator().manual_seed(seed))
