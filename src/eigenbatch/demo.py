"""Embeddings of scikit-learn's handwritten digits, made on the spot: no download, no training."""

import torch
from torch import Tensor

from eigenbatch.core.precision import unit_rows

PAIRS = 256
DIMENSION = 64


def digit_views(*, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two augmented views of 256 digits through one fixed random projection; (256, 64) each.

    A view is the 8 x 8 image, half of the time moved sideways by a pixel, with its contrast scaled
    and noise added; the mean image is taken off, as a trained model's last layer would.
    """
    from sklearn.datasets import load_digits

    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(load_digits().images).float() / 16  # (1797, 8, 8) in [0, 1]
    chosen = torch.randperm(len(images), generator=generator)[:PAIRS]
    projection = torch.randn(64, DIMENSION, generator=generator) / 8
    views = [_view(images[chosen], generator) - images.mean(0) for _ in range(2)]
    first, second = (unit_rows(view.flatten(1) @ projection) for view in views)
    return first, second


def _view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift, contrast and noise, independently for each image; (b, 8, 8)."""
    draw = torch.randint(4, (len(images), 1, 1), generator=generator)
    shift = torch.tensor([-1, 0, 0, 1])[draw]  # (b, 1, 1)
    columns = (torch.arange(8) - shift) % 8  # (b, 1, 8)
    moved = images.gather(2, columns.expand_as(images))
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    return moved * contrast + 0.1 * torch.randn(images.shape, generator=generator)
