import pytest
import torch

from eigenbatch import spectrum
from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    shared_component_rows,
    spiked_eigenvalues,
)


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


@pytest.mark.parametrize("cosine", [-1.0, 1.0])
def test_positives_at_cosine_one_are_the_row_itself_even_in_one_dimension(cosine):
    z = torch.tensor([[1.0], [-1.0]])
    positives = positives_at_cosine(z, cosine, generator=torch.Generator())
    assert torch.equal(positives, cosine * z)


@pytest.mark.parametrize("strength", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("as_printed", [False, True])
def test_shared_component_rows_have_the_mean_cosine_derived_for_them(strength, as_printed):
    count, dim = 4000, 64
    generator = torch.Generator().manual_seed(0)
    z = shared_component_rows(count, dim, strength, generator=generator, as_printed=as_printed)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(count, dtype=torch.float64))
    mean_cosine = ((z.sum(0).square().sum() - count) / (count * (count - 1))).item()
    # Squared lengths: a of the shared part against (1 - a) E||x||^2 of the own part.
    own = (1 - strength) * (dim if as_printed else 1)
    assert mean_cosine == pytest.approx(strength / (strength + own), rel=0.1, abs=1e-3)


def test_values_outside_their_range_raise():
    with pytest.raises(ParameterError, match="strength"):
        shared_component_rows(3, 4, 1.5, generator=torch.Generator())
    with pytest.raises(ParameterError, match="top must lie in"):
        spiked_eigenvalues(4, 0.1)
    with pytest.raises(ShapeError, match="dimension 2"):
        spiked_eigenvalues(1, 1.0)
    with pytest.raises(ParameterError, match="cosine"):
        positives_at_cosine(torch.eye(2), 1.5, generator=torch.Generator())
