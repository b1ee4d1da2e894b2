import math

import numpy as np
import pytest
import torch

from clouds import cloud
from eigenbatch import Contrast, gradient_band, infonce, spectrum
from eigenbatch.core import QueueSample, negative_tops, sampling_inflation, subgaussian_radius
from eigenbatch.errors import ParameterError
from layouts import LAYOUTS, brute_force, contrast

PAPER = ("theorem", "proxy", "queue")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling", ["independent", "empirical"])
def test_theorem_terms_are_the_printed_ones(layout, sampling):
    c, tau, smoothness = contrast(layout, "random", 6, 4), 0.3, 0.5
    band = gradient_band(c, tau, method="theorem", smoothness=smoothness, sampling=sampling)
    for i in range(len(c.anchors)):
        b = brute_force(c, tau, i)
        eps2 = b.negative_probabilities.sum().item() ** 2
        sigma = np.linalg.norm(b.negatives.numpy(), 2) ** 2 / len(b.negatives)
        noise = (
            1 / len(b.negatives)
            if sampling == "independent"
            else np.linalg.norm(b.negatives.mean(0).numpy()) ** 2
        )
        expected = {
            "softmax_error": 3 * eps2 / tau**2,
            "sampling": 3 * eps2 * noise / tau**2,
            "spectral": 3 * eps2 * sigma / tau**4,
            "remainder": 3 * smoothness * eps2 * sigma**2 / tau**6,
        }
        for name, value in expected.items():
            assert band.terms[name][i].item() == pytest.approx(value, rel=1e-10), name
        mean = b.positive_probability * b.positive + b.negative_probabilities @ b.negatives
        floor = (1 - (mean @ b.positive).item()) ** 2 / tau**2
        assert band.lower[i].item() == pytest.approx(floor, rel=1e-8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["certified", *PAPER])
def test_terms_sum_to_the_upper_band_and_measured_is_the_squared_gradient(layout, method):
    c = contrast(layout, "clustered", 6, 4)
    band = gradient_band(c, 0.2, method=method)
    torch.testing.assert_close(sum(band.terms.values()), band.upper, rtol=1e-13, atol=0)
    torch.testing.assert_close(band.measured, infonce(c, 0.2).squared_gradient, rtol=1e-12, atol=0)
    assert band.mean.measured == pytest.approx(band.measured.mean().item(), rel=1e-12)
    assert band.mean.upper == pytest.approx(band.upper.mean().item(), rel=1e-12)


def test_batch_floor_of_the_paper_is_jensens():
    c, tau = contrast("paired", "random", 8, 4), 0.2
    band = gradient_band(c, tau, method="proxy")
    rho = infonce(c, tau).alignment.mean().item()
    assert band.mean.lower == pytest.approx((1 - rho) ** 2 / tau**2, rel=1e-10)
    assert band.mean.lower <= band.lower.mean().item()


def test_proxy_replaces_sigma_star_by_n_over_n_minus_2_sigma_hat():
    c, tau = contrast("paired", "anisotropic", 8, 4), 0.2
    n, sigma_hat = 16, spectrum(c.keys).top
    band = gradient_band(c, tau, method="proxy")
    eps2 = infonce(c, tau).miss.square().mean().item()
    proxy = n / (n - 2) * sigma_hat
    expected = (
        3 / tau**2 * (eps2 + eps2 / (n - 2))
        + 3 * eps2 / tau**4 * proxy
        + 1.5 * eps2 / tau**6 * proxy**2
    )
    assert band.mean.upper == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_proxy_never_undercuts_the_exact_spectrum(layout):
    c = contrast(layout, "clustered", 8, 4)
    exact = gradient_band(c, 0.2, method="theorem")
    proxy = gradient_band(c, 0.2, method="proxy")
    assert (proxy.upper >= exact.upper * (1 - 1e-12)).all()


def test_fourth_moment_form_divides_the_remainder_by_the_negative_count():
    c = contrast("paired", "random", 8, 4)
    printed = gradient_band(c, 0.2, method="theorem", smoothness=1.0)
    refined = gradient_band(c, 0.2, method="theorem", fourth_moment=3.0)
    torch.testing.assert_close(
        refined.terms["remainder"], printed.terms["remainder"] * 3 / 14, rtol=1e-12, atol=0
    )


def test_bounded_spectrum_replaces_sigma_star():
    c = contrast("paired", "random", 8, 4)
    bounded = gradient_band(c, 0.2, method="theorem", max_spectrum=0.9)
    force = 3 * infonce(c, 0.2).miss.square() / 0.2**2
    torch.testing.assert_close(bounded.terms["spectral"], force * 0.9 / 0.2**2)


def test_a_bound_below_the_spectrum_is_refused():
    c = contrast("paired", "random", 8, 4)
    largest = negative_tops(c).max().item()
    with pytest.raises(ParameterError, match="is no bound"):
        gradient_band(c, 0.2, method="theorem", max_spectrum=largest * 0.99)


def test_queue_method_adds_the_concentration_radius_to_the_sampled_top():
    rows = cloud("anisotropic", 600, 5)
    c = Contrast.queued(rows[:8], rows[8:16], rows[16:])
    settings = QueueSample(size=128, delta=0.01, kappa=0.5, constant=2.0)
    generator = torch.Generator().manual_seed(3)
    band = gradient_band(c, 0.2, method="queue", queue=settings, generator=generator)
    chosen = torch.randperm(584, generator=torch.Generator().manual_seed(3))[:128]
    sampled = spectrum(rows[16:][chosen])
    radius = subgaussian_radius(128, 1 / sampled.top, delta=0.01, kappa=0.5, constant=2.0)
    sigma = min(1, sampled.top + radius)
    force = 3 * infonce(c, 0.2).miss.square() / 0.2**2
    torch.testing.assert_close(band.terms["spectral"], force * sigma / 0.2**2, rtol=1e-10, atol=0)


def test_queue_ceiling_never_exceeds_one():
    c = contrast("queued", "random", 6, 4)
    band = gradient_band(c, 0.2, method="queue", queue=QueueSample(size=4))
    force = 3 * infonce(c, 0.2).miss.square() / 0.2**2
    torch.testing.assert_close(band.terms["spectral"], force / 0.2**2, rtol=1e-10, atol=0)


def test_the_printed_theorem_fails_when_all_negatives_oppose_the_positive_at_large_temperature():
    """Why "certified" exists: at tau = 3 the printed ceiling lies below the gradient."""
    z = torch.zeros(8, 2, dtype=torch.float64)
    z[:, 0], z[0, 0] = -1, 1
    keys = z.clone()
    c = Contrast.queued(z[:1], keys[:1], keys[1:])
    printed = gradient_band(c, 3.0, method="theorem", smoothness=0.0)
    assert not printed.contained.all()
    assert gradient_band(c, 3.0).contained.all()


def test_correlated_negatives_inflate_the_mean_as_the_lemma_says():
    z = cloud("clustered", 40, 6)
    z = z / z.norm(dim=1, keepdim=True)
    cosines = z @ z.T
    n = len(z)
    correlation = ((cosines.sum() - n) / (n * (n - 1))).item()
    assert z.mean(0).square().sum().item() == pytest.approx(
        sampling_inflation(n, correlation) / n, rel=1e-10
    )
    assert sampling_inflation(100, 0.0) == 1.0


def test_an_impossible_correlation_is_refused():
    with pytest.raises(ParameterError, match=r"correlation -0\.5: no 10 unit rows"):
        sampling_inflation(10, -0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "exact"}, "method must be one of"),
        ({"sampling": "none"}, "sampling must be one of"),
        ({"max_spectrum": 0.5}, "max_spectrum belongs to"),
        ({"method": "theorem", "smoothness": -1.0}, "must not be negative"),
        ({"method": "theorem", "smoothness": math.nan}, "must not be negative"),
    ],
)
def test_bad_options_raise_with_their_values(options, message):
    with pytest.raises(ParameterError, match=message):
        gradient_band(contrast("paired", "random", 6, 4), 0.1, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["certified", *PAPER])
def test_narrow_input_gives_finite_bands_that_hold(dtype, method):
    rows = cloud("random", 32, 8).to(dtype)
    band = gradient_band(Contrast.paired(rows[:16], rows[16:]), 0.1, method=method)
    assert band.upper.isfinite().all()
    assert band.contained.all()


def test_a_sample_of_no_keys_is_refused():
    with pytest.raises(ParameterError, match=r"QueueSample\.size must be at least 1, got 0"):
        QueueSample(size=0)
