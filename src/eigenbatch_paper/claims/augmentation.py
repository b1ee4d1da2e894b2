"""Appendix "Influence of augmentation strength": jitter and blur at 0.5, 1 and 1.5."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale, Verdict
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (0.5, 1.0, 1.5)


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Greedy-64 at three strengths; the default one is shared with other claims."""
    return [
        chunk
        for strength in STRENGTHS
        for chunk in policies(
            scale, ("random", "greedy-64"), FEWER_SEEDS,
            **({} if strength == 1.0 else {"strength": strength}),
        )
    ]  # fmt: skip


def judge(rows: list[Row]) -> Verdict:
    """Time saved at every strength, to 90 % of that strength's Random accuracy."""
    savings, gains = _differences(rows)
    return facts.graded(
        {"Greedy-64 saves time at every strength": all(facts.better(d) for d in savings.values())},
        {"between 10 and 20 %": all(0.1 <= d.mean <= 0.2 for d in savings.values())},
        f"time saved at each strength: {facts.listed(savings)}; "
        f"accuracy: {facts.listed(gains, 'points')}",
        facts.beside(savings[1.0], 0.15),
    )  # fmt: skip


def _differences(
    rows: list[Row],
) -> tuple[dict[float, PairedDifference], dict[float, PairedDifference]]:
    groups = facts.grouped(rows, "strength", "selector")
    savings, gains = {}, {}
    for strength in STRENGTHS:
        random, greedy = groups[strength, "random"], groups[strength, "greedy-64"]
        savings[strength] = facts.saved(
            greedy, random, facts.time_to(0.9 * facts.mean(random, facts.accuracy))
        )
        gains[strength] = facts.gain(greedy, random, facts.accuracy)
    return savings, gains


def draw(rows: list[Row], figure: "Figure") -> None:
    """Time saved and accuracy gained at each strength."""
    savings, gains = _differences(rows)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [f"augmentation {s:g}x" for s in STRENGTHS]
    facts.draw_differences(left, names, list(savings.values()), "time saved by Greedy-64, %")
    facts.draw_differences(right, names, list(gains.values()), "accuracy gained, points")
    figure.suptitle("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = training_claim(
    name="augmentation",
    section="Influence of augmentation strength, Table",
    statement="Greedy-64 saves 14-15 % of the time to the target for weak, default and strong "
    "augmentation.",
    printed="+14 % / +15 % / +14 %",
    criterion="The time saved is significantly positive at each of the three strengths; and lies "
    "between 10 and 20 %.",
    runs="2 policies x 3 strengths",
    chunks=chunks,
    judge=judge,
    draw=draw,
)
