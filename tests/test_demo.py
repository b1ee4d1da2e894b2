import torch

from eigenbatch.demo import digit_views


def test_views_are_unit_rows_and_the_same_for_the_same_seed():
    first, second = digit_views()
    again, _ = digit_views()
    assert first.shape == second.shape == (256, 64)
    torch.testing.assert_close(first.norm(dim=1), torch.ones(256))
    assert torch.equal(first, again)


def test_a_view_is_closer_to_its_own_image_than_to_others():
    first, second = digit_views()
    cosines = first @ second.T
    assert cosines.diagonal().mean() > cosines.mean() + 0.2
