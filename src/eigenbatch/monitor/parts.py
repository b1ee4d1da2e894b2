"""The parts of a reading: frozen records of plain numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from eigenbatch.core.band import BatchBand, Method
from eigenbatch.core.cloud import Cloud
from eigenbatch.core.variance import VarianceBand
from eigenbatch.monitor.thresholds import FEW_NEGATIVES, SOLVED_NEGATIVES, SOLVED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """InfoNCE, averaged over anchors."""

    tau: float
    negatives: int  # N-
    loss: float
    chance_loss: float  # log(N- + 1)
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
    solved_share: float  # anchors whose positive beats every negative; by ids, of those whose
    # own sample is not in the queue
    found_share: float  # anchors whose positive is beaten by at most a tenth of their negatives
    misplaced_share: float  # anchors whose positive is beaten by more than half of them
    copied_share: float  # rows with a copy (cosine above 0.9999) among their negatives
    hard_miss: float  # predicted for a batch of neighbours
    hard_force_ratio: float  # (miss / tau)^2 of such a batch over that of this one
    repeated_id_share: float | None = None  # rows whose sample is in the batch again; needs ids

    def is_solved(self, count: int) -> bool:
        """Whether nearly all positives beat every one of `count` negatives.

        Beating fewer negatives is easier: the share is raised to the power of the missing ones.
        """
        share: float = self.solved_share ** max(1.0, SOLVED_NEGATIVES / count)
        return count >= FEW_NEGATIVES and share > SOLVED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """MoCo's queue, seen through a sample of its keys."""

    sampled: int
    sigma: float  # sigma_Q of the sample
    radius: float  # eps_K
    ceiling: float  # min(1, sigma_Q + eps_K)
    fill: float | None  # share of slots that hold a key; needs queue_ids
    self_negative_rate: float | None  # anchors whose own sample is in the queue; needs both ids
    likeness: float = 1.0  # cosine of the second moments of the queue and of the current keys
    length: int = 0  # slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Towers:
    """Both sides of `Contrast.cross`: image and text, question and answer."""

    first: Cloud  # of the anchors
    second: Cloud  # of the keys
    forward_loss: float  # first to second
    backward_loss: float  # second to first
    gap: float  # squared distance of the two mean embeddings, 0 to 4

    @property
    def symmetric_loss(self) -> float:
        """The mean of both directions, as CLIP trains it."""
        return (self.forward_loss + self.backward_loss) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The loss that the user's own code computed, against the measured one."""

    loss: float
    measured: float  # the closest of the losses that this layout allows
    explanation: str  # which common mistake gives exactly this loss, or ""


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


class Placed(NamedTuple):
    """How many positives rank low and high, and how many pairs say so."""

    misplaced: float  # share beaten by more than half of their negatives
    found: float  # share beaten by at most a tenth of them
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the run so far says, beyond this batch."""

    streaks: Mapping[str, int] = field(default_factory=dict)  # readings in a row, before this one
    movement: Mapping[str, float] = field(
        default_factory=dict
    )  # by side, the largest since the first reading
    repetition: float | None = None  # likeness of row i to row i of the reading before
    placed: Placed | None = None  # over the last readings
    loss_drop: float | None = None  # below chance, from the older to the newer half of readings
    solved_since: int | None = None  # step from which on every reading was solved
    found_at_first: float | None = None  # found_share of the first reading with a real queue
