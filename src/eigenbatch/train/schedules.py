"""How the learning rate changes over a run."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """Linear warm-up over the first epochs, then whatever a kind of schedule does."""

    warmup_epochs: Annotated[int, Range(0, 10**6)] = 0

    def build(self, optimizer: "Optimizer", *, steps_per_epoch: int, epochs: int) -> "LambdaLR":
        """A scheduler that is stepped once per update."""
        from torch.optim.lr_scheduler import LambdaLR

        total = steps_per_epoch * epochs
        warmup = min(self.warmup_epochs * steps_per_epoch, total - 1)

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            return self.factor(min(1.0, (step - warmup) / (total - warmup)))

        return LambdaLR(optimizer, factor)

    def factor(self, progress: float) -> float:
        """Share of the learning rate after the warm-up; `progress` runs from 0 to 1."""
        raise AssertionError("a schedule defines its factor")


@dataclass(frozen=True, kw_only=True)
class CosineConfig(ScheduleConfig, name="cosine"):
    """Down to zero by a half cosine."""

    warmup_epochs: Annotated[int, Range(0, 10**6)] = 1

    def factor(self, progress: float) -> float:
        """Half a cosine."""
        return (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class FixedConfig(ScheduleConfig, name="fixed"):
    """Constant after the warm-up."""

    def factor(self, progress: float) -> float:
        """Always one."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class LinearConfig(ScheduleConfig, name="linear"):
    """Down to zero in a straight line."""

    def factor(self, progress: float) -> float:
        """One minus the progress."""
        return 1.0 - progress
