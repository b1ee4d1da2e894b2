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
    """

    size: Annotated[int, Range(2, 4096)] | None = None
    strength: Annotated[float, Range(0, 100)] = 1.0

    def build(self, image_size: int, channels: int) -> "Views":
        """The module that draws two views of a batch of images."""
        from eigenbatch.train.augment import Views

        return Views(self.size or image_size, strength=self.strength, colour=channels == 3)
