"""The SimCLR recipe on whole batches, on the device of the images."""

import torch
from kornia import augmentation as kornia
from torch import Tensor, nn

from eigenbatch.errors import ParameterError


class Views(nn.Module):
    """Two independent random views of each image: crop, flip, jitter, greyscale, blur.

    size: side of the square views, in pixels.
    strength: scales colour jitter and blur (the paper's ablation: 0.5, 1, 1.5); the rest stays.
    jitter: SimCLR's strength s of the colour jitter: 0.8 s, and 0.2 s for the hue.
    crop: smallest share of a coloured picture that a crop holds.
    colour: False for single-channel images, which are only cropped, jittered in brightness and
        contrast, and blurred (a mirrored digit is not a digit).
    mean, std: of the pixels, subtracted and divided out last.
    """

    def __init__(
        self,
        size: int,
        *,
        strength: float = 1.0,
        jitter: float = 0.5,
        crop: float = 0.2,
        colour: bool = True,
        mean: tuple[float, ...] = (0.5,),
        std: tuple[float, ...] = (0.25,),
    ) -> None:
        super().__init__()
        if not strength >= 0:
            raise ParameterError(f"strength must not be negative, got {strength}")
        blur = max(3, size // 10 // 2 * 2 + 1)  # odd, a tenth of the picture
        light = 0.8 * strength * jitter
        hue = min(0.5, 0.2 * strength * jitter)
        low = crop if colour else 0.6
        steps: list[nn.Module] = []
        if colour:
            steps += [
                kornia.RandomHorizontalFlip(),
                kornia.ColorJitter(light, light, light, hue, p=0.8),
                kornia.RandomGrayscale(p=0.2),
            ]
        else:
            steps.append(kornia.ColorJitter(light, light, p=0.8))
        if strength > 0:
            steps.append(
                kornia.RandomGaussianBlur((blur, blur), (0.1, 0.1 + 1.9 * strength), p=0.5)
            )
        steps.append(kornia.Normalize(torch.tensor(mean), torch.tensor(std)))
        self.channels, self.size = 3 if colour else 1, size
        self.crop = kornia.RandomResizedCrop((size, size), scale=(low, 1.0))
        self.distort = nn.Sequential(*steps)
        self.plain = nn.Sequential(
            kornia.Resize((size, size)), kornia.Normalize(torch.tensor(mean), torch.tensor(std))
        )

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 (b, c, h, w) -> two float views (b, c, size, size).

        Pictures that come as two crops already, (b, 2, c, size, size), are not cropped again.
        """
        pixels = images.float() / 255
        if images.ndim == 5:
            crops = pixels.transpose(0, 1).flatten(0, 1)  # (2b, c, size, size)
        else:
            crops = self.crop(pixels.repeat(2, 1, 1, 1))  # one call is cheaper
        first, second = self.distort(crops).chunk(2)
        return first, second

    @torch.no_grad()
    def undistorted(self, images: Tensor) -> Tensor:
        """uint8 (b, c, h, w) -> (b, c, size, size) without augmentation, for evaluation.

        Grey pictures are repeated and coloured ones averaged where the encoder takes the others.
        """
        pixels = images.float() / 255
        if pixels.shape[1] != self.channels:
            pixels = pixels.mean(1, keepdim=True).expand(-1, self.channels, -1, -1)
        plain: Tensor = self.plain(pixels)
        return plain
