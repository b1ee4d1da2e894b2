"""A reading: everything one batch says about the run."""

import math
from dataclasses import dataclass
from html import escape

from eigenbatch.core.axes import Axes
from eigenbatch.core.cloud import Cloud
from eigenbatch.core.prediction import Outlook
from eigenbatch.monitor.diagnose import diagnose
from eigenbatch.monitor.diagnosis import Diagnosis
from eigenbatch.monitor.parts import (
    Claim,
    Course,
    Gradient,
    Inputs,
    Negatives,
    Queue,
    Softmax,
    Towers,
    Trend,
)
from eigenbatch.monitor.rules.pairs import selection_outlook

SHOWN = {
    "spectral/loss": "loss",
    "spectral/chance_loss": "loss at chance",
    "spectral/miss": "miss",
    "spectral/positive_similarity": "positive similarity",
    "spectral/effective_negatives": "effective negatives",
    "spectral/gradient": "squared gradient",
    "spectral/certified_lower": "certified from",
    "spectral/certified_upper": "certified to",
    "spectral/participation_ratio": "R_eff",
    "spectral/attainable_rank": "R_eff at most",
}
"""What a notebook shows of a reading."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """One batch. `step`, `trend` and `course` are None outside a monitor.

    A batch with NaN, infinite or zero rows gives a reading too: its numbers are NaN, `failure` says
    what was found, and its only finding is the critical "not finite".

    Args:
        anchors: number of anchors.
        softmax: loss, miss and effective negatives.
        gradient: mean squared anchor gradient and its bands.
        cloud: ranks and mean of the embeddings.
        axes: how the coordinates share the squared length.
        negatives: how hard and how repeated the negatives are.
        outlook: what predictions need.
        towers: both sides of a cross batch.
        queue: likeness and fill of a queue.
        inputs: norms and precision of the embeddings before they were normalised.
        claim: the loss of your own code, and what it should be.
        failure: why the batch cannot be read.
        step: step of the run.
        trend: change since earlier readings.
        course: what was seen in the run so far.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> reading = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z)
        >>> reading.softmax.negatives, reading.step
        (126, 0)
    """

    anchors: int
    softmax: Softmax
    gradient: Gradient
    cloud: Cloud
    axes: Axes
    negatives: Negatives
    outlook: Outlook
    towers: Towers | None = None
    queue: Queue | None = None
    inputs: Inputs | None = None
    claim: Claim | None = None
    failure: str | None = None
    step: int | None = None
    trend: Trend | None = None
    course: Course | None = None

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is wrong, most severe first, or one `healthy`; see docs/diagnosis.md."""
        return diagnose(self)

    @property
    def selection(self) -> str | None:
        """Whether it would pay to select which samples share a batch; None if it was unreadable."""
        return None if self.failure is not None else selection_outlook(self)

    def scalars(self) -> dict[str, float]:
        """Every number under "spectral/...", for any logger; absent ones are left out."""
        if self.failure is not None:
            return {"spectral/readable": 0.0}
        numbers = (
            _softmax_scalars(self.softmax)
            | _gradient_scalars(self.gradient, self.anchors)
            | cloud_scalars(self.cloud)
            | _negative_scalars(self.negatives)
            | {
                "axis_dominance": self.axes.dominance,
                "negative_entries": self.axes.negative_share,
            }
            | _optional_scalars(self)
            | {"readable": 1.0}
        )
        return {
            f"spectral/{name}": value
            for name, value in numbers.items()
            if value is not None and math.isfinite(value)
        }

    def _repr_html_(self) -> str:
        """A small table for notebooks: findings first, then the numbers to look at."""
        findings = "".join(
            f"<p><b>{escape(one.severity)}: {escape(one.name)}</b><br/>{escape(one.evidence)}<br/>"
            f"<i>{escape(one.advice)}</i></p>"
            for one in self.diagnoses
        )
        known = self.scalars()
        rows = "".join(
            f"<tr><td>{title}</td><td>{known[name]:.4g}</td></tr>"
            for name, title in SHOWN.items()
            if name in known
        )
        place = "" if self.step is None else f"<p>step {self.step}</p>"
        return f"{place}{findings}<table>{rows}</table>"


def cloud_scalars(cloud: Cloud) -> dict[str, float]:
    """Ranks, gaps and mean direction under their own names; infinite estimates are left out."""
    numbers = {
        "sigma_hat": cloud.sigma_hat,
        "participation_ratio": cloud.participation_ratio,
        "participation_ratio_unbiased": cloud.participation_ratio_unbiased,
        "entropy_rank": cloud.entropy_rank,
        "stable_rank": cloud.stable_rank,
        "attainable_rank": float(cloud.attainable_rank),
        "centred_entropy_rank": cloud.centred_entropy_rank,
        "attainable_centred_rank": float(cloud.attainable_centred_rank),
        "isotropy_gap": cloud.isotropy_gap,
        "isotropy_gap_unbiased": cloud.isotropy_gap_unbiased,
        "mean_share": cloud.mean_share,
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _softmax_scalars(softmax: Softmax) -> dict[str, float]:
    return {
        "tau": softmax.tau,
        "loss": softmax.loss,
        "chance_loss": softmax.chance_loss,
        "miss": softmax.miss,
        "alignment": softmax.alignment,
        "positive_similarity": softmax.positive_similarity,
        "effective_negatives": softmax.effective_negatives,
        "negatives": float(softmax.negatives),
    }


def _gradient_scalars(gradient: Gradient, anchors: int) -> dict[str, float]:
    return {
        "gradient": gradient.measured,
        "gradient_force": gradient.force,
        "gradient_geometry": gradient.geometry,
        "certified_lower": gradient.certified.lower,
        "certified_upper": gradient.certified.upper,
        "paper_lower": gradient.paper.lower,
        "paper_upper": gradient.paper.upper,
        "gradient_variance": gradient.variance.measured,
        "gradient_variance_bound": gradient.variance.bound,
        "gradient_rolling_variance_bound": gradient.variance.bound / max(1, anchors),
    }


def _negative_scalars(negatives: Negatives) -> dict[str, float | None]:
    return {
        "uniformity": negatives.uniformity,
        "harder_share": negatives.harder_share,
        "near_duplicate_rate": negatives.near_duplicate_rate,
        "near_duplicate_isolation": negatives.near_duplicate_isolation,
        "solved_share": negatives.solved_share,
        "found_share": negatives.found_share,
        "misplaced_share": negatives.misplaced_share,
        "copied_share": negatives.copied_share,
        "hard_miss": negatives.hard_miss,
        "hard_force_ratio": negatives.hard_force_ratio,
        "repeated_id_share": negatives.repeated_id_share,
    }


def _optional_scalars(reading: Reading) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {}
    if (queue := reading.queue) is not None:
        numbers |= {
            "queue_sigma": queue.sigma,
            "queue_radius": queue.radius,
            "queue_sigma_ceiling": queue.ceiling,
            "queue_fill": queue.fill,
            "queue_likeness": queue.likeness,
            "self_negative_rate": queue.self_negative_rate,
        }
    if (towers := reading.towers) is not None:
        numbers |= {
            "backward_loss": towers.backward_loss,
            "symmetric_loss": towers.symmetric_loss,
            "modality_gap": towers.gap,
        }
        first = cloud_scalars(towers.first)
        numbers |= {f"first_tower/{name}": value for name, value in first.items()}
    if (claim := reading.claim) is not None:
        numbers |= {"your_loss": claim.loss}
    if (trend := reading.trend) is not None:
        numbers |= {
            "gradient_ema": trend.ema,
            "gradient_rolling_variance": trend.rolling_variance,
        }
    if (course := reading.course) is not None and course.movement:
        numbers |= {"movement": min(course.movement.values())}
    return numbers
