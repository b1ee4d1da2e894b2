import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from clouds import KINDS, cloud, unit
from eigenbatch import isotropy_gap, moments, participation_ratio, spectrum
from eigenbatch.core.spectrum import descending_eigh, leading_eigenvector, smaller_gram
from eigenbatch.errors import ShapeError

SIZES = [(40, 6), (6, 40), (12, 12)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_every_rank_meets_its_definition_in_numpy(kind, n, d):
    z = cloud(kind, n, d)
    s = spectrum(z)
    rows = unit(z).numpy()
    values = np.clip(np.linalg.eigvalsh(rows.T @ rows / n)[::-1], 0, None)
    np.testing.assert_allclose(s.eigenvalues.numpy(), values, atol=1e-13)
    assert s.top == pytest.approx(values[0], rel=1e-12)
    assert s.participation_ratio == pytest.approx(1 / (values**2).sum(), rel=1e-12)
    assert s.entropy_rank == pytest.approx(math.exp(entropy(values / values.sum())), rel=1e-9)
    assert s.stable_rank == pytest.approx(
        np.linalg.norm(rows) ** 2 / np.linalg.norm(rows, 2) ** 2, rel=1e-12
    )
    deviation = np.linalg.norm(rows.T @ rows / n - np.eye(d) / d)
    assert s.isotropy_gap == pytest.approx(100 * math.sqrt(d) * deviation, rel=1e-9)
    assert s.attainable_rank == min(n, d)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_ranks_are_ordered_and_attainable(kind, n, d):
    s = spectrum(cloud(kind, n, d))
    assert 1 - 1e-9 <= s.stable_rank <= s.participation_ratio + 1e-9
    assert s.participation_ratio <= s.entropy_rank + 1e-9 <= s.attainable_rank + 2e-9


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_spectrum_of_moments_equals_spectrum_of_rows(n, d):
    z = cloud("anisotropic", n, d)
    torch.testing.assert_close(
        spectrum(moments(z)).eigenvalues, spectrum(z).eigenvalues, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_trace_only_functions_agree_with_the_eigenvalues(n, d):
    z = cloud("anisotropic", n, d)
    assert participation_ratio(z) == pytest.approx(spectrum(z).participation_ratio, rel=1e-12)
    assert isotropy_gap(z) == pytest.approx(spectrum(z).isotropy_gap, rel=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_lemma_the_two_effective_rank_estimators_are_equivalent(normalize):
    z = cloud("anisotropic", 9, 30)
    rows = unit(z) if normalize else z
    sigma = rows.T @ rows / len(rows)
    trace_one = sigma / sigma.trace()
    by_gram = (rows.T @ rows).trace() ** 2 / (rows @ rows.T).square().sum()
    assert 1 / (trace_one @ trace_one).trace().item() == pytest.approx(by_gram.item(), rel=1e-12)
    assert participation_ratio(z, normalize=normalize) == pytest.approx(by_gram.item(), rel=1e-12)


def test_sanity_check_identical_rows_have_rank_one():
    assert participation_ratio(cloud("random", 1, 7).repeat(20, 1)) == pytest.approx(1, rel=1e-14)


def test_sanity_check_orthogonal_rows_have_rank_n():
    assert participation_ratio(torch.eye(9, dtype=torch.float64)[:5]) == pytest.approx(5)


def test_isotropic_rows_are_off_by_a_factor_raw_and_right_when_unbiased():
    """tr(Sigma^2) = 1/d for isotropic rows; the raw estimate adds (1 - 1/d) / n."""
    n, d, batches = 64, 128, 400
    raw, unbiased = [], []
    for seed in range(batches):
        z = cloud("random", n, d, seed=seed)
        raw.append(1 / participation_ratio(z))
        unbiased.append(1 / participation_ratio(z, unbiased=True))
    raw, unbiased = np.array(raw), np.array(unbiased)
    error = unbiased.std(ddof=1) / math.sqrt(batches)
    assert abs(unbiased.mean() - 1 / d) < 4 * error
    assert raw.mean() == pytest.approx(1 / d + (1 - 1 / d) / n, rel=1e-2)
    assert raw.mean() > 2.9 / d


def test_unbiased_estimate_is_right_for_a_known_anisotropic_population():
    """Rows on the axes with probability p_k: the population has tr(Sigma^2) = sum p_k^2."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    estimates = []
    for _ in range(500):
        rows = torch.eye(3, dtype=torch.float64)[p.multinomial(8, True, generator=generator)]
        estimates.append(1 / participation_ratio(rows, unbiased=True))
    estimates = np.array(estimates)
    error = estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert abs(estimates.mean() - 0.38) < 4 * error


def test_raw_isotropy_gap_of_isotropic_rows_is_the_sampling_floor_and_the_corrected_one_is_zero():
    n, d = 256, 64
    gaps = [isotropy_gap(cloud("random", n, d, seed=s)) for s in range(50)]
    signed = np.array(
        [isotropy_gap(cloud("random", n, d, seed=s), unbiased=True) for s in range(50)]
    )
    assert np.mean(gaps) == pytest.approx(100 * math.sqrt((d - 1) / n), rel=0.02)
    assert abs(signed.mean()) < 4 * signed.std(ddof=1) / math.sqrt(50)


def test_orthogonal_rows_have_infinite_unbiased_rank():
    assert participation_ratio(torch.eye(4), unbiased=True) == math.inf


def test_one_row_has_no_unbiased_estimate():
    with pytest.raises(ShapeError, match="at least 2"):
        participation_ratio(torch.ones(1, 3), unbiased=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_give_float64_eigenvalues_that_sum_to_one(dtype):
    values = spectrum(cloud("random", 20, 5).to(dtype)).eigenvalues
    assert values.dtype == torch.float64
    assert values.sum().item() == pytest.approx(1, abs=1e-15)


def test_zero_rows_without_normalisation_are_allowed_unless_all_are_zero():
    z = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="all rows are zero"):
        participation_ratio(z, normalize=False)
    z[0, 0] = 2.0
    assert participation_ratio(z, normalize=False) == 1.0


@pytest.mark.parametrize("n", [12, 40])
def test_the_leading_eigenvector_is_that_of_a_full_decomposition(n: int) -> None:
    rows = torch.randn(n, 20, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    gram = smaller_gram(rows)
    values, vectors = descending_eigh(gram)
    found = leading_eigenvector(gram, values)[:, 0]
    assert abs(found @ vectors[:, 0]).item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("gram", [torch.eye(5), torch.ones(5, 5), torch.diag(torch.arange(5.0))])
def test_the_leading_eigenvector_of_a_degenerate_matrix_is_one(gram) -> None:
    gram = gram.double()
    values = torch.linalg.eigvalsh(gram).flip(0)
    found = leading_eigenvector(gram, values)
    torch.testing.assert_close(gram @ found, values[0] * found, atol=1e-9, rtol=0)
