"""Rounding never moves a gradient out of its certified band."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import eigenbatch.core.certified as module
from band_cases import DTYPES, Case, draw, outside, true_gradients
from clouds import cloud
from eigenbatch import Contrast, gradient_band, infonce
from eigenbatch.core.contrast import full_float32_products, row_error, unit_rows
from eigenbatch.core.infonce import SUM_LENGTH, summation_length
from eigenbatch.core.sums import anchor_sums

pytestmark = pytest.mark.slow
SMALL = {"rows": 24, "dim": 48, "queue": 2048}


def case(z1, z2, queue=None, *, layout="cross", tau=0.1, directions=1, dtype="float32"):
    rows = (z.to(DTYPES[dtype]) for z in (z1, z2, z1[:1] if queue is None else queue))
    return Case(layout, "given", dtype, tau, directions, *rows)


@pytest.mark.parametrize("directions", [0, 1, 3])
def test_a_constant_batch_has_a_band_around_zero(directions):
    """The one true value is 0; the upper end used to be -0.0067."""
    z = torch.ones(400, 5)
    band = gradient_band(Contrast.cross(z, z), 0.01, directions=directions).mean
    assert band.lower == 0
    assert 0 <= band.measured <= band.upper < 1e-8
    assert not outside(case(z, z, tau=0.01, directions=directions)).any()


def test_a_long_sum_of_nearly_equal_keys_stays_inside():
    """65,536 keys near one point; the upper end used to be a fifth below the true gradient."""
    g = torch.Generator().manual_seed(1)
    centre = normalize(torch.randn(1, 128, generator=g))
    queries, keys, queue = (
        centre + 0.01 * torch.randn(m, 128, generator=g) / 128**0.5 for m in (64, 64, 65_536)
    )
    batch = case(queries, keys, queue, layout="queued", tau=0.2)
    assert not outside(batch).any()
    mean = gradient_band(batch.contrast, 0.2).mean
    assert mean.upper - mean.lower < 1e-3 * true_gradients(batch).mean()


@pytest.mark.parametrize("start", range(0, 1200, 200))
def test_hostile_batches_of_every_dtype_and_layout_stay_inside(start):
    """`python -m benchmarks band_fuzz` in small."""
    found = {number: outside(draw(number, **SMALL)) for number in range(start, start + 200)}
    assert sum(len(one) for one in found.values()) > 1500
    assert [number for number, one in found.items() if one.any()] == []


def test_without_the_rounding_bounds_the_same_batches_find_violations(monkeypatch):
    monkeypatch.setattr(module, "_rounded", lambda count, unit: 0.0)
    monkeypatch.setattr(module, "row_error", lambda z: 0.0)
    wrong = dict.fromkeys(DTYPES, 0)
    for number in range(200):
        batch = draw(number, **SMALL)
        wrong[batch.dtype] += int(outside(batch).sum())
    assert all(wrong.values()), wrong


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tau", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("directions", [0, 1])
def test_two_pairs_in_one_dimension(dtype, tau, directions):
    for signs in ([1, 1], [1, -1], [-1, -1]):
        z, ones = torch.tensor(signs)[:, None], torch.ones(2, 1)
        for layout in ("paired", "cross", "queued", "queued_with_batch"):
            batch = case(z, ones, -ones, layout=layout, tau=tau, directions=directions, dtype=dtype)
            assert not outside(batch).any(), (layout, signs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_below_the_range_lies_between_zero_and_the_smallest_normal_number(dtype):
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=DTYPES[dtype])
    band = gradient_band(Contrast.cross(z, z), 0.001)  # gamma = 4e6 exp(-4000)
    tiny = torch.finfo(DTYPES[dtype]).tiny
    assert band.lower.tolist() == [0, 0]
    assert band.upper.tolist() == [tiny, tiny]
    assert band.mean.lower == 0 < band.mean.upper


def test_a_gradient_beyond_the_range_of_float32_has_an_infinite_upper_end():
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    band = gradient_band(Contrast.cross(z, -z), 1e-30)  # gamma = 4e60
    assert band.upper.tolist() == [math.inf, math.inf]
    assert band.lower.isfinite().all()
    assert band.mean.lower <= 4e60 <= band.mean.upper < 5e60


@pytest.mark.parametrize("kind", ["random", "clustered", "anisotropic"])
@pytest.mark.parametrize("tau", [0.02, 0.1, 1.0])
def test_an_ordinary_batch_is_never_summed_twice(kind, tau, monkeypatch):
    """The cost of a float32 band is that of float32 sums."""
    rows = cloud(kind, 512, 128).float()
    values = infonce(Contrast.paired(rows[:256], rows[256:]), tau)

    def forbidden(*_):
        raise AssertionError("summed again in float64")

    monkeypatch.setattr(module, "infonce", forbidden)
    facts = module.resolved(values)
    assert (facts.shortest >= (1 - module.RESOLUTION) * facts.longest).all()


def test_only_unresolved_anchors_are_summed_again(monkeypatch):
    """Half of the anchors have their positive and all close negatives at one point."""
    rows = cloud("random", 64, 32).float()
    queries, queue = rows[:32], rows[32:]
    queue[:16] = queries[:16] + 1e-5 * queue[:16]
    batch = case(queries, queries, queue, layout="queued", tau=0.01)
    sizes = []

    def counted(contrast, tau):
        sizes.append(len(contrast.anchors))
        return infonce(contrast, tau)

    monkeypatch.setattr(module, "infonce", counted)
    assert not outside(batch).any()
    assert set(sizes) == {16}


def test_reduced_float32_products_are_not_trusted():
    rows = cloud("random", 64, 32).float()
    batch = case(rows[:32], rows[32:])
    exact = module.resolved(infonce(batch.contrast, 0.1)).residual_error
    torch.set_float32_matmul_precision("medium")
    try:
        wide = module.resolved(infonce(batch.contrast, 0.1)).residual_error
        assert not outside(batch).any()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert (wide < exact / 2).all()


def test_products_are_not_trusted_where_torch_refuses_to_say(monkeypatch):
    """It raises once the precision was set for a single backend."""

    def refuse():
        raise RuntimeError("mix of the legacy and new APIs to set the matmul precision")

    assert full_float32_products()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert not full_float32_products()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [-30, 0, 30])
def test_unit_rows_are_as_close_to_the_exact_direction_as_they_say(dtype, exponent):
    exponent = max(-4, min(4, exponent)) if dtype == "float16" else exponent
    z = (cloud("anisotropic", 40, 300) * 10.0**exponent).to(DTYPES[dtype])
    exact = z.double().numpy().astype(np.longdouble)
    exact /= np.abs(exact).max(1, keepdims=True)
    exact /= np.sqrt((exact**2).sum(1, keepdims=True))
    rows = unit_rows(z)
    distance = np.sqrt(((rows.double().numpy() - exact) ** 2).sum(1))
    assert distance.max() <= row_error(rows)


def test_mixed_dtypes_are_normalised_in_the_wider_one():
    rows = cloud("random", 16, 300)
    mixed = Contrast.cross(rows[:8].float(), rows[8:])
    wide = Contrast.cross(rows[:8].float().double(), rows[8:])
    assert torch.equal(mixed.anchors, wide.anchors)


def test_sums_take_as_many_additions_as_they_say():
    """A part of SUM_LENGTH terms and six parts; for NT-Xent 80 rows in one part and four blocks."""
    queue = cloud("random", 5 * SUM_LENGTH + 7, 3).float()
    queued = Contrast.queued(queue[:2], queue[:2], queue)
    assert summation_length(queued) == SUM_LENGTH + 6
    paired = Contrast.paired(queue[:40], queue[40:80])
    assert summation_length(paired) == 80 + 1 + 4


def test_the_monitors_sums_contain_the_exact_mean_of_a_collapsed_batch():
    z = cloud("collapsed", 120, 16).float()
    batch = case(z[:60], z[60:], layout="paired", tau=0.05)
    sums = anchor_sums(batch.contrast, infonce(batch.contrast, 0.05))
    truth = true_gradients(batch).mean()
    total = sums + sums + sums
    for band in (sums.certified, total.certified):
        assert band.lower <= truth <= band.upper
        assert band.lower <= band.measured <= band.upper
