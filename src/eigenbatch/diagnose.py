"""Embeddings on disk as a person reads them: findings, titled rows of facts, and what to plot."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eigenbatch.core.cloud import Cloud, cloud_of, known_numbers
from eigenbatch.core.contrast import Contrast, accumulated
from eigenbatch.core.prediction import Prediction, at_other_tau
from eigenbatch.core.spectrum import spectrum
from eigenbatch.monitor.findings import Finding, diagnose, diagnose_cloud
from eigenbatch.monitor.measure import inputs_of, read_batch
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.rules import SATURATED_ALIGNMENT, SOLVED_SHARE, selection_pays

SAMPLED = 1024
"""Anchors that stand for all of a larger file."""
BINS = 240
"""Over [-1, 1]; those without any cosine at either end are left out."""
ROWS = 512  # anchors at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarities:
    """How many positive and negative pairs have a cosine in each of equally wide bins."""

    edges: list[float]  # one more than bins
    positive: list[float]
    negative: list[float]
    anchors: int  # behind the negatives


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `eigenbatch diagnose` shows.

    `numbers` has the names of `Reading.scalars()`.
    """

    summary: Section
    sections: tuple[Section, ...]
    findings: tuple[Finding, ...]
    numbers: dict[str, float]
    predictions: tuple[Prediction, ...]
    eigenvalues: list[float]
    similarities: Similarities | None

    @property
    def healthy(self) -> bool:
        """Whether nothing is worse than a remark."""
        return all(one.severity == "info" for one in self.findings)

    def plain(self) -> dict[str, Any]:
        """Numbers for programs: findings, scalars and the gradient after a change."""
        return {
            "healthy": self.healthy,
            "findings": [
                {
                    "name": one.name,
                    "severity": one.severity,
                    "evidence": one.evidence,
                    "advice": one.advice,
                }
                for one in self.findings
            ],
            "scalars": self.numbers,
            "what_if": [
                {"change": one.change, "gradient": one.ceiling, "exact": one.exact}
                for one in self.predictions
            ],
        }


def describe_pairs(
    z1: Tensor, z2: Tensor, tau: float, layout: Literal["paired", "cross"] = "paired"
) -> Report:
    """Gradient, bands, spectrum and predictions of a batch of pairs at temperature tau.

    Rows are put on the sphere first, so that norms other than 1 are no finding: a file often holds
    what a loss normalises later.

    Args:
        z1: (n, d) embeddings.
        z2: (n, d) their positives.
        tau: softmax temperature.
        layout: "paired" is NT-Xent over both (SimCLR), "cross" compares z1 with z2 only (CLIP).
    """
    contrast = Contrast.paired(z1, z2) if layout == "paired" else Contrast.cross(z1, z2)
    reading = read_batch(contrast, tau, inputs=inputs_of(z1, z2))
    some = some_anchors(contrast)
    outlook, count = reading.outlook, reading.negatives
    predictions = (
        at_other_tau(some, tau, tau / 2),
        at_other_tau(some, tau, tau * 2),
        outlook.with_negatives(count * 4),
        outlook.whitened(),
    )
    rows = torch.cat([z1, z2])
    return Report(
        summary=_summary(reading),
        sections=(
            _softmax(reading),
            _gradient(reading),
            _spectrum(reading, rows),
            _negatives(reading),
            _what_if(reading, predictions, len(some.anchors)),
        ),
        findings=diagnose(reading, ignoring=("non-unit input",)),
        numbers=reading.scalars(),
        predictions=predictions,
        eigenvalues=spectrum(rows).eigenvalues.tolist(),
        similarities=similarities(contrast, some),
    )


def describe_cloud(z: Tensor) -> Report:
    """Spectrum of embeddings without positives."""
    cloud = cloud_of(z)
    table = _spectrum(cloud, z)
    return Report(
        summary=table,
        sections=(table,),
        findings=diagnose_cloud(cloud),
        numbers={f"spectral/{name}": value for name, value in known_numbers(cloud).items()},
        predictions=(),
        eigenvalues=spectrum(z).eigenvalues.tolist(),
        similarities=None,
    )


def _summary(reading: Reading) -> Section:
    """The numbers to look at first."""
    return Section(
        f"{reading.anchors} anchors, {reading.negatives} negatives, tau = {reading.tau:g}",
        (
            Line("loss", f"{reading.loss:.4f}", f"{reading.chance_loss:.3f} at chance"),
            Line("miss", f"{reading.miss:.4f}", "0 = solved, 1 = lost"),
            Line(
                "squared gradient",
                f"{reading.gradient:.4g}",
                f"certified between {reading.certified_lower:.4g} and "
                f"{reading.certified_upper:.4g}",
            ),
            Line(
                "participation ratio",
                f"{reading.participation_ratio:.1f}",
                f"directions in use, at most {reading.attainable_rank}",
            ),
            Line(
                "positive beats all",
                f"{reading.solved_share:.1%}",
                f"of anchors; above {SOLVED_SHARE:.0%} the task is solved",
            ),
            Line(
                "force of hard batches",
                f"{reading.hard_force_ratio:.1f}x",
                f"{'would' if selection_pays(reading) else 'would hardly'} pay: predicted for "
                "batches of neighbours, over this batch",
            ),
        ),
    )


def _softmax(reading: Reading) -> Section:
    return Section(
        f"InfoNCE: {reading.anchors} anchors, {reading.negatives} negatives, tau = {reading.tau:g}",
        (
            Line("loss", f"{reading.loss:.4f}", f"{reading.chance_loss:.3f} at chance"),
            Line("miss (1 - p of positive)", f"{reading.miss:.4f}", "0 = solved, 1 = lost"),
            Line(
                "alignment rho",
                f"{reading.alignment:.4f}",
                f"above {SATURATED_ALIGNMENT} the gradient fades",
            ),
            Line("positive similarity", f"{reading.positive_similarity:.4f}", "mean cosine"),
            Line(
                "effective negatives",
                f"{reading.effective_negatives:.1f}",
                f"of {reading.negatives}",
            ),
        ),
    )


def _gradient(reading: Reading) -> Section:
    return Section(
        "Squared anchor gradient, batch mean",
        (
            Line("measured", f"{reading.gradient:.4g}", "= force x geometry"),
            Line("force", f"{reading.gradient_force:.4g}", "(miss / tau)^2"),
            Line("geometry", f"{reading.gradient_geometry:.4f}", "||m - z+||^2, at most 4"),
            _band(
                "certified band",
                reading.certified_lower,
                reading.gradient,
                reading.certified_upper,
            ),
            _band("paper's band", reading.paper_lower, reading.gradient, reading.paper_upper),
        ),
    )


def _band(name: str, lower: float, measured: float, upper: float) -> Line:
    looseness = f"{upper / measured:,.2f}x" if measured else "no gradient"
    return Line(name, f"[{lower:.4g}, {upper:.4g}]", f"ceiling / measured {looseness}")


def _spectrum(cloud: Cloud, z: Tensor) -> Section:
    norms = torch.linalg.vector_norm(accumulated(z), dim=1)
    lengths = f"{norms.min():.3g} ... {norms.max():.3g}"
    n, d, most = cloud.count, cloud.dimension, cloud.attainable_rank
    noise = 100 * ((d - 1) / n) ** 0.5
    return Section(
        f"Spectrum of {n} rows in dimension {d}",
        (
            Line("row norms", lengths, "put on the sphere first"),
            Line("sigma-hat", f"{cloud.sigma_hat:.4f}", f"{1 / d:.4f} isotropic, 1 collapsed"),
            Line("share of the mean in it", f"{cloud.mean_share:.1%}", "shared by all rows"),
            Line(
                "participation ratio",
                f"{cloud.participation_ratio:.1f}",
                f"the paper's R_eff, at most {most}",
            ),
            Line("  unbiased", f"{cloud.participation_ratio_unbiased:.1f}", "of the population"),
            Line("entropy rank (RankMe)", f"{cloud.entropy_rank:.1f}", f"at most {most}"),
            Line(
                "  centred",
                f"{cloud.centred_entropy_rank:.1f}",
                f"at most {cloud.attainable_centred_rank}",
            ),
            Line("stable rank", f"{cloud.stable_rank:.1f}", f"1 / sigma-hat, at most {most}"),
            Line("isotropy gap", f"{cloud.isotropy_gap:.1f} %", f"{noise:.1f} % by sampling alone"),
            Line("  unbiased", f"{cloud.isotropy_gap_unbiased:.1f} %", "sampling noise removed"),
        ),
    )


def _negatives(reading: Reading) -> Section:
    return Section(
        "Negatives",
        (
            Line("uniformity", f"{reading.uniformity:.3f}", "-4 spread, 0 collapsed"),
            Line("harder than positive", f"{reading.harder_share:.2%}", "of negatives"),
            Line(
                "positive beats all negatives",
                f"{reading.solved_share:.1%}",
                f"of anchors; above {SOLVED_SHARE:.0%} the task is solved",
            ),
            Line(
                "force of hard batches",
                f"{reading.hard_force_ratio:.1f}x",
                f"{'would' if selection_pays(reading) else 'would hardly'} pay: predicted for "
                "batches of neighbours, over this batch",
            ),
        ),
    )


def _what_if(reading: Reading, predictions: tuple[Prediction, ...], anchors: int) -> Section:
    exact = "exact" if anchors == reading.anchors else f"exact for {anchors} anchors"
    return Section(
        f"What if? The gradient after a change (now {reading.gradient:.4g})",
        tuple(
            Line(
                one.change,
                f"{one.ceiling:.4g}" if one.exact else f"<= {one.ceiling:.4g}",
                exact if one.exact else f"a ceiling; assumes {one.assumes}",
            )
            for one in predictions
        ),
    )


def some_anchors(contrast: Contrast) -> Contrast:
    """The same keys with at most SAMPLED anchors, evenly spaced."""
    count = len(contrast.anchors)
    if count <= SAMPLED:
        return contrast
    chosen = torch.linspace(0, count - 1, SAMPLED).long()
    return Contrast(
        anchors=contrast.anchors[chosen],
        keys=contrast.keys,
        positive=contrast.positive[chosen],
        itself=None if contrast.itself is None else contrast.itself[chosen],
        first_negative=contrast.first_negative,
    )


def similarities(contrast: Contrast, some: Contrast) -> Similarities:
    """Cosines of all positives, and of the negatives of some anchors."""
    positive = (contrast.anchors * contrast.keys[contrast.positive]).sum(1).float()  # (n,)
    parts = []
    for start in range(0, len(some.anchors), ROWS):
        part = slice(start, start + ROWS)
        cosines = (some.anchors[part] @ some.keys.T).float()  # (b, m)
        others = torch.ones_like(cosines, dtype=torch.bool)
        others.scatter_(1, some.positive[part, None], False)
        if some.itself is not None:
            others.scatter_(1, some.itself[part, None], False)
        parts.append(cosines[others].histc(BINS, -1.0, 1.0 + 1e-5))
    fine = torch.stack(parts).sum(0)  # (bins,) over [-1, 1]
    return _shown(positive.histc(BINS, -1.0, 1.0 + 1e-5), fine, len(some.anchors))


def _shown(positive: Tensor, negative: Tensor, anchors: int) -> Similarities:
    """The part of the fine bins that holds anything."""
    used = (positive + negative).nonzero()[:, 0]
    first, last = int(used[0]), int(used[-1]) + 1
    edges = torch.linspace(-1.0, 1.0, len(positive) + 1)[first : last + 1]
    return Similarities(
        edges=edges.tolist(),
        positive=positive[first:last].tolist(),
        negative=negative[first:last].tolist(),
        anchors=anchors,
    )
