"""Contrastive methods and their settings.

The settings load no torch; the modules are in the file of the same name. A method is an
`nn.Module` whose forward takes a `Batch` and returns an `Outcome`: the loop calls `method(batch)`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from eigenbatch.errors import ParameterError
from eigenbatch.train.settings import Config, Count, Positive, Range, Width

if TYPE_CHECKING:
    from torch import nn

    from eigenbatch.train.methods.method import Method

MADE_BY = 1
"""Raised by hand when the same batches begin to give other losses; golden runs tell."""

Share = Annotated[float, Range(0, 1, open_high=True)]


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Config):
    """What every method has.

    Args:
        tau: softmax temperature.
        dim: dimension of the embeddings that the loss compares.
    """

    encoders: ClassVar[int] = 1  # how many the method trains
    pairs: ClassVar[bool] = False  # whether both sides of a pair have an encoder of their own
    labels: ClassVar[bool] = False  # whether it learns from labels
    layout: ClassVar[Literal["paired", "cross"]] = "cross"  # how the loss contrasts both views
    queued: ClassVar[bool] = False  # whether negatives come from a queue

    tau: Positive = 0.2
    dim: Width = 128

    def check_batch(self, batch_size: int) -> None:
        """Raise if batches are too small for the method."""

    def build(self, *encoders: "nn.Module") -> "Method":
        """The method around its encoders."""
        raise AssertionError("a method defines how it is built")


@dataclass(frozen=True, kw_only=True)
class SimCLRConfig(MethodConfig, name="simclr"):
    """SimCLR: NT-Xent over two views.

    Args:
        whiten_period: alternate raw and whitened batches, so many of each; None: never whiten.
        whiten_after: batches before the first period of raw ones.
    """

    layout: ClassVar[Literal["paired", "cross"]] = "paired"

    whiten_period: Count | None = None
    whiten_after: Annotated[int, Range(0, 10**9)] = 0

    def build(self, *encoders: "nn.Module") -> "Method":
        """A `SimCLR`."""
        from eigenbatch.train.methods.simclr import SimCLR

        return SimCLR(
            encoders[0], projected(encoders[0], self.dim), self.tau, transform=self.transform()
        )

    def transform(self) -> "nn.Module | None":
        """What alternates raw and whitened batches, if anything does."""
        from eigenbatch.train.methods.simclr import Alternating

        period = self.whiten_period
        return None if period is None else Alternating(period, after=self.whiten_after)


@dataclass(frozen=True, kw_only=True)
class SupConConfig(SimCLRConfig, name="supcon"):
    """Supervised contrastive learning, an oracle: all views of one label are positives."""

    labels: ClassVar[bool] = True

    def build(self, *encoders: "nn.Module") -> "Method":
        """A `SupCon`."""
        from eigenbatch.train.methods.simclr import SupCon

        return SupCon(
            encoders[0], projected(encoders[0], self.dim), self.tau, transform=self.transform()
        )


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(MethodConfig, name="moco"):
    """MoCo v2: a momentum encoder and a queue of earlier keys.

    Args:
        queue_size: keys in the queue.
        momentum: of the key encoder.
        negatives: "all" keys of the queue, "mixed" adds hard synthetic ones, "distance" samples.
        batch_negatives: the softmax is over the queue and the other keys of the batch, as in the
            paper's appendix; False: over the queue alone, as in MoCo's code.
        key_groups: the key encoder reads the batch in so many random parts, so that its batch
            norms use other samples than those of the query encoder. This replaces ShuffleBN,
            which needs several devices: 8 parts are published MoCo's 8 devices.
    """

    queued: ClassVar[bool] = True

    queue_size: Annotated[int, Range(1, 2**24)] = 4096
    momentum: Share = 0.999
    negatives: Literal["all", "mixed", "distance"] = "all"
    batch_negatives: bool = False
    key_groups: Count = 1

    def check_batch(self, batch_size: int) -> None:
        """Batch norm needs two samples in each part that the key encoder reads."""
        if self.key_groups > 1 and batch_size < 2 * self.key_groups:
            raise ParameterError(
                f"method.key_groups={self.key_groups} parts of {batch_size} images: batch norm "
                "needs at least two in each. Lower it, or raise batches.batch_size"
            )

    def build(self, *encoders: "nn.Module") -> "Method":
        """A `MoCo`."""
        from eigenbatch.train import objectives
        from eigenbatch.train.methods.moco import MoCo

        negatives = {
            "all": objectives.AllNegatives,
            "mixed": objectives.MixedNegatives,
            "distance": objectives.DistanceWeighted,
        }[self.negatives]
        return MoCo(
            encoders[0],
            projected(encoders[0], self.dim),
            self.tau,
            queue_size=self.queue_size,
            dim=self.dim,
            momentum=self.momentum,
            negatives=negatives(),
            batch_negatives=self.batch_negatives,
            key_groups=self.key_groups,
        )


@dataclass(frozen=True, kw_only=True)
class CLIPConfig(MethodConfig, name="clip"):
    """Two towers with a symmetric loss and a learned temperature.

    An encoder whose output has `dim` entries gets no head, any other a linear one, as published.

    Args:
        learn_tau: train the temperature, starting at `tau`.
    """

    encoders: ClassVar[int] = 2
    pairs: ClassVar[bool] = True

    tau: Annotated[float, Range(0.01, 100)] = 0.07
    learn_tau: bool = True

    def build(self, *encoders: "nn.Module") -> "Method":
        """A `CLIP`."""
        from eigenbatch.train.methods.clip import CLIP

        if len(encoders) != 2:
            raise ParameterError(f"clip needs 2 encoders, got {len(encoders)}")
        heads = [linear(encoder, self.dim) for encoder in encoders]
        return CLIP(encoders, heads, self.tau, learn_tau=self.learn_tau)


def projected(encoder: "nn.Module", dim: int) -> "nn.Module":
    """The projection head of an encoder."""
    from eigenbatch.train.encoders.nets import projection_head

    return projection_head(int(encoder.features), dim, dim)  # type: ignore[arg-type]


def linear(encoder: "nn.Module", dim: int) -> "nn.Module":
    """A linear map from the encoder's output to `dim` entries; none if it has so many already."""
    from torch import nn

    features = int(encoder.features)  # type: ignore[arg-type]
    return nn.Identity() if features == dim else nn.Linear(features, dim, bias=False)
