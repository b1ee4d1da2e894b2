"""Embeddings of scikit-learn's handwritten digits, made on the spot: no download, no training."""

import torch
from torch import Tensor

from eigenbatch.core.precision import unit_rows

PAIRS = 256
DIMENSION = 64


def digit_views(*, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two augmented views of 256 digits through one fixed random projection; (256, 64) each.

    A view is the 8 x 8 image moved by up to one pixel, with its contrast scaled and noise added.
    """
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(load_digits().images).float() / 16  # (1797, 8, 8) in [0, 1]
    chosen = torch.randperm(len(images), generator=generator)[:PAIRS]
    projection = torch.randn(64, DIMENSION, generator=generator) / 8
    views = [_view(images[chosen], generator).flatten(1) @ projection for _ in range(2)]
    return unit_rows(views[0]), unit_rows(views[1])


def _view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift, contrast and noise, independently for each image; (b, 8, 8)."""
    shifts = torch.randint(-1, 2, (len(images), 2), generator=generator)
    moved = torch.stack(
        [
            image.roll(tuple(shift.tolist()), (0, 1))
            for image, shift in zip(images, shifts, strict=True)
        ]
    )
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    return moved * contrast + 0.1 * torch.randn(images.shape, generator=generator)
