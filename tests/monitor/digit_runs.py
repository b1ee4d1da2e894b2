"""Small real runs on scikit-learn's digits, one of them healthy and the others broken on purpose.

`python tests/monitor/digit_runs.py docs/images` draws the picture of docs/diagnosis.md.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from eigenbatch.monitor import rules as limit
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.reading import Reading

PAIRS = 256
DIMENSION = 64


@dataclass(frozen=True)
class Recipe:
    """What a run is made of; the defaults are healthy."""

    tau: float = 0.1
    learning_rate: float = 0.03
    noise: float = 0.2  # of the augmentation; 0 is none at all
    images: int = 1797
    repeats: int = 1
    normalised: bool = True
    steps: int = 200


HEALTHY = Recipe()
BROKEN = {
    "temperature too low": Recipe(tau=0.005),
    "temperature too high": Recipe(tau=5.0),
    "identical views": Recipe(noise=0.0),
    "collapsing": Recipe(learning_rate=1000.0),
    "false negatives": Recipe(images=200, repeats=5, noise=0.05),
    "non-unit input": Recipe(normalised=False),
}
"""The diagnosis each of them must get."""


def run(recipe: Recipe, *, seed: int = 0, every: int = 20) -> list[Reading]:
    """Train a small encoder with NT-Xent and return what the monitor read."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.from_numpy(load_digits().images).float() / 16  # (1797, 8, 8)
    chosen = torch.randperm(len(images), generator=generator)[: recipe.images]
    data = images[chosen].flatten(1).repeat(recipe.repeats, 1)
    encoder = seeded_encoder(seed)
    optimizer = torch.optim.SGD(encoder.parameters(), recipe.learning_rate, momentum=0.9)
    monitor = SpectralMonitor(recipe.tau, every=every, strict=True)
    target = torch.arange(2 * PAIRS).roll(PAIRS)
    readings = []
    for _ in range(recipe.steps):
        batch = data[torch.randperm(len(data), generator=generator)[:PAIRS]]
        both = torch.cat([view(batch, recipe.noise, generator) for _ in range(2)])
        z = encoder(both)
        if recipe.normalised:
            z = normalize(z)
        if reading := monitor(*z.chunk(2)):
            readings.append(reading)
        logits = (z @ z.T / recipe.tau).fill_diagonal_(-torch.inf)
        optimizer.zero_grad()
        cross_entropy(logits, target).backward()
        optimizer.step()
    return readings


def seeded_encoder(seed: int) -> nn.Module:
    """The same weights for the same seed, whatever the global generator holds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, DIMENSION))


def view(images: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Contrast and pixel noise, separately for each image; no noise: the images themselves."""
    if noise == 0:
        return images
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, generator=generator)
    return images * contrast + noise * torch.randn(images.shape, generator=generator)


def warnings(readings: list[Reading]) -> set[str]:
    """Names of all diagnoses beyond "info" in a run."""
    return {one.name for each in readings for one in each.findings if one.severity != "info"}


SIGNS: dict[str, tuple[str, float, Callable[[Reading], float | None]]] = {
    "temperature too low": (
        "effective negatives (tau = 0.005)",
        limit.FEW_EFFECTIVE,
        lambda reading: reading.effective_negatives,
    ),
    "temperature too high": (
        "effective / all negatives (tau = 5)",
        limit.UNIFORM_SHARE,
        lambda reading: reading.effective_negatives / reading.negatives,
    ),
    "identical views": (
        "1 - similarity (no augmentation)",
        1 - limit.COPY_SIMILARITY,
        lambda reading: max(1e-8, 1 - reading.positive_similarity),
    ),
    "collapsing": (
        "sigma-hat (learning rate x 30,000)",
        limit.COLLAPSED_SIGMA,
        lambda reading: reading.sigma_hat,
    ),
    "false negatives": (
        "look-alikes apart (data x 5)",
        limit.LOOK_ALIKE_ISOLATION,
        lambda reading: reading.near_duplicate_isolation,
    ),
    "non-unit input": (
        "longest row (not normalised)",
        1 + limit.UNIT_TOLERANCE,
        lambda reading: reading.longest_row,
    ),
}
"""The number that gives each broken run away, and its threshold."""


def draw(directory: Path) -> None:
    """Healthy and broken runs over time, one panel for each break."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(9.6, 5.2), layout="constrained")
    healthy = run(HEALTHY)
    for panel, (name, (label, threshold, sign)) in zip(panels.flat, SIGNS.items(), strict=True):
        for readings, colour, text in (
            (healthy, "tab:blue", "healthy"),
            (run(BROKEN[name]), "tab:red", "broken"),
        ):
            steps = [reading.step for reading in readings]
            panel.plot(steps, [sign(reading) for reading in readings], colour, label=text)
        panel.axhline(threshold, color="black", linestyle=":", label="threshold")
        if name in ("temperature too low", "identical views"):
            panel.set_yscale("log")
        panel.set_title(name, fontsize=10)
        panel.set_ylabel(label, fontsize=7)
        panel.tick_params(labelsize=7)
        panel.set_xlabel("step", fontsize=8)
    panels.flat[0].legend(fontsize=7)
    figure.savefig(directory / "diagnosis.png", dpi=90)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
