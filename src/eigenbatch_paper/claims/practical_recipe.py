"""Paragraph "Practical recipe": warm up with a pool policy, then Greedy-64."""

from typing import TYPE_CHECKING

from eigenbatch_paper import training_facts as facts
from eigenbatch_paper.claim import Chunk, Row, Scale
from eigenbatch_paper.tables import Table, mean_sem, share
from eigenbatch_paper.training_chunks import FEWER_SEEDS, policies, training_claim
from eigenbatch_paper.verdict import Verdict, all_of, decided, effect, no_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("random", "p1", "p3", "greedy-64")
GUIDANCE = {
    "p1": ("warm-up (20 epochs or fewer)", ("2 of 3 stars", "medium to low", "3 stars")),
    "p3": ("mid to late", ("2 of 3 stars", "high", "3 stars")),
    "greedy-64": ("after the warm-up", ("3 stars", "low", "2 of 3 stars")),
    "random": ("ablations", ("0 of 3 stars", "low", "1 of 3 stars")),
}
WARMUP: dict[Scale, int] = {"smoke": 2, "small": 86, "paper": 3700}
"""Batches: 15 of the 137 epochs that Random needs to the target in the paper, 11 % of all here."""


def chunks(scale: Scale) -> list[Chunk]:
    """The recipe as printed, the recipe by the clock, and each of its parts alone."""
    warm = WARMUP[scale]
    recipes = ("recipe", f"recipe-{warm}", f"p1-greedy-{warm}")
    return policies(scale, (*recipes, *PARTS), FEWER_SEEDS)


def judge(rows: list[Row]) -> Verdict:
    """Time and accuracy of the recipe that switches after the warm-up, against every part."""
    groups = facts.grouped(rows, "selector")
    recipe, other = _warmed_up(groups, "recipe-"), _warmed_up(groups, "p1-greedy-")
    target = facts.target_of(groups["p3"], facts.TARGET)
    time = facts.time_to(target)
    savings = {name: facts.saved(recipe, groups[name], time) for name in PARTS}
    gains = {name: facts.gain(recipe, groups[name], facts.accuracy) for name in PARTS}
    early = facts.saved(other, groups["random"], time)
    stuck = all(a["knn"] == b["knn"] for a, b in zip(groups["recipe"], groups["p3"], strict=True))
    return decided(
        {"the recipe is faster than Random": effect(savings["random"])},
        {
            "so is a warm-up with P1": effect(early),
            "it is faster than each part alone": all_of(effect(d) for d in savings.values()),
            "it is as accurate (within a point)": all_of(
                no_loss(d, within=0.01) for d in gains.values()
            ),
        },
        f"time saved against: {facts.listed(savings)}; accuracy: {facts.listed(gains, 'points')}; "
        f"with P1 first, time saved against random: {facts.percent(early)}",
        f"{facts.unreached(rows, target)} "
        + ("As printed, with a switch at an isotropy gap of 5 %, it never switches: it is P3, bit "
           "for bit." if stuck else "As printed, the recipe did switch."),
    )  # fmt: skip


def _warmed_up(groups: dict[str, list[Row]], name: str) -> list[Row]:
    """The runs that switch after a number of batches."""
    return next(rows for selector, rows in groups.items() if selector.startswith(name))


def table(rows: list[Row]) -> Table:
    """Table "Qualitative trade-offs": what the stars stand for here."""
    groups = facts.grouped(rows, "selector")
    time = facts.time_to(facts.target_of(groups["p3"], facts.TARGET))
    lines = []
    for name, (stage, printed) in GUIDANCE.items():
        runs = groups[name]
        ours = (
            f"{share(facts.saved(runs, groups['random'], time).mean)} time saved",
            f"{facts.mean(runs, lambda row: float(row['selection_share'])):.1%} of the time",
            f"peak sigma {mean_sem(map(facts.peak_sigma, runs), digits=2)}",
        )
        cells = (("as printed", stage), *zip(ours, printed, strict=True))
        lines.append((facts.LABELS[name], cells))
    return Table(
        "Trade-offs; more stars are better.",
        ("Policy", "Stage", "Wall-clock", "Overhead", "Stability"),
        lines,
    )


def draw(rows: list[Row], figure: "Figure") -> None:
    """Gains over each part."""
    groups = facts.grouped(rows, "selector")
    recipe = _warmed_up(groups, "recipe-")
    axes = figure.subplots()
    gains = [facts.gain(recipe, groups[name], facts.accuracy) for name in PARTS]
    facts.draw_differences(
        axes, PARTS, gains, "accuracy of P3, then Greedy-64, over this policy alone, points"
    )
    axes.set_title("Blue: significant at 95 %; grey: not", fontsize=10)


CLAIM = training_claim(
    name="practical-recipe",
    section="Computational Efficiency, Practical recipe",
    statement="A warm-up with P1/P3 and a switch to Greedy-64 is the best of both.",
    printed="no figure given",
    criterion="P3 for 15 of 137 epochs to the target (11 % of a small run), then Greedy-64, saves "
    "time against Random to 97.8 % of P3's final accuracy; and against each part, without losing a "
    "point of accuracy.",
    runs="7 policies",
    chunks=chunks,
    timed=True,
    judge=judge,
    draw=draw,
    table=table,
)
