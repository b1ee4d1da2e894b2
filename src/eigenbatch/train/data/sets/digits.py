"""Handwritten digits of scikit-learn."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eigenbatch.train.data.kinds import ImageConfig, Split

if TYPE_CHECKING:
    from eigenbatch.train.data.images import LabelledImages


@dataclass(frozen=True, kw_only=True)
class DigitsConfig(ImageConfig, name="digits"):
    """1,797 handwritten digits of 8 x 8 pixels from scikit-learn: nothing to download."""

    channels: ClassVar[int] = 1
    recipe: ClassVar[str] = "digits"

    @property
    def image_size(self) -> int:
        """Eight pixels."""
        return 8

    def load(self, split: Split) -> "LabelledImages":
        """The last 360 are the test set."""
        import torch
        from sklearn.datasets import load_digits

        from eigenbatch.train.data.images import ImageArray

        bunch = load_digits()
        images = torch.from_numpy(bunch.images * (255 / 16)).round().to(torch.uint8)[:, None]
        labels = torch.from_numpy(bunch.target).long()
        part = slice(None, -360) if split == "train" else slice(-360, None)
        return ImageArray(images[part], labels[part], tuple(str(c) for c in range(10)))
