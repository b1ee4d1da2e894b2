"""Optimisers and their settings; biases and norms are never decayed or adapted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from eigenbatch.train.settings import Config, NotNegative, Range

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """Learning rate and weight decay, which every optimiser has."""

    lr: NotNegative = 1e-3
    weight_decay: NotNegative = 1e-4

    def build(self, module: "nn.Module") -> "Optimizer":
        """The optimiser of the module's parameters that need a gradient."""
        weights, others = split_parameters(module)
        return self.make(
            [
                {"params": weights, "weight_decay": self.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ]
        )

    def make(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """The optimiser of the two groups: weights, then biases and norms."""
        raise AssertionError("an optimiser defines how it is made")


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig, name="adamw"):
    """Adam with decoupled weight decay."""

    def make(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's AdamW."""
        from torch.optim import AdamW

        return AdamW(groups, self.lr)


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig, name="sgd"):
    """Stochastic gradient descent with momentum."""

    momentum: Annotated[float, Range(0, 1, open_high=True)] = 0.9

    def make(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Torch's SGD."""
        from torch.optim import SGD

        return SGD(groups, self.lr, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True)
class LARSConfig(OptimizerConfig, name="lars"):
    """Layer-wise adaptive rate scaling, for large batches."""

    def make(self, groups: list[dict[str, Any]]) -> "Optimizer":
        """Our LARS; biases and norms are not adapted."""
        from eigenbatch.train.lars import LARS

        weights, others = groups
        return LARS([weights | {"adapt": True}, others | {"adapt": False}], self.lr)


def split_parameters(module: "nn.Module") -> tuple[list[Any], list[Any]]:
    """Matrices and filters, then biases, norms and scalars."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
