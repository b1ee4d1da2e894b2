import math

import pytest
import torch

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.reference_loss import chance_loss, separated_loss


def test_identical_rows_have_the_chance_loss() -> None:
    contrast = Contrast.paired(torch.ones(6, 4), torch.ones(6, 4))
    loss = infonce(contrast, 0.1).loss.mean().item()
    assert loss == pytest.approx(chance_loss(contrast.negative_count), rel=1e-6)


@pytest.mark.parametrize("tau", [0.05, 0.5, 5.0])
def test_orthogonal_samples_with_identical_views_have_the_separated_loss(tau: float) -> None:
    z = torch.eye(8, dtype=torch.float64)
    contrast = Contrast.paired(z, z)
    expected = separated_loss(contrast.negative_count, tau)
    assert infonce(contrast, tau).loss.mean().item() == pytest.approx(expected)


def test_an_infinite_temperature_leaves_only_chance() -> None:
    assert separated_loss(100, 1e9) == pytest.approx(chance_loss(100))
    assert chance_loss(99) == pytest.approx(math.log(100))
