"""Appendix "Influence of augmentation strength": jitter and blur at 0.5, 1 and 1.5."""

from typing import TYPE_CHECKING

from eigenbatch.runs import PairedDifference
from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.tables import Table, mean_sem, share
from eigenbatch_paper.training_chunks import policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (0.5, 1.0, 1.5)
PRINTED = {0.5: 0.14, 1.0: 0.15, 1.5: 0.14}
HOURS = {
    "Weak (-50 %)": ("7.05 ± 0.10 h", "6.05 ± 0.08 h", "+14 %"),
    "Default": ("7.20 ± 0.11 h", "6.10 ± 0.09 h", "+15 %"),
    "Strong (+50 %)": ("7.35 ± 0.12 h", "6.30 ± 0.10 h", "+14 %"),
}


def chunks(scale: Scale) -> list[Chunk]:
    """Random and Greedy-64 at three strengths; P3, whose accuracy is the target, at the default."""
    both = ("random", "greedy-64")
    return [
        *policies(scale, (*both, "p3")),
        *(c for s in STRENGTHS if s != 1.0 for c in policies(scale, both, strength=s)),
    ]


def judge(rows: list[Row]) -> Verdict:
    """Time saved at every strength, to one target."""
    savings, gains = _differences(rows)
    return decided(
        {
            "Greedy-64 saves time at every strength": all_of(
                effect(savings[s], PRINTED[s]) for s in STRENGTHS
            )
        },
        {},
        f"time saved at each strength: {facts.listed(savings)}; "
        f"accuracy: {facts.listed(gains, 'points')}",
        facts.unreached(rows, _target(rows)),
    )  # fmt: skip


def _target(rows: list[Row]) -> float:
    """97.8 % of the final accuracy of P3 at the default strength: the target of wall-clock."""
    return facts.target_of([row for row in rows if row["selector"] == "p3"], facts.TARGET)


def _runs(rows: list[Row], strength: float) -> dict[str, list[Row]]:
    """The runs of a strength by policy."""
    return facts.grouped([row for row in rows if row["strength"] == strength], "selector")


def _differences(
    rows: list[Row],
) -> tuple[dict[float, PairedDifference], dict[float, PairedDifference]]:
    savings, gains = {}, {}
    for strength in STRENGTHS:
        groups, target = _runs(rows, strength), _target(rows)
        both = groups["greedy-64"], groups["random"]
        savings[strength] = facts.saved(*both, facts.time_to(target))
        gains[strength] = facts.gain(*both, facts.accuracy)
    return savings, gains


def table(rows: list[Row]) -> Table:
    """Table "Wall-clock time to reach 67.5 % top-1" by strength."""
    savings, _ = _differences(rows)
    lines = []
    for strength, (name, printed) in zip(STRENGTHS, HOURS.items(), strict=True):
        groups, target = _runs(rows, strength), _target(rows)
        times = [
            facts.at_least(
                mean_sem(map(facts.time_to(target), groups[one]), unit="s"), groups[one], target
            )
            for one in ("random", "greedy-64")
        ]
        ours = (*times, share(savings[strength].mean))
        lines.append((name, tuple(zip(ours, printed, strict=True))))
    return Table(
        "Time to 97.8 % of the final accuracy of P3 at the default strength.",
        ("Augmentation", "Random", "Greedy-64", "Gain"),
        lines,
    )


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
    criterion="At each of the three strengths Greedy-64 saves time to 97.8 % of P3's final "
    "accuracy at the default strength (67.5 of 69.0 %, one target for all).",
    runs="2 policies x 3 strengths, and P3",
    chunks=chunks,
    timed=True,
    judge=judge,
    draw=draw,
    table=table,
)
