"""Corollary "Operator-norm control": the correlation of negatives is at most d times a norm."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, tidy
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (0.01, 0.02, 0.05, 0.1)
KINDS = {True: "one direction for all batches", False: "a direction drawn for each batch"}

_SIZES: dict[Scale, tuple[int, int]] = {"smoke": (8, 500), "small": (16, 20_000),
                                        "paper": (64, 400_000)}  # fmt: skip


def _chunks(scale: Scale) -> Sequence[Chunk]:
    dim, draws = _SIZES[scale]
    return [
        Chunk(f"alpha {alpha:g}, {'fixed' if fixed else 'drawn'}",
              {"dim": dim, "draws": draws, "alpha": alpha, "fixed": fixed, "seed": 0})
        for alpha in STRENGTHS
        for fixed in KINDS
    ]  # fmt: skip


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    """E[z_j z_k^T] of two rows of one batch, over draws of the batch."""
    settings = chunk.settings
    generator = torch.Generator().manual_seed(settings["seed"])
    dim, draws, alpha = settings["dim"], settings["draws"], settings["alpha"]
    shared = torch.randn(draws, dim, generator=generator, dtype=torch.float64)
    if settings["fixed"]:
        shared = shared[:1].expand(draws, dim)
    shared = shared / shared.norm(dim=1, keepdim=True)
    pair = [
        _unit(alpha**0.5 * shared + (1 - alpha) ** 0.5 * noise / dim**0.5)
        for noise in torch.randn(2, draws, dim, generator=generator, dtype=torch.float64)
    ]
    moment = pair[0].T @ pair[1] / draws  # (d, d)
    symmetric = (moment + moment.T) / 2
    return [
        {"alpha": alpha, "fixed": settings["fixed"], "dim": dim,
         "correlation": symmetric.trace().item(),
         "norm": torch.linalg.matrix_norm(symmetric, 2).item()}
    ]  # fmt: skip


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows)


def _slack(row: Row) -> float:
    return float(row["dim"] * row["norm"] / row["correlation"])


def _judge(rows: list[Row]) -> Verdict:
    slack = {fixed: [_slack(row) for row in rows if row["fixed"] is fixed] for fixed in KINDS}
    everything = [*slack[True], *slack[False]]
    return decided(
        {"the correlation is at most d times the norm": min(everything) >= 1},
        {},
        f"d eta / mu: {min(slack[False]):.2f} to {max(slack[False]):.2f} with a direction drawn "
        f"for each batch, {min(slack[True]):.1f} to {max(slack[True]):.1f} with one for all "
        f"(d = {rows[0]['dim']})",
        "It is tr C <= d ||C||, tight only if all directions are correlated alike. A cone of "
        "embeddings, the case that matters, has one: the bound is then d times too large.",
    )


def _draw(rows: list[Row], figure: "Figure") -> None:
    axes = figure.subplots()
    for colour, (fixed, label) in zip((ORANGE, BLUE), KINDS.items(), strict=True):
        heights = [_slack(row) for row in rows if row["fixed"] is fixed]
        axes.plot(STRENGTHS, heights, "o-", color=colour, label=label)
    axes.axhline(1, color=GREY, lw=1)
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    tidy(axes, "The bound holds; it is d times too large for a cone", "alpha",
         "d eta / mean correlation")  # fmt: skip


CLAIM = Claim(
    name="operator-norm",
    section="Effect of Correlated Negatives, Corollary on the operator norm",
    statement="The mean correlation of negatives is at most d times the norm of E[z_j z_k^T].",
    printed="mu <= d eta",
    criterion="d eta is at least mu in every setting of the shared-component model.",
    size={scale: f"8 settings x {draws:,} pairs of rows, d = {dim}"
          for scale, (dim, draws) in _SIZES.items()},
    minutes={"smoke": 0.01, "small": 0.05, "paper": 1},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)  # fmt: skip
