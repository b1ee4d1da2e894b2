import pytest
import torch
from torch import nn

from eigenbatch.errors import ParameterError
from eigenbatch.train.encoders.nets import ConvNet, projection_head, resnet18, resnet50


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("make", "features", "published"),
    [(resnet18, 512, 11_689_512), (resnet50, 2048, 25_557_032)],
    ids=["resnet18", "resnet50"],
)
def test_parameter_counts_are_the_published_ones_with_a_1000_way_head(make, features, published):
    encoder = make()
    assert encoder.features == features
    assert parameters(encoder) + parameters(nn.Linear(features, 1000)) == published


@pytest.mark.parametrize(
    ("encoder", "size"),
    [
        (resnet18("imagenet", width=4), 64),
        (resnet18("cifar", width=4), 32),
        (resnet50("cifar", width=4), 32),
        (ConvNet(widths=(4, 8, 8, 8)), 32),
    ],
    ids=["resnet18-imagenet", "resnet18-cifar", "resnet50-cifar", "convnet"],
)
def test_images_become_one_finite_vector_each(encoder, size):
    out = encoder(torch.rand(3, 3, size, size))
    assert out.shape == (3, encoder.features)
    assert out.isfinite().all()


def test_the_cifar_stem_keeps_four_times_the_resolution_of_the_imagenet_stem():
    x = torch.rand(1, 3, 32, 32)
    assert resnet18("cifar", width=4).stem(x).shape[-1] == 32
    assert resnet18("imagenet", width=4).stem(x).shape[-1] == 8


def test_digits_have_one_channel():
    assert ConvNet(1, (4, 4, 4, 4))(torch.rand(2, 1, 8, 8)).shape == (2, 4)


def test_the_head_is_the_papers_two_layers():
    head = projection_head(128)
    assert [tuple(layer.weight.shape) for layer in head if isinstance(layer, nn.Linear)] == [
        (128, 128),
        (128, 128),
    ]


def test_an_unknown_stem_is_refused():
    with pytest.raises(ParameterError, match="'mnist'"):
        resnet18("mnist")
