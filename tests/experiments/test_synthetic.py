import pytest
import torch

from eigenbatch import ParameterError, ShapeError, spectrum
from eigenbatch.experiments.synthetic import gaussian_rows, positives_at_cosine, spiked_eigenvalues


def test_spiked_eigenvalues_have_trace_one_and_the_top_asked_for():
    values = spiked_eigenvalues(32, 0.6)
    assert values.sum().item() == pytest.approx(1)
    assert values[0] == 0.6
    assert (values[1:] == values[1]).all()


@pytest.mark.parametrize("top", [1 / 64, 0.3, 0.6, 0.95])
def test_rows_are_unit_and_their_spectrum_approaches_the_prescribed_one(top):
    generator = torch.Generator().manual_seed(0)
    z = gaussian_rows(20_000, spiked_eigenvalues(64, top), generator=generator)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    # Normalising the rows pulls a large top eigenvalue down: E[a/(a+b)] < E[a]/(E[a]+E[b]).
    assert spectrum(z).top <= top * 1.2
    assert spectrum(z).top >= top * 0.6


def test_positives_have_exactly_the_cosine_asked_for():
    generator = torch.Generator().manual_seed(0)
    z = gaussian_rows(50, spiked_eigenvalues(16, 0.3), generator=generator)
    positives = positives_at_cosine(z, 0.75, generator=generator)
    torch.testing.assert_close((z * positives).sum(1), torch.full((50,), 0.75).double())
    torch.testing.assert_close(positives.norm(dim=1), torch.ones(50).double())


def test_values_outside_their_range_raise():
    with pytest.raises(ParameterError, match="top must lie in"):
        spiked_eigenvalues(4, 0.1)
    with pytest.raises(ShapeError, match="dimension 2"):
        spiked_eigenvalues(1, 1.0)
    with pytest.raises(ParameterError, match="cosine"):
        positives_at_cosine(torch.eye(2), 1.5, generator=torch.Generator())
