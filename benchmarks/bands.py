"""How tight each band is over the paper's grid: four bands over 16 settings.

python -m benchmarks bands
"""

from pathlib import Path
from statistics import fmean

import torch

from eigenbatch import Contrast, gradient_band, infonce
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    spiked_eigenvalues,
)

FIGURE = Path(__file__).parent.parent / "docs" / "images" / "bands.png"
TEMPERATURES = (0.05, 0.1, 0.2, 0.3)
DIMENSION, PAIRS, BATCHES = 1024, 128, 4
TOPS = {"1/d": 1 / DIMENSION, "0.3": 0.3, "0.6": 0.6, "0.95": 0.95}
BANDS = {
    "paper, exact sigma*, c = 0.5": {"method": "theorem"},
    "trivial, 4 miss^2 / tau^2": None,
    "certified, k = 0": {"directions": 0},
    "certified, k = 1": {"directions": 1},
}


def main() -> str:
    generator = torch.Generator().manual_seed(0)
    settings = [(tau, top) for top in TOPS for tau in TEMPERATURES]
    batches = {
        (tau, top): [_batch(TOPS[top], generator) for _ in range(BATCHES)] for tau, top in settings
    }
    upper: dict[tuple[str, float, str], float] = {}
    lower: dict[tuple[str, float, str], float] = {}
    violations = dict.fromkeys(BANDS, 0)
    for (tau, top), contrasts in batches.items():
        for name in BANDS:
            found = [_tightness(contrast, tau, name) for contrast in contrasts]
            upper[name, tau, top] = fmean(f[0] for f in found)
            lower[name, tau, top] = fmean(f[1] for f in found)
            violations[name] += sum(f[2] for f in found)
    anchors = 2 * PAIRS * BATCHES * len(settings)
    summary = [
        f"**Tightness over tau in {TEMPERATURES} x lambda_1 in ({', '.join(TOPS)})** "
        f"(n = {2 * PAIRS}, d = {DIMENSION}, positives at cosine 0.6 + 0.4 lambda_1, ratios of "
        f"batch means over {BATCHES} batches a setting, violations among {anchors:,} anchors)\n",
        "| band | upper / actual | lower / actual | violations |",
        "| --- | --- | --- | --- |",
    ]
    for name in BANDS:
        high = [upper[name, *setting] for setting in settings]
        low = [lower[name, *setting] for setting in settings]
        floor = f"{min(low):.2f} ... {max(low):.3f}" if BANDS[name] else "-"
        summary.append(
            f"| {name} | {min(high):.4g} ... {max(high):,.4g} | {floor} | {violations[name]} |"
        )
    detail = [
        "\nUpper / actual in each setting:\n",
        "| lambda_1 | tau | " + " | ".join(BANDS) + " |",
        "| --- | --- |" + " --- |" * len(BANDS),
    ]
    for tau, top in settings:
        cells = " | ".join(f"{upper[name, tau, top]:,.4g}" for name in BANDS)
        detail.append(f"| {top} | {tau} | {cells} |")
    _draw({setting: contrasts[0] for setting, contrasts in batches.items()})
    return "\n".join([*summary, *detail, "\n![measured gradient and its bands](images/bands.png)"])


def _batch(top: float, generator: torch.Generator) -> Contrast:
    z = gaussian_rows(PAIRS, spiked_eigenvalues(DIMENSION, top), generator=generator)
    return Contrast.paired(z, positives_at_cosine(z, 0.6 + 0.4 * top, generator=generator))


def _tightness(contrast: Contrast, tau: float, name: str) -> tuple[float, float, int]:
    """Batch means of upper / actual and lower / actual, and the number of anchors outside."""
    options = BANDS[name]
    if options is None:
        values = infonce(contrast, tau)
        measured, ceiling = values.squared_gradient, 4 * (values.miss / tau).square()
        return (ceiling.mean() / measured.mean()).item(), 0.0, int((measured > ceiling).sum())
    band = gradient_band(contrast, tau, **options)
    mean = band.measured.mean()
    return (
        (band.upper.mean() / mean).item(),
        (band.lower.mean() / mean).item(),
        int((~band.contained).sum()),
    )


def _draw(batches: dict[tuple[float, str], Contrast]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=110)
    for x, ((tau, _), contrast) in enumerate(batches.items()):
        x += x // len(TEMPERATURES) * 0.8
        paper = gradient_band(contrast, tau, method="theorem").mean
        band = gradient_band(contrast, tau).mean
        axes.bar(x, paper.upper - paper.lower, 0.7, paper.lower, color="#E69F00", alpha=0.45)
        axes.bar(x, band.upper - band.lower, 0.7, band.lower, color="#0072B2")
        axes.plot(x, band.measured, "o", color="black", markersize=4)
        axes.text(x, 2e-5, f"{tau}", ha="center", fontsize=7)
    for group, top in enumerate(TOPS):
        axes.text(4.8 * group + 1.5, 2.5e-6, f"$\\lambda_1$ = {top}", ha="center", fontsize=9)
    axes.set_yscale("log")
    axes.set_ylim(1e-5, 1e9)
    axes.set_xticks([])
    axes.set_xlabel("temperature (small print) and top eigenvalue of the batch", labelpad=26)
    axes.set_ylabel("mean squared anchor gradient")
    handles = [
        plt.Line2D([], [], marker="o", color="black", linestyle="", label="measured"),
        plt.Rectangle((0, 0), 1, 1, color="#0072B2", label="certified band"),
        plt.Rectangle((0, 0), 1, 1, color="#E69F00", alpha=0.45, label="the paper's band"),
    ]
    axes.legend(handles=handles, frameon=False, loc="upper left", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE)


if __name__ == "__main__":
    print(main())
