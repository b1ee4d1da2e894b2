import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clouds import KINDS, cloud, unit
from eigenbatch import leave_out_top_eigenvalues
from eigenbatch.core import negative_tops
from eigenbatch.core.downdate import eigenbasis, top_after_removal
from eigenbatch.errors import ShapeError
from layouts import LAYOUTS, contrast


def brute_force(z, positive):
    tops = []
    for i, j in enumerate(positive.tolist()):
        negatives = z[[k for k in range(len(z)) if k not in (i, j)]]
        gram = negatives.T @ negatives / len(negatives)
        tops.append(torch.linalg.eigvalsh(gram)[-1])
    return torch.stack(tops)


def partners(n, *, mutual, seed):
    if mutual:
        return torch.arange(n).roll(n // 2)
    step = torch.randint(1, n, (n,), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(n) + step) % n


@given(
    kind=st.sampled_from(KINDS),
    half=st.integers(2, 12),
    d=st.integers(1, 30),
    mutual=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_all_anchors_at_once_equal_brute_force(kind, half, d, mutual, seed):
    z = unit(cloud(kind, 2 * half, d, seed=seed))
    positive = partners(2 * half, mutual=mutual, seed=seed)
    torch.testing.assert_close(
        leave_out_top_eigenvalues(z, positive), brute_force(z, positive), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize(("n", "d"), [(256, 32), (32, 256), (4, 3), (4, 64)])
@pytest.mark.parametrize("kind", KINDS)
def test_larger_and_smallest_batches_equal_brute_force(kind, n, d):
    z = unit(cloud(kind, n, d))
    positive = torch.arange(n).roll(n // 2)
    torch.testing.assert_close(
        leave_out_top_eigenvalues(z, positive), brute_force(z, positive), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("multiplicity", [1, 2, 3, 4])
def test_ties_at_the_top_of_the_spectrum(multiplicity):
    """Axes 0..multiplicity-1 hold three rows each, the others one: exactly tied eigenvalues."""
    axes = [k for k in range(multiplicity) for _ in range(3)] + [5, 6, 7]
    z = torch.eye(8, dtype=torch.float64)[axes]
    positive = torch.arange(len(axes)).roll(1)
    torch.testing.assert_close(
        leave_out_top_eigenvalues(z, positive), brute_force(z, positive), rtol=1e-9, atol=0
    )


def test_near_collapse_keeps_nine_digits():
    g = torch.Generator().manual_seed(0)
    z = 1e-3 * torch.randn(64, 16, generator=g, dtype=torch.float64)
    z[:, 0] = 1
    z = unit(z)
    assert torch.linalg.eigvalsh(z.T @ z / 64)[-1] > 0.99998
    positive = torch.arange(64).roll(32)
    torch.testing.assert_close(
        leave_out_top_eigenvalues(z, positive), brute_force(z, positive), rtol=1e-9, atol=0
    )


def test_identical_rows_have_top_eigenvalue_one():
    z = cloud("random", 1, 5).repeat(6, 1)
    tops = leave_out_top_eigenvalues(z, torch.arange(6).roll(3))
    torch.testing.assert_close(tops, torch.ones(6, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [3, 40])
def test_negative_tops_equal_brute_force_in_every_layout(layout, kind, dim):
    c = contrast(layout, kind, 6, dim)
    expected = []
    for i in range(len(c.anchors)):
        negatives = c.keys[c.negatives[i]]
        expected.append(torch.linalg.eigvalsh(negatives.T @ negatives / len(negatives))[-1])
    torch.testing.assert_close(negative_tops(c), torch.stack(expected), rtol=1e-9, atol=0)


def test_a_device_without_float64_still_gets_what_its_precision_allows():
    z, positive = unit(cloud("anisotropic", 64, 16)), torch.arange(64).roll(32)
    tops = top_after_removal(eigenbasis(z.float()), (torch.arange(64), positive)) / 62
    torch.testing.assert_close(tops.double(), brute_force(z, positive), rtol=1e-4, atol=0)


def test_rows_are_normalised_on_entry():
    z, positive = cloud("random", 8, 3), torch.arange(8).roll(4)
    assert torch.equal(
        leave_out_top_eigenvalues(z, positive), leave_out_top_eigenvalues(4 * z, positive)
    )


@pytest.mark.parametrize(
    ("rows", "positive", "message"),
    [
        (2, torch.tensor([1, 0]), "at least 3"),
        (4, torch.tensor([1, 0, 3]), "must hold 4 integers"),
        (4, torch.tensor([1, 0, 3, 4]), "another row"),
        (4, torch.tensor([0, 1, 2, 3]), "another row"),
        (4, torch.tensor([1.0, 0.0, 3.0, 2.0]), "integers"),
    ],
)
def test_bad_partners_raise(rows, positive, message):
    with pytest.raises(ShapeError, match=message):
        leave_out_top_eigenvalues(cloud("random", rows, 3), positive)
