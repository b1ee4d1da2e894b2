import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenbatch.core.cloud import cloud_of
from eigenbatch.core.errors import ShapeError
from eigenbatch.core.moments import moments
from eigenbatch.core.spectrum import isotropy_gap, participation_ratio, spectrum


def rows(n: int, d: int, *, offset: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.2, 2, d, dtype=torch.float64)
    raw = torch.randn(n, d, generator=generator, dtype=torch.float64) * scale + offset
    return normalize(raw)


@pytest.mark.parametrize(("n", "d"), [(40, 12), (10, 30)])
@pytest.mark.parametrize("offset", [0.0, 1.5])
def test_moments_alone_give_what_the_rows_give(n: int, d: int, offset: float) -> None:
    z = rows(n, d, offset=offset)
    cloud = cloud_of(moments(z))
    values = spectrum(z)
    assert cloud.sigma_hat == pytest.approx(values.top)
    assert cloud.participation_ratio == pytest.approx(participation_ratio(z))
    unbiased = participation_ratio(z, unbiased=True)
    assert cloud.participation_ratio_unbiased == pytest.approx(unbiased)
    assert cloud.entropy_rank == pytest.approx(values.entropy_rank)
    assert cloud.stable_rank == pytest.approx(1 / values.top)
    assert cloud.isotropy_gap == pytest.approx(isotropy_gap(z))
    assert cloud.isotropy_gap_unbiased == pytest.approx(isotropy_gap(z, unbiased=True))
    assert (cloud.attainable_rank, cloud.attainable_centred_rank) == (min(n, d), min(n - 1, d))


def test_centred_entropy_rank_is_that_of_numpys_covariance() -> None:
    z = rows(200, 8, offset=2.0)
    values = np.linalg.eigvalsh(np.cov(z.numpy().T, bias=True))
    shares = values / values.sum()
    expected = math.exp(-(shares * np.log(shares)).sum())
    assert cloud_of(moments(z)).centred_entropy_rank == pytest.approx(expected)


def test_batches_merge_exactly() -> None:
    z = rows(60, 8)
    merged = cloud_of(moments(z[:17]) + moments(z[17:]))
    whole = cloud_of(moments(z))
    assert merged.sigma_hat == pytest.approx(whole.sigma_hat, rel=1e-12)
    assert merged.isotropy_gap_unbiased == pytest.approx(whole.isotropy_gap_unbiased, rel=1e-9)
    assert merged.count == 60


def test_identical_rows_are_nothing_but_their_mean() -> None:
    cloud = cloud_of(moments(torch.ones(5, 3)))
    assert cloud.mean_share == pytest.approx(1)
    assert cloud.sigma_hat == pytest.approx(1)
    assert cloud.centred_entropy_rank == 0


def test_orthogonal_rows_estimate_an_infinite_participation_ratio() -> None:
    cloud = cloud_of(moments(torch.eye(4)))
    assert cloud.participation_ratio_unbiased == math.inf
    assert cloud.participation_ratio == pytest.approx(4)


def test_opposite_rows_have_no_mean() -> None:
    z = rows(20, 6)
    assert cloud_of(moments(torch.cat([z, -z]))).mean_share == pytest.approx(0, abs=1e-12)


def test_one_row_is_no_cloud() -> None:
    with pytest.raises(ShapeError, match="at least 2 rows, got 1"):
        cloud_of(moments(torch.ones(1, 3)))
