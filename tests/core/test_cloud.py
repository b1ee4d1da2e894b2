import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenbatch.core.cloud import cloud_of, compact
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.spectrum import Moments, isotropy_gap, moments, participation_ratio, spectrum
from eigenbatch.errors import ShapeError
from eigenbatch.monitor.measure import read_batch


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


@pytest.mark.parametrize(("n", "d"), [(2, 40), (10, 30), (29, 30), (30, 30), (31, 30), (90, 30)])
@pytest.mark.parametrize("offset", [0.0, 1.5])
def test_rows_are_summarised_as_their_moments_are(n: int, d: int, offset: float) -> None:
    z = 3 * rows(n, d, offset=offset)
    (*numbers, leading), (*expected, eigenvalues) = map(
        astuple, (cloud_of(z), cloud_of(moments(z)))
    )
    assert numbers == pytest.approx(expected, rel=1e-10)
    assert leading == pytest.approx(eigenvalues, abs=1e-12)
    assert cloud_of(compact(z), spectrum(z)) == cloud_of(compact(z))


def test_few_rows_pose_no_eigenproblem_larger_than_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    eigvalsh = torch.linalg.eigvalsh
    monkeypatch.setattr(
        torch.linalg, "eigvalsh", lambda gram: (sizes.append(len(gram)), eigvalsh(gram))[1]
    )
    cloud_of(rows(6, 50))
    assert sizes == [6, 6]


def test_moments_are_taken_once_there_are_as_many_rows_as_dimensions() -> None:
    assert isinstance(compact(rows(8, 8)), Moments)
    assert isinstance(compact(rows(7, 8)), Tensor)


def test_batches_merge_exactly() -> None:
    z = rows(60, 8)
    merged = cloud_of(moments(z[:17]) + moments(z[17:]))
    whole = cloud_of(moments(z))
    assert merged.sigma_hat == pytest.approx(whole.sigma_hat, rel=1e-12)
    assert merged.isotropy_gap_unbiased == pytest.approx(whole.isotropy_gap_unbiased, rel=1e-9)
    assert merged.count == 60


@pytest.mark.parametrize("d", [3, 7, 500])
def test_identical_rows_are_nothing_but_their_mean(d: int) -> None:
    cloud = cloud_of(torch.full((5, d), 0.7))
    assert cloud.mean_share == pytest.approx(1)
    assert cloud.sigma_hat == pytest.approx(1)
    assert cloud.centred_entropy_rank == 0


@pytest.mark.parametrize("n", [3, 4, 5])
def test_orthogonal_rows_estimate_an_infinite_participation_ratio(n: int) -> None:
    cloud = cloud_of(torch.eye(5)[:n])
    assert cloud.participation_ratio_unbiased == math.inf
    assert cloud.participation_ratio == pytest.approx(n)


def test_opposite_rows_have_no_mean() -> None:
    z = rows(20, 6)
    assert cloud_of(moments(torch.cat([z, -z]))).mean_share == pytest.approx(0, abs=1e-12)


def test_one_row_is_no_cloud() -> None:
    with pytest.raises(ShapeError, match="at least 2 rows, got 1"):
        cloud_of(moments(torch.ones(1, 3)))
    with pytest.raises(ShapeError, match="at least 2 rows, got 1"):
        cloud_of(torch.ones(1, 3))


@pytest.mark.parametrize("seed", range(3))
def test_positive_pairs_do_not_bias_the_corrected_gap(seed: int) -> None:
    n, d, cosine = 256, 512, 0.75
    generator = torch.Generator().manual_seed(seed)
    first, noise = normalize(torch.randn(2, n // 2, d, generator=generator).double(), dim=-1)
    noise = normalize(noise - (noise * first).sum(1, keepdim=True) * first)
    second = cosine * first + math.sqrt(1 - cosine**2) * noise
    z = torch.cat([first, second])
    left_out = cloud_of(z, positive_squares=n * cosine**2)
    independent = cloud_of(first)
    assert abs(left_out.isotropy_gap_unbiased) < 30  # the noise of one batch; the truth is zero
    assert abs(independent.isotropy_gap_unbiased) < 40
    assert cloud_of(z).isotropy_gap_unbiased > 100
    assert left_out.participation_ratio_unbiased == pytest.approx(d, rel=0.1)
    assert left_out.isotropy_gap == pytest.approx(isotropy_gap(z))


def test_a_reading_leaves_positive_pairs_out() -> None:
    z = rows(12, 5).view(2, 6, 5)
    cloud = read_batch(Contrast.paired(*z), 0.5)
    squares = (torch.cat([*z]) @ torch.cat([*z]).T).square()
    unrelated = ~(torch.eye(6, dtype=torch.bool).repeat(2, 2))
    assert cloud.participation_ratio_unbiased == pytest.approx(1 / squares[unrelated].mean().item())
