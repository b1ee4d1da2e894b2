import pytest
import torch
from torch.nn.functional import normalize

from eigenbatch.core.cloud import Axes, axis_sums, random_dominance


@pytest.mark.parametrize("dimension", [4, 16, 64, 256])
def test_one_random_direction_in_a_hundred_exceeds_the_bar_at_most(dimension: int) -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(20_000, dimension, generator=generator, dtype=torch.float64)
    dominance = dimension * normalize(directions).square().amax(1)
    beyond = (dominance > random_dominance(dimension, 1.0)).double().mean()
    assert 0.0005 < beyond <= 0.01


def test_the_bar_is_that_of_rows_along_one_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(100, 1, generator=generator) * torch.randn(1, 64, generator=generator)
    axes = Axes.from_sums(axis_sums(normalize(along)))
    assert axes.dominance < random_dominance(64, 1.0)
    assert random_dominance(64, 0.5) == random_dominance(64, 1.0) / 2
    assert random_dominance(1, 1.0) == 1.0
