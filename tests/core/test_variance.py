import pytest
import torch

from eigenbatch import infonce, variance_band
from eigenbatch.core import negative_tops, variance_coefficient
from eigenbatch.errors import ParameterError
from layouts import contrast


def test_coefficient_at_the_papers_own_numbers():
    """Section "Numerical scale": n = 4096, tau = 0.1 gives A = 7.33."""
    assert variance_coefficient(4094, 0.1) == pytest.approx(7.33, abs=0.005)


def test_band_is_equation_v():
    c, tau = contrast("paired", "anisotropic", 8, 4), 0.3
    band, values = variance_band(c, tau), infonce(c, tau)
    squared_miss = values.miss.square().mean().item()
    assert band.remainder == pytest.approx(squared_miss * (1 + 1 / 14), rel=1e-12)
    assert band.sigma == pytest.approx(negative_tops(c).mean().item(), rel=1e-12)
    assert band.bound == pytest.approx(
        3 / (14 * tau**4) * (1 - 1 / 14) * band.sigma + band.remainder, rel=1e-12
    )
    gamma = values.squared_gradient
    assert band.measured == pytest.approx(((gamma - gamma.mean()) ** 2).mean().item(), rel=1e-10)


def test_the_printed_bound_is_not_a_bound():
    """Half of the anchors solved, half lost at small tau: Var(gamma) ~ tau^-4 without a 1/N-."""
    z = torch.eye(64, dtype=torch.float64)
    keys = z.clone()
    keys[::2] = -keys[::2]
    from eigenbatch import Contrast

    assert not variance_band(Contrast.cross(z, keys), 0.2).contained


def test_no_negatives_are_refused():
    with pytest.raises(ParameterError, match="got 0"):
        variance_coefficient(0, 0.1)
