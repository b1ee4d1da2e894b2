from itertools import pairwise

import numpy as np
import pytest

from eigenbatch.report.downsample import downsample, over_runs


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
    np.testing.assert_allclose(curve.middle, [value[group].mean() for group in groups])
    np.testing.assert_allclose(curve.x, [x[group].mean() for group in groups])
    np.testing.assert_array_equal(curve.low, [value[group].min() for group in groups])
    np.testing.assert_array_equal(curve.high, [value[group].max() for group in groups])


@pytest.mark.parametrize("rows", [0, 1, 150])
def test_a_short_series_stays_as_it_is(rows):
    x = np.arange(float(rows))
    curve = downsample(x, x**2, buckets=150)
    assert not curve.reduced
    np.testing.assert_array_equal(curve.middle, x**2)


def test_rows_of_one_step_make_one_point():
    curve = downsample(np.full(500, 7.0), np.arange(500.0), buckets=150)
    assert (curve.x.tolist(), curve.low.tolist(), curve.high.tolist()) == ([7], [0], [499])


def test_runs_are_joined_to_their_median_between_lowest_and_highest():
    steps = np.array([0.0, 10.0, 20.0])
    values = ([1, 2, 3], [3, 2, 1], [9, 9, 9])
    short = downsample(np.array([0.0, 10.0]), np.array([0.0, 0.0]))  # ended early
    runs = [downsample(steps, np.array(row, dtype=float)) for row in values]
    joined = over_runs([*runs, short])
    np.testing.assert_array_equal(joined.x, steps)
    np.testing.assert_array_equal(joined.middle, [2.0, 2.0, 3.0])
    np.testing.assert_array_equal(joined.low, [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(joined.high, [9.0, 9.0, 9.0])


def test_steps_that_no_run_covers_are_left_out():
    early, late = (downsample(first + np.arange(120.0), np.ones(120)) for first in (0, 5000))
    joined = over_runs([early, late])
    assert np.isfinite(joined.middle).all()
    assert not ((joined.x > 119) & (joined.x < 5000)).any()


def test_a_spike_of_one_run_stays_in_the_shade_of_all():
    steps = np.arange(1000.0)
    spike = np.where(steps == 503, 100.0, 1.0)
    joined = over_runs([downsample(steps, spike), downsample(steps, np.ones(1000))])
    assert len(joined.x) <= 150
    assert joined.high.max() > 90
