"""Encoders and their settings: any `nn.Module` from inputs to vectors will do.

The settings load no torch; the modules are in `nets.py` and `text.py`.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from eigenbatch.errors import ParameterError
from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from torch import nn

Stem = Literal["imagenet", "cifar"]
Width = Annotated[int, Range(1, 2048)]


class Inputs(NamedTuple):
    """What an encoder takes: images of so many channels and pixels, or words of a vocabulary."""

    channels: int = 3
    size: int = 32
    vocabulary: int = 0


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """Base of all encoder settings."""

    words: ClassVar[bool] = False  # whether it reads sentences, not images

    def build(self, inputs: Inputs) -> "nn.Module":
        """A new encoder; its attribute `features` is the length of its output."""
        raise AssertionError("an encoder defines how it is built")


@dataclass(frozen=True, kw_only=True)
class ConvNetConfig(EncoderConfig, name="convnet"):
    """Four convolutions of width, 2 width, 4 width, 4 width; for CPUs and small images."""

    width: Width = 32

    def build(self, inputs: Inputs) -> "nn.Module":
        """A `ConvNet`."""
        from eigenbatch.train.encoders.nets import ConvNet

        w = self.width
        return ConvNet(inputs.channels, (w, 2 * w, 4 * w, 4 * w))


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(EncoderConfig):
    """Settings that all ResNets share."""

    stem: Stem = "cifar"
    width: Width = 64

    def check(self) -> None:
        """Narrow 1 x 1 convolutions are refused."""
        if self.width % 8:
            raise ParameterError(
                f"width must be a multiple of 8 for {self.kind}, got {self.width}: oneDNN's "
                "kernels for narrower 1 x 1 convolutions can hang"
            )


@dataclass(frozen=True, kw_only=True)
class ResNet18Config(ResNetConfig, name="resnet18"):
    """ResNet-18."""

    def build(self, inputs: Inputs) -> "nn.Module":
        """A ResNet-18."""
        from eigenbatch.train.encoders.nets import resnet18

        return resnet18(self.stem, width=self.width, channels=inputs.channels)


@dataclass(frozen=True, kw_only=True)
class ResNet50Config(ResNetConfig, name="resnet50"):
    """ResNet-50."""

    def build(self, inputs: Inputs) -> "nn.Module":
        """A ResNet-50."""
        from eigenbatch.train.encoders.nets import resnet50

        return resnet50(self.stem, width=self.width, channels=inputs.channels)


@dataclass(frozen=True, kw_only=True)
class WordBagConfig(EncoderConfig, name="wordbag"):
    """Mean of word embeddings and a residual MLP, for sentences.

    Args:
        width: dimension of the word embeddings and of the output.
    """

    words: ClassVar[bool] = True

    width: Width = 128

    def build(self, inputs: Inputs) -> "nn.Module":
        """A `WordBag`."""
        from eigenbatch.train.encoders.text import WordBag

        if not inputs.vocabulary:
            raise ParameterError("encoder wordbag reads sentences: set data=pairs")
        return WordBag(inputs.vocabulary, self.width)


@dataclass(frozen=True, kw_only=True)
class FunctionConfig(EncoderConfig, name="function"):
    """Your own encoder: a function or class without arguments that returns a module.

    Args:
        function: where it is, as package.module:function.
    """

    function: str = ""

    def check(self) -> None:
        """The place must be written as package.module:function."""
        module, _, name = self.function.partition(":")
        if self.function and not (module and name):
            raise ParameterError(
                f"function must be written as package.module:function, got {self.function!r}"
            )

    def build(self, inputs: Inputs) -> "nn.Module":
        """Call the function; the length of the output is measured with one blank image.

        Its module may be in the current folder, which the path of a command does not have.
        """
        module, _, name = self.function.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            make: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError, TypeError) as reason:
            raise ParameterError(
                f"encoder {self.function!r} cannot be imported: {reason} (write "
                "package.module:function, without ./ and .py)"
            ) from None
        from eigenbatch.train.encoders.nets import with_features

        try:
            signature(make).bind()
        except (TypeError, ValueError) as reason:
            raise ParameterError(
                f"encoder {self.function!r} must be a function or class that needs no arguments: "
                f"{reason}"
            ) from None
        return with_features(make(), inputs)
