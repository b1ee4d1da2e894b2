"""What one batch of embeddings says about its gradient: titled rows of name, value and meaning."""

import math
from dataclasses import dataclass

from torch import Tensor

from eigenbatch.core.band import gradient_band
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.spectrum import isotropy_gap, participation_ratio, spectrum


@dataclass(frozen=True, slots=True)
class Line:
    """One fact: its name, its value as text and what it means."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Section:
    """A titled table of facts."""

    title: str
    lines: tuple[Line, ...]


def describe_pairs(z1: Tensor, z2: Tensor, tau: float) -> list[Section]:
    """Gradient, band and spectrum of an NT-Xent batch at temperature tau."""
    contrast = Contrast.paired(z1, z2)
    return [
        _gradient(contrast, tau),
        _bands(contrast, tau),
        describe_spectrum(contrast.keys),
    ]


def describe_spectrum(z: Tensor) -> Section:
    """Every effective rank of the rows under its own name."""
    cloud = spectrum(z)
    n, d = z.shape
    most = cloud.attainable_rank
    return Section(
        f"Spectrum of {n} rows in dimension {d}",
        (
            Line("sigma-hat (top eigenvalue)", f"{cloud.top:.4f}", f"{1 / d:.4f} if isotropic, 1 if collapsed"),
            Line("participation ratio", f"{cloud.participation_ratio:.1f}", f"the paper's R_eff, at most {most}"),
            Line(
                "participation ratio, unbiased",
                f"{participation_ratio(z, unbiased=True):.1f}",
                "of the population behind this sample",
            ),
            Line("entropy rank (RankMe)", f"{cloud.entropy_rank:.1f}", f"at most {most}"),
            Line("stable rank (1 / sigma-hat)", f"{cloud.stable_rank:.1f}", f"at most {most}"),
            Line("isotropy gap, raw", f"{cloud.isotropy_gap:.1f} %", f"{100 * ((d - 1) / n) ** 0.5:.1f} % from sampling alone"),
            Line(
                "isotropy gap, unbiased",
                f"{isotropy_gap(z, unbiased=True):.1f} %",
                "sampling noise removed; 0 if isotropic",
            ),
        ),
    )  # fmt: skip


def _gradient(contrast: Contrast, tau: float) -> Section:
    values = infonce(contrast, tau)
    count = contrast.negative_count
    factor = (values.miss / tau).square().mean().item()
    geometry = values.squared_gradient.mean().item() / factor if factor else 0.0
    chance = f"{math.log(count + 1):.3f} at chance"
    return Section(
        f"InfoNCE of {len(contrast.anchors)} anchors against {count} negatives, tau = {tau:g}",
        (
            Line("loss", f"{values.loss.mean():.4f}", chance),
            Line("miss (1 - p of the positive)", f"{values.miss.mean():.4f}", "0 = solved, 1 = lost"),
            Line("alignment rho", f"{values.alignment.mean():.4f}", "above 0.98 the gradient fades"),
            Line("effective negatives", f"{values.effective_negatives.mean():.1f}", f"of {count}"),
            Line("squared anchor gradient", f"{values.squared_gradient.mean():.4g}", f"= (miss/tau)^2 {factor:.4g} x geometry {geometry:.3f}"),
        ),
    )  # fmt: skip


def _bands(contrast: Contrast, tau: float) -> Section:
    lines = []
    for method, name in (
        ("certified", "certified band"),
        ("theorem", "paper, exact sigma*"),
        ("proxy", "paper, sigma-hat proxy"),
    ):
        band = gradient_band(contrast, tau, method=method).mean
        tightness = f"{band.upper / band.measured:,.2f}x" if band.measured else "no gradient"
        lines.append(
            Line(name, f"[{band.lower:.4g}, {band.upper:.4g}]", f"ceiling / measured = {tightness}")
        )
    return Section("Band of the batch-mean squared gradient", tuple(lines))
