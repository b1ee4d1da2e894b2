"""Settings of the two random views of an image; `augment.py` draws them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from eigenbatch.train.settings import Config, Range

if TYPE_CHECKING:
    from eigenbatch.train.augment import Views


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(Config):
    """SimCLR's augmentations.

    Args:
        size: side of the square views in pixels; None: that of the images.
        strength: scales colour jitter and blur (the paper's ablation: 0.5, 1, 1.5).
        jitter: SimCLR's strength of the colour jitter: 1 for ImageNet, 0.5 for CIFAR and MoCo v2.
        crop: smallest share of the picture that a crop of a coloured picture holds: 0.08 in SimCLR,
            0.2 in MoCo v2.
    """

    size: Annotated[int, Range(2, 4096)] | None = None
    strength: Annotated[float, Range(0, 100)] = 1.0
    jitter: Annotated[float, Range(0, 100)] = 0.5
    crop: Annotated[float, Range(0, 1, open_low=True)] = 0.2

    def build(self, image_size: int, channels: int) -> "Views":
        """The module that draws two views of a batch of images."""
        from eigenbatch.train.augment import Views

        return Views(
            self.size or image_size,
            strength=self.strength,
            jitter=self.jitter,
            crop=self.crop,
            colour=channels == 3,
        )
