import numpy as np
import pytest
import scipy.linalg
import torch

from clouds import cloud, unit
from eigenbatch import spectrum, whiten
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError


@pytest.mark.parametrize(("n", "d"), [(40, 6), (6, 40), (12, 12)])
def test_whitening_is_the_inverse_square_root_of_the_second_moment(n, d):
    z = cloud("anisotropic", n, d)
    rows = unit(z).numpy()
    root = np.linalg.inv(scipy.linalg.sqrtm(rows.T @ rows / n + 1e-3 * np.eye(d)).real)
    white = whiten(z, eps=1e-3, renormalize=False)
    np.testing.assert_allclose(white.numpy(), rows @ root, rtol=1e-8, atol=1e-8)


def test_whitened_rows_are_isotropic_and_unit_rows_nearly_so():
    """Putting rows back on the sphere undoes part of the whitening (the paper's caveat 3)."""
    z = cloud("anisotropic", 2000, 16)
    assert spectrum(z).participation_ratio < 3
    exact = whiten(z, renormalize=False)
    assert spectrum(exact, normalize=False).participation_ratio > 15.99
    on_sphere = whiten(z)
    torch.testing.assert_close(on_sphere.norm(dim=1), torch.ones(2000, dtype=torch.float64))
    assert 12 < spectrum(on_sphere).participation_ratio < 14


@pytest.mark.parametrize(("n", "d"), [(9, 4), (4, 9), (5, 5)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_gradient_passes_gradcheck(n, d, renormalize):
    z = cloud("random", n, d).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: whiten(x, eps=1e-2, renormalize=renormalize), z, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["one_hot", "duplicated"])
def test_gradient_is_exact_where_eigenvalues_repeat(kind):
    z = cloud(kind, 6, 12).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: whiten(x, eps=1e-2), z, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(5))
def test_identical_rows_warn_and_stay_finite_with_their_gradient(seed, dtype):
    row = torch.randn(16, generator=torch.Generator().manual_seed(seed)).to(dtype)
    z = row.repeat(8, 1).requires_grad_()
    with pytest.warns(NumericalWarning, match="identical up to sign"):
        white = whiten(z)
    white.sum().backward()
    assert white.isfinite().all()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_rows_keep_their_dtype_and_their_accuracy(dtype):
    z = cloud("random", 20, 5).to(dtype)
    white = whiten(z)
    assert white.dtype == dtype
    torch.testing.assert_close(white, whiten(z.double()).to(dtype), rtol=1e-2, atol=1e-2)


def test_autocast_does_not_reach_inside():
    z = cloud("random", 20, 5).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = whiten(z)
    torch.testing.assert_close(inside, whiten(z), rtol=0, atol=0)


def test_bad_input_raises():
    with pytest.raises(ShapeError, match="at least 2 rows"):
        whiten(torch.ones(1, 3))
    with pytest.raises(ParameterError, match="eps"):
        whiten(torch.ones(4, 3), eps=0)
