import math
from importlib import import_module

import pytest
import torch
from torch.nn.functional import cross_entropy

from clouds import KINDS, cloud
from eigenbatch import Contrast, infonce
from eigenbatch.core import decompose
from eigenbatch.errors import ParameterError
from layouts import LAYOUTS, brute_force, contrast

module = import_module("eigenbatch.core.infonce")  # the room's own name is the function

TAUS = (0.01, 0.1, 1.0, 10.0)


def masked_logits(c, anchors, tau):
    logits = anchors @ c.keys.T / tau
    keep = c.negatives.scatter(1, c.positive[:, None], True)
    return logits.masked_fill(~keep, -torch.inf)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tau", TAUS)
def test_loss_equals_cross_entropy(layout, tau):
    c = contrast(layout, "random", 6, 4)
    expected = cross_entropy(masked_logits(c, c.anchors, tau), c.positive, reduction="none")
    torch.testing.assert_close(infonce(c, tau).loss, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_anchor_gradients_match_autograd_on_detached_keys(layout, kind):
    c = contrast(layout, kind, 6, 4)
    anchors = c.anchors.clone().requires_grad_()
    loss = cross_entropy(masked_logits(c, anchors, 0.2), c.positive, reduction="sum")
    (expected,) = torch.autograd.grad(loss, anchors)
    values = infonce(c, 0.2)
    torch.testing.assert_close(values.gradients, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        values.squared_gradient, expected.square().sum(1), rtol=1e-9, atol=1e-20
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tau", TAUS)
def test_summaries_match_their_definitions(layout, tau):
    c = contrast(layout, "clustered", 5, 4)
    values = infonce(c, tau)
    for i in range(len(c.anchors)):
        b = brute_force(c, tau, i)
        q = b.negative_probabilities / b.negative_probabilities.sum()
        softmax_mean = b.positive_probability * b.positive + b.negative_probabilities @ b.negatives
        expected = {
            "positive_probability": b.positive_probability,
            "miss": b.negative_probabilities.sum(),
            "alignment": softmax_mean @ b.positive,
            "effective_negatives": 1 / q.square().sum(),
            "negative_mean_sqnorm": b.negatives.mean(0).square().sum(),
            "confusion": (q @ b.negatives) @ b.positive,
        }
        for name, value in expected.items():
            torch.testing.assert_close(
                getattr(values, name)[i], value, rtol=1e-9, atol=1e-15, msg=lambda m, n=name: n + m
            )


def test_miss_keeps_its_digits_where_one_minus_p_has_none():
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    values = infonce(Contrast.cross(z, z), 0.02)
    # The one negative is opposite: a = -2 / tau = -100.
    torch.testing.assert_close(values.miss, torch.full((2,), math.exp(-100), dtype=torch.float64))
    assert (1 - values.positive_probability == 0).all()


@pytest.mark.parametrize("tau", [0.005, 0.01, 0.07, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_overflows_in_narrow_dtypes(tau, dtype, kind):
    rows = cloud(kind, 16, 8).to(dtype)
    values = infonce(Contrast.paired(rows[:8], rows[8:]), tau)
    for name in ("loss", "miss", "alignment", "squared_gradient", "gradients"):
        assert getattr(values, name).isfinite().all(), name
    assert ((values.effective_negatives >= 0.999) & (values.effective_negatives <= 14.001)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_input_is_only_as_wrong_as_its_own_rounding(dtype):
    rows = cloud("random", 32, 8).to(dtype)
    narrow = infonce(Contrast.paired(rows[:16], rows[16:]), 0.1)
    wide = infonce(Contrast.paired(rows[:16].double(), rows[16:].double()), 0.1)
    torch.testing.assert_close(narrow.loss.double(), wide.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tau", [0.005, 0.02, 0.06, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetric_and_general_sums_agree(tau, dtype, monkeypatch):
    rows = cloud("clustered", 60, 8).to(dtype)
    c = Contrast.paired(rows[:30], rows[30:])
    fast = infonce(c, tau)
    monkeypatch.setattr(module, "_symmetric_sums", module._sums)
    general = infonce(c, tau)
    tight = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 0}
    torch.testing.assert_close(fast.loss, general.loss, **tight)
    torch.testing.assert_close(fast.effective_negatives, general.effective_negatives, **tight)
    torch.testing.assert_close(fast.softmax_mean, general.softmax_mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_blocks_do_not_change_the_result(layout, monkeypatch):
    c = contrast(layout, "random", 7, 4)
    whole = infonce(c, 0.1)
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 3 * len(c.candidates))
    blocked = infonce(c, 0.1)
    torch.testing.assert_close(blocked.loss, whole.loss, rtol=1e-14, atol=0)
    torch.testing.assert_close(blocked.gradients, whole.gradients, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_decomposition_is_an_identity_and_each_part_meets_its_definition(layout, kind):
    c, tau = contrast(layout, kind, 5, 4), 0.2
    parts = decompose(c, tau)
    torch.testing.assert_close(parts.total, tau * infonce(c, tau).gradients, rtol=1e-10, atol=1e-12)
    for i in range(len(c.anchors)):
        b = brute_force(c, tau, i)
        eps = b.negative_probabilities.sum()
        uneven = b.negative_probabilities / eps - 1 / c.negative_count
        for part, expected in (
            (parts.softmax_error[i], -eps * b.positive),
            (parts.sampling[i], eps * b.negatives.mean(0)),
            (parts.fluctuation[i], eps * (uneven @ b.negatives)),
        ):
            torch.testing.assert_close(part, expected, rtol=1e-9, atol=1e-12)


def test_autocast_does_not_reach_inside():
    rows = cloud("random", 32, 8).float()
    c = Contrast.paired(rows[:16], rows[16:])
    plain = infonce(c, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = infonce(c, 0.1)
    assert torch.equal(plain.loss, inside.loss)


def test_a_learned_temperature_may_be_a_tensor():
    c = contrast("cross", "random", 5, 4)
    tau = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    assert torch.equal(infonce(c, tau).loss, infonce(c, 0.1).loss)


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_outside_its_range_raises_with_its_value(tau):
    with pytest.raises(ParameterError, match=rf"tau must be a finite number above 0, got {tau}"):
        infonce(contrast("cross", "random", 5, 4), tau)
