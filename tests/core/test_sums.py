import numpy as np
import pytest
import torch

from eigenbatch.core.bands import gradient_band, variance_band
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.spectrum import spectrum
from eigenbatch.core.sums import AnchorSums, anchor_sums

TAU = 0.2


def some_pairs(count: int = 20, d: int = 8) -> Contrast:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(count, d, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, count, d, generator=generator, dtype=torch.float64)
    return Contrast.paired(z + 0.5 * noise[0], z + 0.5 * noise[1])


def test_means_are_those_of_infonce() -> None:
    contrast = some_pairs()
    values = infonce(contrast, TAU)
    sums = anchor_sums(contrast, values)
    n = len(contrast.anchors)
    assert sums.anchors == n
    assert sums.loss / n == pytest.approx(values.loss.mean().item())
    assert sums.miss / n == pytest.approx(values.miss.mean().item())
    assert sums.squared_miss / n == pytest.approx(values.miss.square().mean().item())
    assert 1 - sums.shortfall / n == pytest.approx(values.alignment.mean().item())
    similarity = contrast.anchors @ contrast.keys.T
    assert sums.negative_similarity / n == pytest.approx(
        similarity[contrast.negatives].mean().item()
    )
    positive = similarity[torch.arange(n), contrast.positive]
    assert sums.positive_similarity / n == pytest.approx(positive.mean().item())


def test_certified_band_is_that_of_gradient_band() -> None:
    contrast = some_pairs()
    band = anchor_sums(contrast, infonce(contrast, TAU)).certified
    expected = gradient_band(contrast, TAU).mean
    assert band.lower == pytest.approx(expected.lower)
    assert band.measured == pytest.approx(expected.measured)
    assert band.upper == pytest.approx(expected.upper)


def test_paper_band_is_the_proxy_of_gradient_band() -> None:
    contrast = some_pairs()
    sums = anchor_sums(contrast, infonce(contrast, TAU))
    n = len(contrast.keys)
    band = sums.paper_band(n / (n - 2) * spectrum(contrast.keys).top, n - 2, TAU)
    expected = gradient_band(contrast, TAU, method="proxy").mean
    assert band.lower == pytest.approx(expected.lower)
    assert band.upper == pytest.approx(expected.upper)


def test_variance_band_is_the_papers_and_measures_as_numpy_does() -> None:
    contrast = some_pairs()
    values = infonce(contrast, TAU)
    expected = variance_band(contrast, TAU)
    band = anchor_sums(contrast, values).variance_band(expected.sigma, contrast.negative_count, TAU)
    assert band.bound == pytest.approx(expected.bound)
    assert band.measured == pytest.approx(np.var(values.squared_gradient.numpy()))


def test_parts_of_the_anchors_add_up_to_the_batch() -> None:
    whole = some_pairs()
    assert whole.itself is not None
    parts = [
        Contrast(
            anchors=whole.anchors[part],
            keys=whole.keys,
            positive=whole.positive[part],
            itself=whole.itself[part],
        )
        for part in (slice(0, 13), slice(13, None))
    ]
    first, second = (anchor_sums(part, infonce(part, TAU)) for part in parts)
    expected = anchor_sums(whole, infonce(whole, TAU))
    torch.testing.assert_close((first + second).vector(), expected.vector())


def test_a_vector_is_read_back_as_the_same_record() -> None:
    contrast = some_pairs()
    sums = anchor_sums(contrast, infonce(contrast, TAU))
    assert AnchorSums.from_vector(sums.vector()) == sums
