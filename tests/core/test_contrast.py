import pytest
import torch

from clouds import cloud, unit
from eigenbatch import Contrast
from eigenbatch.errors import RowError, ShapeError
from layouts import LAYOUTS, contrast


def test_paired_negatives_are_all_rows_but_self_and_positive():
    c = Contrast.paired(cloud("random", 3, 5), cloud("random", 3, 5, seed=1))
    expected = torch.tensor(
        [
            [0, 1, 1, 0, 1, 1],
            [1, 0, 1, 1, 0, 1],
            [1, 1, 0, 1, 1, 0],
            [0, 1, 1, 0, 1, 1],
            [1, 0, 1, 1, 0, 1],
            [1, 1, 0, 1, 1, 0],
        ],
        dtype=torch.bool,
    )
    assert torch.equal(c.negatives, expected)
    assert c.positive.tolist() == [3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [("paired", 2 * 6 - 2), ("cross", 5), ("queued", 11), ("queued_with_batch", 11 + 5)],
)
def test_negative_count_follows_from_the_layout(layout, expected):
    assert contrast(layout, "random", 6, 4).negative_count == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_negative_count_agrees_with_the_mask(layout):
    c = contrast(layout, "random", 6, 4)
    assert (c.negatives.sum(1) == c.negative_count).all()
    assert not c.negatives[torch.arange(len(c.anchors)), c.positive].any()


def test_queue_without_batch_negatives_excludes_every_key_of_the_batch():
    c = contrast("queued", "random", 6, 4)
    assert not c.negatives[:, :6].any()
    assert c.negatives[:, 6:].all()


def test_rows_are_normalised_and_a_second_time_changes_nothing():
    z1, z2 = cloud("random", 4, 7) * 1e3, cloud("random", 4, 7, seed=1) * 1e-3
    c = Contrast.paired(z1, z2)
    torch.testing.assert_close(c.keys, unit(torch.cat([z1, z2])), rtol=1e-14, atol=0)
    again = Contrast.paired(c.keys[:4], c.keys[4:])
    torch.testing.assert_close(again.keys, c.keys, rtol=1e-15, atol=0)


def test_rows_whose_squares_overflow_or_underflow_are_still_normalised():
    z = torch.tensor([[1e30, 1e30], [1e-30, 0.0], [3e38, 0.0]], dtype=torch.float32)
    c = Contrast.cross(z, z)
    torch.testing.assert_close(c.keys.norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_raises_and_is_named(value):
    z = cloud("random", 5, 3)
    z[3, 1] = value
    with pytest.raises(RowError, match="row 3 of z2 holds NaN or infinity"):
        Contrast.paired(cloud("random", 5, 3), z)


def test_a_zero_row_raises_and_is_named():
    queue = cloud("random", 5, 3)
    queue[2] = 0
    with pytest.raises(RowError, match="row 2 of queue is zero"):
        Contrast.queued(cloud("random", 4, 3), cloud("random", 4, 3), queue)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: Contrast.paired(z, z[:3]), r"z1 has shape \(4, 3\) but z2 has \(3, 3\)"),
        (lambda z: Contrast.paired(z[:1], z[:1]), "single pair has no negatives"),
        (lambda z: Contrast.cross(z[:1], z[:1]), "single pair has no negatives"),
        (lambda z: Contrast.paired(z[0], z[0]), r"must be a \(rows, d\) matrix"),
        (lambda z: Contrast.queued(z, z, z.T), r"pass queue\.T"),
        (lambda z: Contrast.queued(z, z, z[:0]), "queue has 0 rows"),
        (lambda z: Contrast.cross(z[:, :0], z[:, :0]), r"shape \(4, 0\)"),
    ],
)
def test_sizes_that_do_not_fit_raise_with_the_sizes(call, message):
    with pytest.raises(ShapeError, match=message):
        call(cloud("random", 4, 3))


def test_integer_embeddings_are_refused():
    with pytest.raises(ValueError, match=r"floating point, got torch\.int64"):
        Contrast.cross(torch.ones(4, 3, dtype=torch.int64), torch.ones(4, 3, dtype=torch.int64))


def test_the_contrast_keeps_no_autograd_graph():
    z = cloud("random", 4, 3).requires_grad_()
    assert not Contrast.paired(z, z * 2).keys.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_input_is_worked_on_in_float32(dtype):
    z = cloud("random", 4, 3).to(dtype)
    assert Contrast.paired(z, z).keys.dtype == torch.float32
