import math

import numpy as np
import pytest
import torch
from torch import nn

from eigenbatch.errors import ParameterError
from eigenbatch.train.lars import LARS
from eigenbatch.train.optimizers import AdamWConfig, LARSConfig, OptimizerConfig, SGDConfig
from eigenbatch.train.schedules import CosineConfig, FixedConfig, LinearConfig


def test_two_lars_steps_match_a_hand_computation():
    weight = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    optimizer = LARS([weight], lr=0.5, momentum=0.9, weight_decay=0.1, coefficient=0.02)
    w, m = np.array([3.0, 4.0]), np.zeros(2)
    for gradient in (np.array([0.6, -0.8]), np.array([1.0, 2.0])):
        weight.grad = torch.tensor(gradient[None])
        optimizer.step()
        g = gradient + 0.1 * w
        trust = 0.02 * np.linalg.norm(w) / np.linalg.norm(g)
        m = 0.9 * m + 0.5 * trust * g
        w = w - m
    np.testing.assert_allclose(weight.detach().numpy()[0], w, rtol=1e-14)


def test_excluded_groups_are_plain_momentum_sgd():
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2).double(), nn.Linear(3, 2).double()
    second.load_state_dict(first.state_dict())
    lars = LARSConfig(lr=0.1, weight_decay=0.1).build(first)
    sgd = torch.optim.SGD([second.bias], lr=0.1, momentum=0.9)
    for step in range(3):
        x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        target = first(x).detach() + 1
        for module, optimizer in ((first, lars), (second, sgd)):
            optimizer.zero_grad()
            (module.bias * target.mean(0)).sum().backward()
            optimizer.step()
    torch.testing.assert_close(first.bias, second.bias)


def test_zero_weights_and_zero_gradients_still_move_or_stay():
    zero = torch.zeros(2, 2, requires_grad=True)
    zero.grad = torch.ones(2, 2)
    LARS([zero], lr=0.1).step()
    torch.testing.assert_close(zero.detach(), torch.full((2, 2), -0.1))
    still = torch.ones(2, 2, requires_grad=True)
    still.grad = torch.zeros(2, 2)
    LARS([still], lr=0.1).step()
    assert torch.equal(still.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("kind", [AdamWConfig, SGDConfig, LARSConfig])
def test_biases_and_norms_get_no_decay_and_every_parameter_is_in_one_group(kind):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    decayed, excluded = kind(weight_decay=0.1).build(module).param_groups
    assert [p.ndim for p in decayed["params"]] == [4, 2]
    assert [p.ndim for p in excluded["params"]] == [1] * 4
    assert decayed["weight_decay"] == 0.1
    assert excluded["weight_decay"] == 0


def rates(schedule, steps_per_epoch=4, epochs=3):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = schedule.build(optimizer, steps_per_epoch=steps_per_epoch, epochs=epochs)
    found = []
    for _ in range(steps_per_epoch * epochs + 1):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_the_learning_rate_rises_linearly_and_falls_by_half_a_cosine():
    found = rates(CosineConfig(warmup_epochs=1))
    assert found[:4] == [0.5, 1.0, 1.5, 2.0]
    assert found[4:] == pytest.approx([1 + math.cos(math.pi * i / 8) for i in range(9)])


def test_a_fixed_rate_stays_and_a_linear_one_falls_to_zero():
    assert rates(FixedConfig()) == [2.0] * 13
    assert rates(FixedConfig(warmup_epochs=1))[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates(LinearConfig()) == pytest.approx([2 - i / 6 for i in range(13)])


def test_bad_values_raise_and_are_named():
    p = [torch.zeros(1, requires_grad=True)]
    with pytest.raises(ParameterError, match=r"lr must not be negative, got -1"):
        LARS(p, lr=-1)
    with pytest.raises(ParameterError, match="coefficient"):
        LARS(p, lr=1, coefficient=0)
    with pytest.raises(ParameterError, match="weight_decay must be a number"):
        OptimizerConfig(weight_decay=-1.0)
