import numpy as np
import pytest
import torch

from clouds import cloud, unit
from eigenbatch import moments
from eigenbatch.errors import ShapeError


def test_moments_match_numpy():
    z = cloud("anisotropic", 9, 4)
    m, rows = moments(z), unit(z).numpy()
    assert m.count == 9
    np.testing.assert_allclose(m.sum.numpy(), rows.sum(0), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(m.second.numpy(), rows.T @ rows, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(m.covariance.numpy(), np.cov(rows.T, bias=True), atol=1e-15)


def test_a_sum_of_moments_describes_both_batches_together():
    a, b = cloud("random", 9, 4), cloud("clustered", 5, 4)
    merged, together = moments(a) + moments(b), moments(torch.cat([a, b]))
    assert merged.count == together.count
    torch.testing.assert_close(merged.sum, together.sum, rtol=0, atol=1e-15)
    torch.testing.assert_close(merged.second, together.second, rtol=0, atol=4e-15)


def test_sums_are_formed_in_float64_even_of_half_precision_rows():
    z = cloud("random", 5000, 3).half()
    m = moments(z)
    assert m.second.dtype == torch.float64
    torch.testing.assert_close(m.second, moments(z.double()).second, rtol=1e-5, atol=1e-3)
    assert m.second_moment.trace().item() == pytest.approx(1, abs=1e-6)


def test_moments_of_different_dimension_cannot_be_added():
    with pytest.raises(ShapeError, match="dimension 4 and 3"):
        moments(cloud("random", 5, 4)) + moments(cloud("random", 5, 3))


def test_the_papers_relations_between_the_three_second_moments_are_exact():
    z = unit(cloud("anisotropic", 8, 5))
    n, i, j = 8, 2, 6
    sigma_hat = moments(z).second_moment
    others = moments(torch.cat([z[:i], z[i + 1 :]])).second_moment
    keep = [k for k in range(n) if k not in (i, j)]
    negatives = moments(z[keep]).second_moment
    self_part, positive_part = torch.outer(z[i], z[i]), torch.outer(z[j], z[j])
    torch.testing.assert_close(
        others, n / (n - 1) * (sigma_hat - self_part / n), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(
        negatives, n / (n - 2) * (sigma_hat - (self_part + positive_part) / n), rtol=0, atol=1e-15
    )
    top = torch.linalg.eigvalsh(sigma_hat)[-1]
    assert torch.linalg.eigvalsh(others)[-1] <= n / (n - 1) * top + 1e-15
    assert torch.linalg.eigvalsh(negatives)[-1] <= n / (n - 2) * top + 1e-15
