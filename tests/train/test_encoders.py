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
    for stem, side in (("cifar", 32), ("imagenet", 8)):
        encoder = resnet18(stem, width=4)
        assert encoder.maxpool(encoder.conv1(x)).shape[-1] == side


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


def torchvision_names(blocks, depths, convolutions):
    """Names of torchvision's ResNet without `fc`, written down from its published checkpoints."""
    names = ["conv1.weight"] + [f"bn1.{part}" for part in PARTS]
    for stage, depth in enumerate(depths, start=1):
        for block in range(depth):
            for number in range(1, convolutions + 1):
                names.append(f"layer{stage}.{block}.conv{number}.weight")
                names += [f"layer{stage}.{block}.bn{number}.{part}" for part in PARTS]
            if block == 0 and (stage > 1 or blocks == "bottleneck"):
                names.append(f"layer{stage}.0.downsample.0.weight")
                names += [f"layer{stage}.0.downsample.1.{part}" for part in PARTS]
    return names


PARTS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize(
    ("make", "blocks", "depths", "convolutions", "shapes"),
    [
        (resnet18, "basic", (2, 2, 2, 2), 2,
         {"conv1.weight": (64, 3, 7, 7), "layer4.1.conv2.weight": (512, 512, 3, 3),
          "layer2.0.downsample.0.weight": (128, 64, 1, 1)}),
        (resnet50, "bottleneck", (3, 4, 6, 3), 3,
         {"layer1.0.downsample.0.weight": (256, 64, 1, 1),
          "layer4.2.conv3.weight": (2048, 512, 1, 1), "layer3.5.conv2.weight": (256, 256, 3, 3)}),
    ],
    ids=["resnet18", "resnet50"],
)  # fmt: skip
def test_weights_travel_to_and_from_torchvision(make, blocks, depths, convolutions, shapes):
    state = make().state_dict()
    assert list(state) == torchvision_names(blocks, depths, convolutions)
    for name, shape in shapes.items():
        assert tuple(state[name].shape) == shape
