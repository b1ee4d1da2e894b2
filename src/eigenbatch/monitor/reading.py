"""A reading: everything one batch says about the run, as frozen records of plain numbers."""

import math
from dataclasses import dataclass

from eigenbatch.core.band import BatchBand, Method
from eigenbatch.core.cloud import Cloud
from eigenbatch.core.prediction import Outlook
from eigenbatch.core.variance import VarianceBand
from eigenbatch.monitor.diagnose import diagnose
from eigenbatch.monitor.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """InfoNCE, averaged over anchors."""

    tau: float
    negatives: int  # N-
    loss: float
    chance_loss: float  # log(N- + 1)
    separated_loss: float  # of perfect embeddings at this tau
    miss: float  # 1 - p of the positive
    alignment: float  # rho-bar
    positive_similarity: float
    effective_negatives: float  # 1 / ||q||^2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The mean squared anchor gradient = force x geometry, and the bands around it."""

    force: float  # mean of (miss / tau)^2
    geometry: float  # ||m - z+||^2 in [0, 4], weighted by force
    certified: BatchBand
    paper: BatchBand
    method: Method
    variance: VarianceBand

    @property
    def measured(self) -> float:
        """Batch mean of gamma_i: the anchor's own loss, keys held fixed."""
        return self.certified.measured

    @property
    def band(self) -> BatchBand:
        """The band that the monitor's `method` names."""
        return self.certified if self.method == "certified" else self.paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Negatives:
    """How the negatives lie."""

    uniformity: float  # log mean exp(-2 ||x - y||^2) over (anchor, negative) pairs
    harder_share: float  # negatives more similar than the anchor's positive
    near_duplicate_rate: float  # anchors with a negative as similar as the mean positive
    near_duplicate_isolation: float  # share of nearly alike negatives that are fully alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """MoCo's queue, seen through a sample of its keys."""

    sampled: int
    sigma: float  # sigma_Q of the sample
    radius: float  # eps_K
    ceiling: float  # min(1, sigma_Q + eps_K)
    fill: float | None  # share of slots that hold a key; needs queue_ids
    self_negative_rate: float | None  # anchors whose own sample is in the queue; needs both ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The embeddings as they were handed over, before rows were put on the sphere."""

    dtype: str
    resolution: float  # machine epsilon of that dtype
    half: bool
    shortest: float  # row norms
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The measured gradient over the last readings."""

    ema: float
    rolling_variance: float | None  # None until there are two readings
    readings: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """One batch. `step` and `trend` are None outside a monitor."""

    anchors: int
    softmax: Softmax
    gradient: Gradient
    cloud: Cloud
    negatives: Negatives
    outlook: Outlook
    queue: Queue | None = None
    inputs: Inputs | None = None
    step: int | None = None
    trend: Trend | None = None

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """What is wrong, most severe first, or one `healthy`; see docs/diagnosis.md."""
        return diagnose(self)

    def scalars(self) -> dict[str, float]:
        """Every number under "spectral/...", for any logger; absent ones are left out."""
        softmax, gradient, cloud, negatives = (
            self.softmax,
            self.gradient,
            self.cloud,
            self.negatives,
        )
        optional: dict[str, float | None] = {}
        if self.queue is not None:
            optional |= {
                "queue_sigma": self.queue.sigma,
                "queue_radius": self.queue.radius,
                "queue_sigma_ceiling": self.queue.ceiling,
                "queue_fill": self.queue.fill,
                "self_negative_rate": self.queue.self_negative_rate,
            }
        if self.trend is not None:
            optional |= {
                "gradient_ema": self.trend.ema,
                "gradient_rolling_variance": self.trend.rolling_variance,
            }
        numbers = {
            "tau": softmax.tau,
            "loss": softmax.loss,
            "chance_loss": softmax.chance_loss,
            "miss": softmax.miss,
            "alignment": softmax.alignment,
            "positive_similarity": softmax.positive_similarity,
            "effective_negatives": softmax.effective_negatives,
            "negatives": float(softmax.negatives),
            "gradient": gradient.measured,
            "gradient_force": gradient.force,
            "gradient_geometry": gradient.geometry,
            "certified_lower": gradient.certified.lower,
            "certified_upper": gradient.certified.upper,
            "paper_lower": gradient.paper.lower,
            "paper_upper": gradient.paper.upper,
            "gradient_variance": gradient.variance.measured,
            "gradient_variance_bound": gradient.variance.bound,
            "gradient_rolling_variance_bound": gradient.variance.bound / self.anchors,
            **cloud_scalars(cloud),
            "uniformity": negatives.uniformity,
            "harder_share": negatives.harder_share,
            "near_duplicate_rate": negatives.near_duplicate_rate,
            "near_duplicate_isolation": negatives.near_duplicate_isolation,
        } | {name: value for name, value in optional.items() if value is not None}
        return {f"spectral/{name}": value for name, value in numbers.items()}


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
