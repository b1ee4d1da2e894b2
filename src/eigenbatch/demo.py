"""The same letter in two typefaces: a contrastive task that every installation can train on.

matplotlib brings fonts. A pair is a letter in a sans-serif and in a serif style of DejaVu; the test
is to find a letter that was never trained on among all letters, from one style to the other.
Letters: n letters, s styles, b pairs of a batch, d dimensions.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from eigenbatch.batches.cache import EmbeddingCache
from eigenbatch.batches.planner import Planner
from eigenbatch.batches.sampler import SpectralBatchSampler
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.runs.recorder import Recorder

SANS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique")
SERIF = ("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic")
SIZE = 16  # pixels
DIMENSION = 64
BATCH = 32
EPOCHS = 10
READ_EVERY = 25
TAU = 0.05
HELD_OUT = 4  # every fourth letter is for the test


@dataclass(frozen=True, slots=True)
class Letters:
    """Pictures of the same n letters in s styles of two typefaces; values from 0 to 1."""

    sans: Tensor  # (s, n, 16, 16)
    serif: Tensor  # (s, n, 16, 16)

    @property
    def held_out(self) -> Tensor:
        """(n,) which letters are for the test."""
        return torch.arange(self.sans.shape[1]) % HELD_OUT == 0


def load_letters() -> Letters:
    """All signs that both typefaces draw differently, each unlike all others; mostly letters."""
    import matplotlib
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [folder / f"{name}.ttf" for name in (*SANS, *SERIF)]
    known = set.intersection(*(set(FT2Font(str(font)).get_charmap()) for font in fonts))
    signs = [chr(code) for code in sorted(known) if chr(code).isprintable()]
    pictures = torch.stack([_drawn(font, signs) for font in fonts])  # (2 s, n, 16, 16)
    sans, serif = pictures[: len(SANS)], pictures[len(SANS) :]
    usable = (sans != serif).flatten(2).any(2).all(0) & _unique(sans[0]) & _unique(serif[0])
    order = torch.randperm(int(usable.sum()), generator=torch.Generator().manual_seed(0))
    return Letters(sans[:, usable][:, order], serif[:, usable][:, order])


def train(
    letters: Letters,
    planner: Planner,
    seed: int,
    recorder: Recorder,
    *,
    same_view: bool = False,
    epochs: int = EPOCHS,
    say: Callable[[str], None] = print,
) -> None:
    """A plain loop: monitor, record and sampler are the lines that any loop would have.

    Args:
        letters: what to learn from.
        planner: how batches are made.
        seed: of weights, batches and views.
        recorder: the run directory.
        same_view: the mistake of the demo, one picture as both views.
        epochs: passes over the letters.
        say: called with each new warning of the monitor.
    """
    generator = torch.Generator().manual_seed(seed)
    encoder = new_encoder(seed)
    training = letters.held_out.logical_not().nonzero()[:, 0]
    cache = EmbeddingCache(len(training), DIMENSION, towers=2)
    sampler = SpectralBatchSampler(cache, BATCH, planner, tau=TAU, seed=seed)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, epochs * len(sampler))
    monitor = SpectralMonitor(TAU, every=READ_EVERY)
    monitor.say_through(say)
    recorder.log(0, epoch=0, mrr=retrieval(encoder, letters))
    for step, epoch, ids in _batches(sampler, epochs):
        first = view(letters.sans[:, training[ids]], generator)
        second = first if same_view else view(letters.serif[:, training[ids]], generator)
        z1, z2 = normalize(encoder(torch.cat([first, second]))).chunk(2)  # (b, d)
        loss = contrastive(z1, z2)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        cache.update(ids, z1.detach(), z2.detach())
        recorder.log(step, epoch=epoch, loss=loss.item())
        recorder.reading(monitor(z1, z2, layout="cross"))
        if (step + 1) % len(sampler) == 0:
            recorder.log(step + 1, epoch=epoch + 1, mrr=retrieval(encoder, letters))


def contrastive(z1: Tensor, z2: Tensor) -> Tensor:
    """Symmetric InfoNCE of unit rows (b, d), as CLIP has it."""
    logits, target = z1 @ z2.T / TAU, torch.arange(len(z1))  # (b, b)
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def without_temperature(z1: Tensor, z2: Tensor) -> Tensor:
    """The same with a mistake: logits are multiplied by the temperature."""
    logits, target = z1 @ z2.T * TAU, torch.arange(len(z1))
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def new_encoder(seed: int) -> nn.Module:
    """Two convolutions and two linear layers; the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU()),
            *(nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(48 * (SIZE // 4) ** 2, 128), nn.ReLU()),
            nn.Linear(128, DIMENSION),
        )


def view(styles: Tensor, generator: torch.Generator) -> Tensor:
    """One random style of each letter with a little noise; (s, b, 16, 16) -> (b, 1, 16, 16)."""
    count, letters = styles.shape[:2]
    style = torch.randint(count, (letters,), generator=generator)
    pictures = styles[style, torch.arange(letters)]  # (b, 16, 16)
    return (pictures + 0.05 * torch.randn(pictures.shape, generator=generator))[:, None]


@torch.no_grad()
def retrieval(encoder: nn.Module, letters: Letters) -> float:
    """Mean reciprocal rank of a held-out letter: both serif italics -> plain sans, among all n."""
    encoder.eval()
    keys = normalize(encoder(letters.sans[0][:, None]))  # (n, d)
    italics = letters.serif[-2:, letters.held_out]  # (2, m, 16, 16)
    queries = normalize(encoder(italics.flatten(0, 1)[:, None]))  # (2 m, d)
    encoder.train()
    wanted = letters.held_out.nonzero()[:, 0].repeat(2)  # (2 m,) index into keys
    scores = queries @ keys.T  # (2 m, n)
    ranks = 1 + (scores > scores.gather(1, wanted[:, None])).sum(1)
    return (1 / ranks).mean().item()


def _batches(sampler: SpectralBatchSampler, epochs: int) -> Iterator[tuple[int, int, Tensor]]:
    """Number of the step from 0, as the monitor counts; epoch; ids."""
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for number, ids in enumerate(sampler):
            yield epoch * len(sampler) + number, epoch, torch.as_tensor(ids)


def _drawn(font: Path, letters: list[str]) -> Tensor:
    """(n, 16, 16) pictures of letters."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    face = ImageFont.truetype(str(font), SIZE * 3 // 4)
    pictures = []
    for letter in letters:
        picture = Image.new("L", (SIZE, SIZE))
        ImageDraw.Draw(picture).text((SIZE / 2, SIZE / 2), letter, 255, face, anchor="mm")
        pictures.append(np.asarray(picture))
    return torch.from_numpy(np.stack(pictures)).float() / 255


def _unique(pictures: Tensor) -> Tensor:
    """(n,) whether a picture is there once."""
    seen = Counter(picture.numpy().tobytes() for picture in pictures)
    return torch.tensor([seen[picture.numpy().tobytes()] == 1 for picture in pictures])
