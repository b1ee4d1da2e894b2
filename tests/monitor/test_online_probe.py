"""Predicted before it is learnt from: random labels stay at chance, real ones do not."""

import pytest
import torch

from eigenbatch.errors import ParameterError, ShapeError
from eigenbatch.monitor import OnlineProbe


def batches(count, *, noise, classes=5, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    for _ in range(count):
        labels = torch.randint(classes, (40,), generator=generator)
        yield centres[labels] + noise * torch.randn(40, dim, generator=generator), labels


def judged(probe, stream):
    values = [probe(z, labels) for z, labels in stream]
    assert values[0] == {}
    return values[-1]


def test_classes_that_are_apart_are_told_apart():
    values = judged(OnlineProbe(5), batches(60, noise=0.3))
    assert min(values.values()) > 0.95


def test_labels_that_say_nothing_stay_at_chance():
    stream = ((torch.randn_like(z), labels) for z, labels in batches(60, noise=0.3))
    values = judged(OnlineProbe(5), stream)
    assert max(values.values()) < 0.3


def test_the_linear_classifier_makes_the_step_of_autograd():
    (z, labels), *_ = batches(1, noise=1.0)
    probe = OnlineProbe(5)
    probe(z, labels)
    rows = torch.nn.functional.normalize(z) * 4
    weight = torch.zeros(5, 17, requires_grad=True)
    logits = torch.cat([rows, torch.ones(40, 1)], 1) @ weight.T
    torch.nn.functional.cross_entropy(logits, labels).backward()
    torch.testing.assert_close(probe.state_dict()["weight"], -0.1 * weight.grad)


def test_memory_and_window_are_bounded_and_a_restored_probe_agrees():
    probe = OnlineProbe(5, memory=100, window=3)
    judged(probe, batches(10, noise=1.0))
    state = probe.state_dict()
    assert (len(state["rows"]), len(state["labels"]), len(state["right"])) == (100, 100, 6)
    other = OnlineProbe(5, memory=100, window=3)
    other.load_state_dict(state)
    for z, labels in batches(3, noise=1.0, seed=1):
        assert probe(z, labels) == other(z, labels)


def test_your_model_gets_no_gradient_and_is_not_changed():
    z = torch.randn(40, 16, requires_grad=True)
    OnlineProbe(5)(z, torch.arange(40) % 5)
    assert z.grad is None


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.full((40,), 5), ParameterError, r"0 \.\.\. 4, got 5"),
        (torch.arange(39) % 5, ShapeError, r"40 whole numbers, got torch.int64 of shape \(39,\)"),
        (torch.rand(40), ShapeError, "got torch.float32"),
    ],
)
def test_bad_labels_are_named(labels, error, message):
    with pytest.raises(error, match=message):
        OnlineProbe(5)(torch.randn(40, 16), labels)


def test_other_widths_and_states_are_refused():
    probe = OnlineProbe(5)
    probe(torch.randn(40, 16), torch.arange(40) % 5)
    with pytest.raises(ShapeError, match="8 columns, earlier ones 16"):
        probe(torch.randn(40, 8), torch.arange(40) % 5)
    with pytest.raises(ParameterError, match="5 classes, this probe of 3"):
        OnlineProbe(3).load_state_dict(probe.state_dict())
