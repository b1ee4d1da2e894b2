"""Encoders and projection heads. Any `nn.Module` from images to vectors can be used instead.

Letters: b images, c channels, h x w pixels, f features.
"""

import torch
from torch import Tensor, nn

from eigenbatch.errors import ParameterError
from eigenbatch.train.encoders import Inputs, Stem


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut (ResNet-18); torchvision's parameter names."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv3(channels, width, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv3(width, width, 1), nn.BatchNorm2d(width)
        self.downsample = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, h, w) -> (b, width, h / stride, w / stride)."""
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out))
        return _joined(out, x, self.downsample)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions around a shortcut (ResNet-50, stride on the 3 x 3)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv3(width, width, stride), nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _shortcut(channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(b, channels, h, w) -> (b, 4 width, h / stride, w / stride)."""
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out)).relu_()
        out = self.bn3(self.conv3(out))
        return _joined(out, x, self.downsample)


class ResNet(nn.Module):
    """He et al.'s residual network up to the pooled features; `features` is their number.

    Parameters have torchvision's names and shapes, so that weights travel both ways; there is no
    `fc` layer.

    Args:
        block: BasicBlock or Bottleneck.
        depths: blocks per stage.
        stem: "imagenet" is 7 x 7 with stride 2 and pooling, "cifar" one 3 x 3 for small images.
        width: channels of the first stage.
        channels: of the images.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        *,
        stem: Stem = "imagenet",
        width: int = 64,
        channels: int = 3,
    ) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1: nn.Module = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1)
        elif stem == "cifar":
            self.conv1, self.maxpool = _conv3(channels, width, 1), nn.Identity()
        else:
            raise ParameterError(f'stem must be "imagenet" or "cifar", got {stem!r}')
        self.bn1 = nn.BatchNorm2d(width)
        channels = width
        for stage, depth in enumerate(depths):
            blocks: list[nn.Module] = []
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(channels, width * 2**stage, stride))
                channels = width * 2**stage * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.features = channels
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(b, 3, h, w) -> (b, f): features averaged over the picture."""
        out: Tensor = self.maxpool(self.bn1(self.conv1(x)).relu_())
        for stage in range(1, 5):
            out = getattr(self, f"layer{stage}")(out)
        return out.mean((2, 3))


def resnet18(stem: Stem = "imagenet", *, width: int = 64, channels: int = 3) -> ResNet:
    """ResNet-18: 512 features at the usual width."""
    return ResNet(BasicBlock, (2, 2, 2, 2), stem=stem, width=width, channels=channels)


def resnet50(stem: Stem = "imagenet", *, width: int = 64, channels: int = 3) -> ResNet:
    """ResNet-50: 2048 features at the usual width."""
    return ResNet(Bottleneck, (3, 4, 6, 3), stem=stem, width=width, channels=channels)


class ConvNet(nn.Module):
    """Four strided convolutions, for CPUs and small images; `features` is the last width."""

    def __init__(
        self, channels: int = 3, widths: tuple[int, int, int, int] = (32, 64, 128, 128)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, width in enumerate(widths):
            layers += [_conv3(channels, width, 1 if i == 0 else 2), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(inplace=True))
            channels = width
        self.layers = nn.Sequential(*layers)
        self.features = channels
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) -> (b, f)."""
        features: Tensor = self.layers(x)
        return features.mean((2, 3))


def projection_head(features: int, hidden: int = 128, out: int = 128) -> nn.Sequential:
    """The paper's two-layer MLP: features -> hidden -> out."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))


@torch.no_grad()
def with_features(encoder: object, inputs: Inputs) -> nn.Module:
    """A user's encoder with its attribute `features`, measured with blank images if it has none."""
    if not isinstance(encoder, nn.Module):
        raise ParameterError(f"an encoder must be a torch.nn.Module, got {type(encoder).__name__}")
    if not isinstance(getattr(encoder, "features", None), int):
        blank = torch.zeros(2, inputs.channels, inputs.size, inputs.size)
        training = encoder.training
        out = encoder.eval()(blank)
        encoder.train(training)
        if not isinstance(out, Tensor) or out.ndim != 2:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ParameterError(f"an encoder must return (batch, features), got {shape}")
        encoder.features = out.shape[1]  # type: ignore[assignment]
    return encoder


def _conv3(channels: int, width: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, stride, 1, bias=False)


def _shortcut(channels: int, width: int, stride: int) -> nn.Module | None:
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))


def _joined(out: Tensor, x: Tensor, downsample: nn.Module | None) -> Tensor:
    """What the block computed plus its shortcut."""
    return (out + (x if downsample is None else downsample(x))).relu()


def _initialise(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
