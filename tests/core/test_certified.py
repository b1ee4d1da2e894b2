"""The certified band has no violations: ever."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clouds import KINDS, cloud
from eigenbatch import Contrast, gradient_band, infonce
from eigenbatch.errors import ParameterError
from layouts import LAYOUTS, brute_force, contrast

geometries = st.fixed_dictionaries(
    {
        "layout": st.sampled_from(LAYOUTS),
        "kind": st.sampled_from(KINDS),
        "pairs": st.integers(2, 10),
        "dim": st.integers(1, 20),
        "seed": st.integers(0, 10**6),
    }
)
temperatures = st.floats(0.01, 10)


@settings(max_examples=400)
@given(geometry=geometries, tau=temperatures, directions=st.integers(0, 3), single=st.booleans())
def test_every_gradient_lies_inside_the_band(geometry, tau, directions, single):
    c = contrast(**geometry)
    if single:
        c = Contrast.cross(c.anchors.float(), c.keys[c.positive].float())
    directions = min(directions, *c.candidates.shape)
    band = gradient_band(c, tau, directions=directions)
    assert (band.lower <= band.measured).all()
    assert (band.measured <= band.upper).all()
    assert band.contained.all()
    assert band.mean.lower <= band.mean.measured <= band.mean.upper


@settings(max_examples=150)
@given(geometry=geometries, tau=st.floats(0.005, 1), directions=st.integers(0, 2))
def test_a_float32_band_holds_the_gradient_in_exact_arithmetic(geometry, tau, directions):
    """Rounding of the logits, magnified by 1 / tau, is part of the certificate."""
    wide = contrast(**geometry)
    rows = {"anchors": wide.anchors.float(), "keys": wide.keys.float()}
    rest = {"positive": wide.positive, "itself": wide.itself, "first_negative": wide.first_negative}
    exact = Contrast(**{name: z.double() for name, z in rows.items()}, **rest)
    band = gradient_band(
        Contrast(**rows, **rest), tau, directions=min(directions, *wide.candidates.shape)
    )
    truth = infonce(exact, tau).squared_gradient
    assert (band.lower.double() <= truth).all()
    assert (truth <= band.upper.double()).all()


@settings(max_examples=150)
@given(geometry=geometries, tau=temperatures, directions=st.integers(0, 3))
def test_upper_band_is_the_formula_of_the_audit(geometry, tau, directions):
    """Brute force in numpy: weights, spectrum and projections straight from their definitions."""
    c = contrast(**geometry)
    directions = min(directions, *c.candidates.shape)
    band = gradient_band(c, tau, directions=directions)
    pool = c.candidates.numpy()
    values, vectors = np.linalg.eigh(pool.T @ pool)
    values, vectors = np.append(values[::-1].clip(0), 0.0), vectors[:, ::-1]
    for i in range(len(c.anchors)):
        b = brute_force(c, tau, i)
        eps = b.negative_probabilities.sum().item()
        if eps < 1e-280:
            continue
        q = (b.negative_probabilities / eps).numpy()
        negatives, positive = b.negatives.numpy(), b.positive.numpy()
        m = q @ negatives
        if directions == 0:
            ceiling = np.linalg.norm(negatives, 2) ** 2 * (q @ q)
        else:
            ceiling = min(
                ((m @ vectors[:, :k]) ** 2).sum() + values[k] * (q @ q)
                for k in range(directions + 1)
            )
        expected = (eps / tau) ** 2 * (1 - 2 * m @ positive + min(1, ceiling))
        np.testing.assert_allclose(
            band.upper[i].item(), expected, rtol=1e-8, atol=1e-8 * (eps / tau) ** 2
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_directions_never_widen_the_band(layout):
    c = contrast(layout, "anisotropic", 8, 6)
    bands = [gradient_band(c, 0.1, directions=k) for k in range(7)]
    for coarse, fine in pairwise(bands[1:]):
        assert (fine.upper <= coarse.upper * (1 + 1e-12)).all()
    for coarse, fine in pairwise(bands):
        assert (fine.lower >= coarse.lower * (1 - 1e-12)).all()


def test_without_directions_the_floor_is_the_papers():
    c = contrast("paired", "random", 8, 6)
    certified = gradient_band(c, 0.1, directions=0)
    paper = gradient_band(c, 0.1, method="theorem")
    torch.testing.assert_close(certified.lower, paper.lower, rtol=1e-12, atol=0)


def test_all_directions_leave_no_width():
    c = contrast("paired", "random", 8, 4)
    band = gradient_band(c, 0.1, directions=4)
    torch.testing.assert_close(band.lower, band.upper, rtol=1e-9, atol=0)


def test_the_band_is_far_tighter_than_the_papers_at_small_temperature():
    c = contrast("paired", "anisotropic", 64, 32)
    certified = gradient_band(c, 0.05).mean
    paper = gradient_band(c, 0.05, method="theorem").mean
    assert certified.upper < 4 * infonce(c, 0.05).miss.square().mean().item() / 0.05**2
    assert paper.upper > 1000 * certified.upper


@pytest.mark.parametrize("directions", [-1, 5])
def test_impossible_directions_raise(directions):
    with pytest.raises(ParameterError, match=r"directions must lie in 0\.\.4"):
        gradient_band(Contrast.cross(cloud("random", 6, 4), cloud("random", 6, 4)), 0.1,
                      directions=directions)  # fmt: skip
