"""Paragraph "Numerical scale": A = 7.33 and the 150-fold ceiling of whitening."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eigenbatch.core import variance_coefficient
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, tidy
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, TAU, DIM, REMAINDER = 4096, 0.1, 256, 0.02  # B_tau is the paper's own measurement
PRINTED_COEFFICIENT, PRINTED_RATIO = 7.33, 150
STARTS = (1 / 256, 0.01, 0.03, 0.1, 0.3, 1.0)  # sigma* before whitening


def _chunks(scale: Scale) -> Sequence[Chunk]:
    return [Chunk("arithmetic")]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    coefficient = variance_coefficient(BATCH - 2, TAU)
    whitened = coefficient / DIM + REMAINDER
    # Even isotropic rows, drawn independently, have a top eigenvalue above 1/d (Marchenko-Pastur).
    sampled = (1 + (DIM / BATCH) ** 0.5) ** 2 / DIM
    return [
        {
            "coefficient": coefficient,
            "sampled": coefficient * sampled + REMAINDER,
            "starts": list(STARTS),
            "ratios": [(coefficient * sigma + REMAINDER) / whitened for sigma in STARTS],
        }
    ]


def _judge(rows: list[Row]) -> Verdict:
    row = rows[0]
    ratio, tenth = row["ratios"][-1], row["ratios"][STARTS.index(0.1)]
    measured = f"A = {row['coefficient']:.3f}, ratio {ratio:.1f}"
    note = (
        f"The ratio compares a batch on a single line (sigma* = 1) with an exactly isotropic one. "
        f"From sigma* = 0.1 the same formula allows x{tenth:.0f}; independent isotropic rows, not "
        f"whitened, stand at a bound of {row['sampled']:.3f} instead of "
        f"{row['coefficient'] / DIM + REMAINDER:.3f}. The bound itself fails: see variance-band."
    )
    return decided(
        {
            "A rounds to 7.33": round(row["coefficient"], 2) == PRINTED_COEFFICIENT,
            "the ratio is within 2 % of 150": abs(ratio / PRINTED_RATIO - 1) <= 0.02,
        },
        {},
        measured,
        note,
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    row = rows[0]
    axes = figure.subplots()
    axes.plot(row["starts"], row["ratios"], "o-", color=BLUE)
    axes.plot(1, row["ratios"][-1], "o", color=ORANGE)
    for start, ratio in zip(row["starts"], row["ratios"], strict=True):
        axes.text(start * 0.9, ratio * 1.12, f"{ratio:.1f}", fontsize=8, ha="right",
                  color=ORANGE if start == 1 else BLUE)  # fmt: skip
    axes.text(0.2, 130, "the printed 150 starts from\na batch on a single line",
              color=ORANGE, fontsize=8, ha="right", va="top")  # fmt: skip
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.002, 1.5)
    axes.set_xticks([0.004, 0.01, 0.03, 0.1, 0.3, 1], ["1/256", "0.01", "0.03", "0.1", "0.3", "1"])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.minorticks_off()
    tidy(
        axes,
        "What whitening may save by formula (V) depends on how collapsed the batch was",
        "top eigenvalue of the negatives before whitening",
        "variance bound before / after",
    )


CLAIM = Claim(
    name="numerical-scale",
    section="Diversity manipulation via in-batch whitening, Numerical scale",
    statement="For n = 4096, tau = 0.1, A(N-, tau) is about 7.33, and full whitening at d = 256 "
    "reduces the right-hand side of (V) by at most about 150.",
    printed="A = 7.33, ratio 150",
    criterion="Reproduced if A rounds to 7.33 and the ratio (A + B)/(A/d + B) with the printed "
    "B = 0.02 is within 2 % of 150; otherwise does not reproduce. Arithmetic only.",
    size={"smoke": "arithmetic", "small": "arithmetic", "paper": "arithmetic"},
    minutes={"smoke": 0.01, "small": 0.01, "paper": 0.01},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
