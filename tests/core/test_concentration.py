import math

import pytest
import torch

from clouds import unit
from eigenbatch.core import (
    bernstein_radius,
    effective_rank_radius,
    queue_ceiling,
    subgaussian_radius,
)
from eigenbatch.errors import ParameterError


def test_subgaussian_radius_is_the_printed_formula():
    expected = 2 * 0.5**2 * math.sqrt((64 + math.log(100)) / 1000)
    assert subgaussian_radius(1000, 64, delta=0.01, kappa=0.5, constant=2) == pytest.approx(
        expected
    )


def test_effective_rank_radius_is_the_printed_formula():
    tail = math.log(100) / 1000
    expected = 0.25 * (math.sqrt(8 * tail) + tail)
    assert effective_rank_radius(1000, 8, delta=0.01, kappa=0.5) == pytest.approx(expected)


def test_bernstein_radius_solves_its_own_tail_bound():
    t = bernstein_radius(1000, 64, 0.1, delta=0.01)
    tail = 2 * 64 * math.exp(-1000 * t**2 / (2 * 0.1 + 2 * t / 3))
    assert tail == pytest.approx(0.01, rel=1e-9)


def test_bernstein_radius_covers_sampled_second_moments():
    """Unit rows with a known second moment: signed axes drawn with probabilities p."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    radius = bernstein_radius(200, 4, 0.4, delta=0.1)
    misses = 0
    for _ in range(300):
        rows = torch.eye(4, dtype=torch.float64)[p.multinomial(200, True, generator=generator)]
        deviation = torch.linalg.matrix_norm(rows.T @ rows / 200 - p.diag(), 2)
        misses += int(deviation > radius)
    assert misses <= 30


def test_bernstein_radius_covers_isotropic_rows():
    generator = torch.Generator().manual_seed(0)
    radius = bernstein_radius(400, 16, 1 / 16, delta=0.1)
    for _ in range(50):
        rows = unit(torch.randn(400, 16, generator=generator, dtype=torch.float64))
        target = torch.eye(16, dtype=torch.float64) / 16
        assert torch.linalg.matrix_norm(rows.T @ rows / 400 - target, 2) <= radius


def test_queue_ceiling_is_clamped_at_one():
    assert queue_ceiling(0.3, 0.2) == 0.5
    assert queue_ceiling(0.3, 5.0) == 1.0


@pytest.mark.parametrize(
    ("count", "rank", "delta", "message"),
    [(0, 4, 0.1, "count"), (10, 0.5, 0.1, "rank"), (10, 4, 0.0, "delta"), (10, 4, 1.0, "delta")],
)
@pytest.mark.parametrize("radius", [subgaussian_radius, effective_rank_radius])
def test_values_outside_their_range_raise(radius, count, rank, delta, message):
    with pytest.raises(ParameterError, match=message):
        radius(count, rank, delta=delta)
