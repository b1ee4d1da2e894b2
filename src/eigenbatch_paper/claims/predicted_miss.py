"""Beyond the paper: whether what a plan says beforehand tells what it will gain."""

from statistics import fmean
from typing import TYPE_CHECKING

from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, tidy
from eigenbatch_paper.pairs import TUNED, UNSEEN, pair_chunks, pair_claim
from eigenbatch_paper.training_facts import grouped
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.5
Point = tuple[float, float]


def chunks(scale: Scale) -> list[Chunk]:
    """The runs of random batches and neighbours of two other claims."""
    return pair_chunks(scale, DATA, ("random", "neighbours"))


def judge(rows: list[Row]) -> Verdict:
    """Rank correlation over the settings."""
    from scipy.stats import spearmanr

    found = _points(rows)
    added, gains = zip(*found.values(), strict=True)
    agreement = float(spearmanr(added, gains).statistic)
    enough = len({row["seed"] for row in rows}) >= 3
    return decided(
        {f"rank correlation of at least {LEAST}": agreement >= LEAST if enough else "open"},
        {},
        f"rank correlation {agreement:.2f} over {len(found)} settings",
        "; ".join(
            f"{name}: a plan's miss is {more:+.3f} above that of random batches, gain "
            f"{100 * gain:+.1f} points"
            for name, (more, gain) in found.items()
        )
        + ".",
    )


def _points(rows: list[Row]) -> dict[str, Point]:
    """By setting: predicted miss less that of random batches, mean over plans; gain in MRR."""
    found = {}
    for (data, n), group in grouped(rows, "data", "batch_size").items():
        groups = grouped(group, "selector")
        hard = groups["neighbours"]
        added = fmean(fmean(r["plan_predicted_miss"]) - fmean(r["plan_random_miss"]) for r in hard)
        found[f"{data}, n={n}"] = added, facts.gain(hard, groups["random"]).mean
    return found


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gain over what the plans said."""
    axes = figure.subplots()
    axes.axhline(0, color=GREY, lw=0.8)
    for name, (added, gain) in _points(rows).items():
        axes.plot(added, 100 * gain, "o", color=BLUE)
        offset = (5, 3)
        axes.annotate(name, (added, 100 * gain), offset, textcoords="offset points", fontsize=7)
    tidy(
        axes,
        "Does a plan foretell its gain?",
        "predicted miss, planned less random batches",
        "gain of neighbours in final MRR, points",
    )


DATA = (*TUNED, *UNSEEN)
SETTING = "the runs of random batches and neighbours of planned-batches and gap-rule"
CLAIM = pair_claim(
    DATA,
    name="predicted-miss",
    statement="The more a plan's predicted miss exceeds that of random batches, the more its "
    "batches gain.",
    printed="nothing",
    criterion=f"Over all data sets and batch sizes, the rank correlation between the mean excess "
    f"of the predicted miss and the mean gain of neighbours in final MRR is at least {LEAST}.",
    setting=SETTING,
    minutes=45,
    chunks=chunks,
    judge=judge,
    draw=draw,
)
