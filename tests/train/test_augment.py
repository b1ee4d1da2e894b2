import pytest
import torch

from eigenbatch.errors import ParameterError
from eigenbatch.train.augment import Views


def images(n=8, c=3, size=32):
    return torch.randint(0, 256, (n, c, size, size), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(0))  # fmt: skip


@pytest.mark.parametrize(("colour", "channels"), [(True, 3), (False, 1)])
def test_two_different_views_of_the_size_asked_for(colour, channels):
    first, second = Views(24, colour=colour)(images(c=channels))
    assert first.shape == second.shape == (8, channels, 24, 24)
    assert first.isfinite().all()
    assert not torch.equal(first, second)


def test_each_image_is_augmented_on_its_own():
    same = images(1).expand(8, -1, -1, -1)
    first, _ = Views(32)(same)
    assert not torch.allclose(first[0], first[1])


def test_the_same_random_state_gives_the_same_views():
    views = Views(32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = views(images())
        torch.manual_seed(1)
        again = views(images())
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])


def test_strength_scales_the_jitter():
    """Mean colour of a flat grey picture moves in proportion to brightness jitter."""
    grey = torch.full((256, 3, 16, 16), 100, dtype=torch.uint8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        spread = [Views(16, strength=s)(grey)[0].mean((1, 2, 3)).std().item() for s in (0.5, 1.5)]
    assert spread[1] > 2 * spread[0]
    flat = Views(16, strength=0)(grey)[0]
    torch.testing.assert_close(flat, torch.full_like(flat, (100 / 255 - 0.5) / 0.25))


def test_undistorted_images_are_only_scaled_and_normalised():
    batch = images(size=16)
    expected = (batch.float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(Views(16).undistorted(batch), expected)


def test_a_negative_strength_is_refused():
    with pytest.raises(ParameterError, match="-1"):
        Views(16, strength=-1)
