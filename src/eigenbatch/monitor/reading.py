"""A reading: everything one batch says about the run, in one flat record.

Each number is declared once, with its meaning. `scalars()`, the table of a notebook, the list of
what loggers send and docs/readings.md are made from the declarations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from eigenbatch.checks import check_flags
from eigenbatch.core.bands import BatchBand, Method
from eigenbatch.core.cloud import (
    NAN,
    Cloud,
    Declared,
    declared,
    documented,
    known_numbers,
    note,
    number,
)
from eigenbatch.core.prediction import Outlook

if TYPE_CHECKING:
    from eigenbatch.monitor.findings import Finding


class Placed(NamedTuple):
    """How many positives rank low and high, and how many pairs say so."""

    misplaced: float  # share beaten by more than half of their negatives
    found: float  # share beaten by at most a tenth of them
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the run so far says, beyond this batch."""

    streaks: Mapping[str, int] = field(default_factory=dict)  # readings in a row, before this one
    movement: Mapping[str, float] = field(default_factory=dict)  # by side, the largest so far
    repetition: float | None = None  # likeness of row i to row i of the reading before
    placed: Placed | None = None  # over the last readings
    loss_drop: float | None = None  # below chance, from the older to the newer half of readings
    solved_since: int | None = None  # step from which on every reading was solved
    found_at_first: float | None = None  # found_share of the first reading with a real queue


@documented
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading(Cloud):
    """One batch. `step` and `course` are None outside a monitor.

    A batch with NaN, infinite or zero rows gives a reading too: its numbers are NaN, `failure` says
    what was found, and its only finding is the critical "not finite". Ranks are those of the keys;
    of two towers, `first_tower` has those of the anchors.

    Examples:
        >>> import torch
        >>> from eigenbatch import SpectralMonitor
        >>> z = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
        >>> reading = SpectralMonitor(tau=0.1, every=1, quiet=True)(*z)
        >>> reading.negatives, reading.step
        (126, 0)
    """

    findings: "tuple[Finding, ...]" = note(
        "what is wrong, most severe first, or one `healthy`; see docs/diagnosis.md", default=()
    )
    anchors: int = note("number of anchors", default=0)

    tau: float = number("softmax temperature", default=NAN)
    loss: float = number("mean InfoNCE of the anchors", title="loss", logged=True, default=NAN)
    chance_loss: float = number(
        "log(N- + 1): the loss of guessing", title="loss at chance", default=NAN
    )
    miss: float = number(
        "1 - p of the positive, mean over anchors", title="miss", logged=True, default=NAN
    )
    alignment: float = number("rho-bar: 1 less the mean of miss x ||m - z+||", default=NAN)
    positive_similarity: float = number(
        "mean cosine of positives", title="positive similarity", logged=True, default=NAN
    )
    effective_negatives: float = number(
        "1 / ||q||^2: how many negatives an anchor is pushed by", title="effective negatives",
        logged=True, default=NAN,
    )  # fmt: skip
    negatives: int = number("N-: negatives of an anchor", default=0)

    gradient: float = number(
        "mean squared gradient of an anchor's own loss, keys held fixed",
        title="squared gradient", logged=True, default=NAN,
    )  # fmt: skip
    gradient_force: float = number("mean of (miss / tau)^2", default=NAN)
    gradient_geometry: float = number(
        "gradient / force: ||m - z+||^2 in [0, 4], weighted by force", default=NAN
    )
    certified_lower: float = number(
        "lower end of the certified band", title="certified from", logged=True, default=NAN
    )
    certified_upper: float = number(
        "upper end of the certified band", title="certified to", logged=True, default=NAN
    )
    paper_lower: float = number("lower end of the paper's band", default=NAN)
    paper_upper: float = number("upper end of the paper's band", default=NAN)
    gradient_variance: float = number("variance of the squared gradient over anchors", default=NAN)
    gradient_variance_bound: float = number("the paper's bound on it, equation (V)", default=NAN)
    gradient_rolling_variance_bound: float = number(
        "the same for the variance of a batch's mean", default=NAN
    )
    method: Method = note("which band `band` is", default="certified")

    uniformity: float = number(
        "log mean exp(-2 ||x - y||^2) over (anchor, negative) pairs", default=NAN
    )
    harder_share: float = number("negatives more similar than the anchor's positive", default=NAN)
    near_duplicate_rate: float = number(
        "anchors with a negative as similar as the mean positive", default=NAN
    )
    near_duplicate_isolation: float = number(
        "share of nearly alike negatives that are fully alike", default=NAN
    )
    solved_share: float = number(
        "anchors whose positive beats every negative; with ids, of those whose own sample is not "
        "in the queue", logged=True, default=NAN,
    )  # fmt: skip
    found_share: float = number(
        "anchors whose positive is beaten by at most a tenth of their negatives", default=NAN
    )
    misplaced_share: float = number(
        "anchors whose positive is beaten by more than half of them", default=NAN
    )
    copied_share: float = number(
        "rows with a copy (cosine above 0.9999) among their negatives", default=NAN
    )
    hard_miss: float = number("miss predicted for a batch of neighbours", default=NAN)
    hard_force_ratio: float = number("force of such a batch over that of this one", default=NAN)
    repeated_id_share: float | None = number(
        "rows whose sample is in the batch again; needs ids", default=None
    )
    axis_dominance: float = number(
        "d max E[z_k^2]: 1 when all coordinates are used alike; of two towers the larger",
        default=NAN,
    )
    negative_entries: float = number(
        "entries below 0: about 0.5 for centred embeddings; of two towers the smaller", default=NAN
    )
    outlook: Outlook = note("what predictions need; None if unreadable", default=None)

    queue_length: int | None = note("slots of MoCo's queue", default=None)
    queue_sampled: int | None = note("keys of the queue that were looked at", default=None)
    queue_sigma: float | None = number("sigma_Q of a sample of the queue", default=None)
    queue_radius: float | None = number("eps_K, by which the sample may err", default=None)
    queue_sigma_ceiling: float | None = number("min(1, sigma_Q + eps_K)", default=None)
    queue_fill: float | None = number("slots that hold a key; needs queue_ids", default=None)
    queue_likeness: float | None = number(
        "cosine of the second moments of the queue and of the current keys", default=None
    )
    self_negative_rate: float | None = number(
        "anchors whose own sample is in the queue; needs both ids", default=None
    )

    backward_loss: float | None = number("two towers: second to first", default=None)
    symmetric_loss: float | None = number(
        "two towers: mean of both directions, as CLIP trains it", default=None
    )
    modality_gap: float | None = number(
        "two towers: squared distance of the two means, 0 to 4", default=None
    )
    first_tower: Cloud | None = note("ranks of the anchors of two towers", default=None)

    your_loss: float | None = number("the loss that your code computed", default=None)
    closest_loss: float | None = note("that of the losses of this layout it is closest to",
                                      default=None)  # fmt: skip
    loss_explanation: str = note("which mistake its value proves, or empty", default="")

    input_dtype: str | None = note("dtype of the embeddings as they were given", default=None)
    input_resolution: float = note("machine epsilon of that dtype", default=0.0)
    input_half: bool = note("whether that dtype has 16 bits or fewer", default=False)
    shortest_row: float = note("smallest norm of the rows as they were given", default=1.0)
    longest_row: float = note("largest norm of the rows as they were given", default=1.0)

    gradient_ema: float | None = number(
        "moving average of the gradient over readings", default=None
    )
    gradient_rolling_variance: float | None = number(
        "variance of the gradient over the last 50 readings", default=None
    )
    movement: float | None = number(
        "largest change of the embeddings since the first reading, in units of sampling noise; of "
        "several encoders the smallest", logged=True, default=None,
    )  # fmt: skip
    course: Course | None = note("what was seen in the run so far", default=None)
    failure: str | None = note("why the batch cannot be read", default=None)
    step: int | None = note("step of the run", default=None)

    @property
    def band(self) -> BatchBand:
        """The band that the monitor's `method` names."""
        certified = self.method == "certified"
        return BatchBand(
            lower=self.certified_lower if certified else self.paper_lower,
            measured=self.gradient,
            upper=self.certified_upper if certified else self.paper_upper,
        )

    @property
    def selection(self) -> str | None:
        """Whether it would pay to select which samples share a batch; None if it was unreadable."""
        from eigenbatch.monitor.rules import selection_outlook

        return None if self.failure is not None else selection_outlook(self)

    def scalars(self, *, all: bool = True) -> dict[str, float]:
        """Numbers under "spectral/...", for any logger; absent ones are left out.

        Args:
            all: False: the dozen that loggers send unless they are asked for all (`LOGGED`).
        """
        check_flags(all=all)
        if self.failure is not None:
            return {"spectral/readable": 0.0}
        numbers = known_numbers(self) | {"readable": 1.0}
        if self.first_tower is not None:
            first = known_numbers(self.first_tower)
            numbers |= {f"first_tower/{name}": value for name, value in first.items()}
        named = {f"spectral/{name}": value for name, value in numbers.items()}
        return {name: value for name, value in named.items() if all or name in LOGGED}

    def _repr_html_(self) -> str:
        """A small table for notebooks: findings first, then the numbers to look at."""
        findings = "".join(
            f"<p><b>{escape(one.severity)}: {escape(one.name)}</b><br/>{escape(one.evidence)}<br/>"
            f"<i>{escape(one.advice)}</i></p>"
            for one in self.findings
        )
        known = known_numbers(self) if self.failure is None else {}
        rows = "".join(
            f"<tr><td>{one.title}</td><td>{known[one.name]:.4g}</td></tr>"
            for one in NUMBERS
            if one.title and one.name in known
        )
        place = "" if self.step is None else f"<p>step {self.step}</p>"
        return f"{place}{findings}<table>{rows}</table>"


NUMBERS: tuple[Declared, ...] = tuple(declared(Reading))
"""Every number of a reading."""

LOGGED = frozenset(
    {"spectral/readable"} | {f"spectral/{one.name}" for one in NUMBERS if one.logged}
)
"""What loggers send unless they are asked for all."""
