import pytest
import torch

from clouds import cloud, unit
from eigenbatch import Contrast, infonce
from eigenbatch.errors import ParameterError
from eigenbatch.train.objectives import (
    AllNegatives,
    DistanceWeighted,
    MixedNegatives,
    nt_xent,
    queue_loss,
    supervised_contrastive,
)


def test_nt_xent_is_the_mean_loss_of_the_paired_contrast():
    z = unit(cloud("random", 12, 5))
    itself = torch.arange(12)
    expected = infonce(Contrast.paired(z[:6], z[6:]), 0.2).loss.mean()
    torch.testing.assert_close(nt_xent(z, z, itself, itself.roll(6), 0.2), expected)


def test_queue_loss_is_the_mean_loss_of_the_queued_contrast():
    q, k, queue = (unit(cloud("random", n, 5, seed=n)) for n in (6, 7, 30))
    k = k[:6]
    expected = infonce(Contrast.queued(q, k, queue), 0.2).loss.mean()
    torch.testing.assert_close(queue_loss(q, k, AllNegatives()(q, k, queue), 0.2), expected)


def test_supcon_with_a_label_for_each_image_is_nt_xent():
    z, itself = unit(cloud("random", 12, 5)), torch.arange(12)
    labels = torch.arange(6).repeat(2)
    torch.testing.assert_close(
        supervised_contrastive(z, z, itself, labels, labels, 0.2),
        nt_xent(z, z, itself, itself.roll(6), 0.2),
    )


def test_supcon_is_its_definition():
    z, itself = unit(cloud("random", 8, 5)), torch.arange(8)
    labels = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    losses = []
    for i in range(8):
        others = [j for j in range(8) if j != i]
        log_p = (z[others] @ z[i] / 0.2).log_softmax(0)
        same = [n for n, j in enumerate(others) if labels[j] == labels[i]]
        losses.append(-log_p[same].mean())
    torch.testing.assert_close(
        supervised_contrastive(z, z, itself, labels, labels, 0.2), torch.stack(losses).mean()
    )


def test_mixed_negatives_add_the_positive_mixed_with_the_hardest_keys():
    q, k, queue = (unit(cloud("random", n, 5, seed=n)) for n in (3, 4, 20))
    k = k[:3]
    cosines = MixedNegatives(count=2, ratio=0.3)(q, k, queue)
    assert cosines.shape == (3, 22)
    torch.testing.assert_close(cosines[:, :20], q @ queue.T)
    for i in range(3):
        hardest = (queue @ q[i]).topk(2).indices
        mixed = unit(0.3 * k[i] + 0.7 * queue[hardest])
        torch.testing.assert_close(cosines[i, 20:], mixed @ q[i])


def test_distance_weights_are_the_inverse_density_of_distances_on_the_sphere():
    """Uniform points on S^15: weighting by 1/density makes their distances uniform."""
    queue = unit(cloud("random", 200_000, 16))
    cosines = queue[:1] @ queue.T
    distance = (2 - 2 * cosines[0]).clamp(min=0).sqrt()
    weights = DistanceWeighted().weights(cosines, 16)[0]
    inside = (distance > 1.1) & (distance < 1.7)
    mass, _ = torch.histogram(distance[inside], bins=6, range=(1.1, 1.7), weight=weights[inside])
    assert (mass / mass.mean() - 1).abs().max() < 0.05


def test_no_key_outweighs_the_closest_distance():
    """Wu et al.'s cap: on the far side of the sphere the density vanishes as on the near one."""
    cosines = torch.tensor([[0.9, 0.5, 0.0, -0.5, -0.9, -0.999]])
    weights = DistanceWeighted().weights(cosines, 128)[0]
    assert weights[0] == weights.max() == 1
    assert weights[5] == 1
    assert weights[2] < 1e-10
    assert 1 > weights[1] > weights[2]


def test_distance_weighted_draws_distinct_keys_and_passes_gradients():
    q, queue = unit(cloud("random", 4, 8)).requires_grad_(), unit(cloud("random", 100, 8, seed=1))
    cosines = DistanceWeighted(count=30)(q, q, queue)
    assert cosines.shape == (4, 30)
    assert all(len(row.unique()) == 30 for row in cosines)
    cosines.sum().backward()
    assert q.grad.abs().sum() > 0
    assert DistanceWeighted(count=1000)(q, q, queue).shape == (4, 100)


@pytest.mark.parametrize(
    "make",
    [lambda: MixedNegatives(0), lambda: MixedNegatives(ratio=1), lambda: DistanceWeighted(0)],
)
def test_bad_values_raise(make):
    with pytest.raises(ParameterError, match="count must be at least 1"):
        make()
