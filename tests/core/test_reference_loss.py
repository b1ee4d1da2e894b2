import math

import pytest
import torch

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import chance_loss, infonce


def test_identical_rows_have_the_chance_loss() -> None:
    contrast = Contrast.paired(torch.ones(6, 4), torch.ones(6, 4))
    loss = infonce(contrast, 0.1).loss.mean().item()
    assert loss == pytest.approx(chance_loss(contrast.negative_count), rel=1e-6)
    assert chance_loss(99) == pytest.approx(math.log(100))
