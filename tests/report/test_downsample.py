from itertools import pairwise

import numpy as np
import pytest

from eigenbatch.report.downsample import downsample


def test_a_single_spike_among_100_000_rows_survives_at_its_place():
    x = np.arange(100_000.0)
    value = np.sin(x / 1000)
    value[61_803], value[27_182] = 50.0, -50.0
    curve = downsample(x, value, buckets=150)
    assert len(curve.x) <= 150
    assert curve.high.max() == 50.0
    assert curve.low.min() == -50.0
    assert abs(curve.x[curve.high.argmax()] - 61_803) < 100_000 / 150
    assert abs(curve.x[curve.low.argmin()] - 27_182) < 100_000 / 150


def test_buckets_match_a_brute_force_grouping():
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(0, 1, 1000)) ** 3  # crowded at one end
    value = generator.normal(size=1000)
    curve = downsample(x, value, buckets=20)
    edges = np.linspace(x[0], x[-1], 21)
    groups = [np.flatnonzero((x >= a) & (x < b)) for a, b in pairwise(edges)]
    groups[-1] = np.append(groups[-1], 999)
    groups = [group for group in groups if len(group)]
    np.testing.assert_allclose(curve.mean, [value[group].mean() for group in groups])
    np.testing.assert_allclose(curve.x, [x[group].mean() for group in groups])
    np.testing.assert_array_equal(curve.low, [value[group].min() for group in groups])
    np.testing.assert_array_equal(curve.high, [value[group].max() for group in groups])


@pytest.mark.parametrize("rows", [0, 1, 150])
def test_a_short_series_stays_as_it_is(rows):
    x = np.arange(float(rows))
    curve = downsample(x, x**2, buckets=150)
    assert not curve.reduced
    np.testing.assert_array_equal(curve.mean, x**2)


def test_rows_of_one_step_make_one_point():
    curve = downsample(np.full(500, 7.0), np.arange(500.0), buckets=150)
    assert (curve.x.tolist(), curve.low.tolist(), curve.high.tolist()) == ([7], [0], [499])
