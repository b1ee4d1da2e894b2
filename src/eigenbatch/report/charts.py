"""The sections of the page: what each chart shows, for someone who never read the paper.

Over 300 lines because it is one list of texts.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lines", "band", "heat", "accuracy", "paired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart. A second metric is drawn dotted beside the first."""

    id: str
    title: str
    caption: str
    axis: str
    metrics: tuple[str, ...]
    kind: Kind = "lines"
    log: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Charts about one question; `source` says what writes their numbers."""

    id: str
    title: str
    question: str
    source: str
    charts: tuple[Chart, ...]


MONITOR = "the spectral monitor writes them during `eigenbatch train` and `eigenbatch compare`"

SECTIONS = (
    Section(
        id="accuracy",
        title="Accuracy",
        question="How good are the features, and how soon?",
        source="an evaluation writes them, such as the k-NN probe after an epoch",
        charts=(
            Chart(
                id="accuracy-epochs",
                title="Accuracy by epoch",
                caption="Higher is better. A line is the mean over seeds, its band reaches from "
                "the worst to the best seed: look whether bands overlap. Dotted: before training.",
                axis="accuracy",
                metrics=("knn", "epoch"),
                kind="accuracy",
            ),
            Chart(
                id="accuracy-seconds",
                title="Accuracy by wall-clock time",
                caption="The same against the clock, selection and all overheads included: a "
                "method that only wins by epoch costs more than it gives.",
                axis="accuracy",
                metrics=("knn", "seconds"),
                kind="accuracy",
            ),
        ),
    ),
    Section(
        id="comparison",
        title="Comparison",
        question="Is a selector better than the baseline, or only luckier?",
        source="give finished runs that share all settings but selector and seed, from at least "
        "two selectors with seeds in common, as `eigenbatch compare` makes them",
        charts=(
            Chart(
                id="paired",
                title="Accuracy gained over the baseline, seed by seed",
                caption="Small dots are single seeds, the large one their mean with its 95 % "
                "interval: an interval that touches zero shows no difference.",
                axis="gained (percentage points)",
                metrics=("knn",),
                kind="paired",
                wide=True,
            ),
        ),
    ),
    Section(
        id="gradient",
        title="Gradient",
        question="How hard does the loss push, and is that what theory allows?",
        source=MONITOR,
        charts=(
            Chart(
                id="band",
                title="Squared gradient inside its band",
                caption="The thick line must stay within the filled certified band; dashed lines "
                "are the band as the paper prints it. A line falling by powers of ten means that "
                "learning stalls. Log scale; an edge at or below zero is drawn at the bottom.",
                axis="mean squared anchor gradient",
                metrics=(
                    "spectral/gradient",
                    "spectral/certified_lower",
                    "spectral/certified_upper",
                    "spectral/paper_lower",
                    "spectral/paper_upper",
                ),
                kind="band",
                log=True,
                wide=True,
            ),
        ),
    ),
    Section(
        id="loss",
        title="Loss",
        question="Is training getting anywhere?",
        source="every training step writes one",
        charts=(
            Chart(
                id="loss-steps",
                title="Training loss",
                caption="Lower is better within one setting; losses of other batch sizes or "
                "temperatures are no measure of quality.",
                axis="InfoNCE loss",
                metrics=("loss",),
                wide=True,
            ),
        ),
    ),
    Section(
        id="spectrum",
        title="Spectrum",
        question="In how many directions do the embeddings spread?",
        source=f"{MONITOR}, as `eigenvalues`",
        charts=(
            Chart(
                id="heat",
                title="Eigenvalues over time",
                caption="Each column is one moment of training, each row one direction, strongest "
                "at the bottom. Brightness should climb upwards; one bright row under darkness "
                "means that the embeddings collapse into a line.",
                axis="direction",
                metrics=("eigenvalues",),
                kind="heat",
                wide=True,
            ),
        ),
    ),
    Section(
        id="ranks",
        title="Ranks",
        question="How many directions are really used?",
        source=MONITOR,
        charts=(
            Chart(
                id="participation-ratio",
                title="R_eff",
                caption="How many directions the batch really uses, strong ones counting most: a "
                "fall towards 1 is collapse.",
                axis="R_eff",
                metrics=("spectral/participation_ratio",),
            ),
            Chart(
                id="entropy-rank",
                title="Entropy rank",
                caption="Counts weak directions as well (RankMe): well below the embedding's "
                "dimension means unused capacity.",
                axis="entropy rank",
                metrics=("spectral/entropy_rank",),
            ),
            Chart(
                id="stable-rank",
                title="Stable rank",
                caption="One over the share of the strongest direction: at 2, half of everything "
                "lies on a single line.",
                axis="stable rank",
                metrics=("spectral/stable_rank",),
            ),
        ),
    ),
    Section(
        id="isotropy",
        title="Isotropy",
        question="How far are the embeddings from filling space evenly?",
        source=MONITOR,
        charts=(
            Chart(
                id="isotropy-gap",
                title="Isotropy gap",
                caption="Zero is perfectly even, so lower is more spread out. The dotted line of "
                "each colour is corrected for the batch being small: where the two part, trust it.",
                axis="isotropy gap (%)",
                metrics=("spectral/isotropy_gap", "spectral/isotropy_gap_unbiased"),
                wide=True,
            ),
        ),
    ),
    Section(
        id="task",
        title="Task",
        question="What does the model still get wrong?",
        source=MONITOR,
        charts=(
            Chart(
                id="alignment",
                title="Alignment",
                caption="How much the mean of all candidates, weighted by the softmax, looks like "
                "the match: close to 1 there is nothing left to correct.",
                axis="alignment",
                metrics=("spectral/alignment",),
            ),
            Chart(
                id="uniformity",
                title="Uniformity",
                caption="More negative means that different samples lie further apart; a rise "
                "towards 0 means that they lie close to each other.",
                axis="uniformity",
                metrics=("spectral/uniformity",),
            ),
            Chart(
                id="miss",
                title="Miss",
                caption="Probability that a wrong sample is taken for the match: near 1 the task "
                "is unsolved, near 0 it teaches nothing more.",
                axis="miss",
                metrics=("spectral/miss",),
            ),
        ),
    ),
    Section(
        id="negatives",
        title="Negatives",
        question="How many other samples does each one learn from?",
        source=MONITOR,
        charts=(
            Chart(
                id="effective-negatives",
                title="Effective negatives",
                caption="How many negatives have weight in an anchor's softmax: close to 1 a "
                "single one has all of it, close to the dotted count all have the same.",
                axis="effective negatives",
                metrics=("spectral/effective_negatives", "spectral/negatives"),
                log=True,
                wide=True,
            ),
        ),
    ),
    Section(
        id="selection",
        title="Selection",
        question="Does choosing batches change them, and what does it cost?",
        source="the batch sampler writes them once it knows embeddings, after the first epoch",
        charts=(
            Chart(
                id="selected-rank",
                title="R_eff of chosen batches",
                caption="Dotted: a random batch from the same pool; the other line of that colour: "
                "the chosen one. Lines on top of each other mean that selection changes nothing.",
                axis="R_eff of cached embeddings",
                metrics=("sampler/participation_ratio", "sampler/baseline_participation_ratio"),
            ),
            Chart(
                id="age",
                title="Age of the embeddings chosen from",
                caption="How many updates ago the model last saw what it chooses by: the older, "
                "the blinder the choice.",
                axis="mean age (updates)",
                metrics=("sampler/mean_age",),
            ),
            Chart(
                id="share",
                title="Time spent selecting",
                caption="Share of all wall-clock time so far that went into choosing batches: what "
                "a better batch has to earn back.",
                axis="% of time",
                metrics=("selection_percent",),
            ),
        ),
    ),
)


def own_sections(names: Collection[str]) -> tuple[Section, ...]:
    """A section with one chart per metric of the user's own; none without any."""
    if not names:
        return ()
    charts = tuple(
        Chart(
            id=f"own-{number}",
            title=name,
            caption="As your code logged it.",
            axis=name,
            metrics=(name,),
        )
        for number, name in enumerate(sorted(names))
    )
    section = Section(
        id="own",
        title="Your metrics",
        question="What else did the run log?",
        source="`Recorder.log` writes them",
        charts=charts,
    )
    return (section,)


EVALUATIONS = ("knn", "mrr", "accuracy", "recall_at_1", "linear", "linear_5_labels", "rankme")
CURVES = tuple(
    dict.fromkeys(
        metric
        for section in SECTIONS
        for chart in section.charts
        if chart.kind in ("lines", "band")
        for metric in chart.metrics
    )
)
