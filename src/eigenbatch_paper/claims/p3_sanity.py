"""Paragraph "Sanity checks" of policy P3, and the range and branches its algorithm relies on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenbatch import spectrum
from eigenbatch.batches import candidate_ranks
from eigenbatch.core import participation_ratio
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, GREY, ORANGE, tidy
from eigenbatch_paper.synthetic import gaussian_rows, spiked_eigenvalues
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHAPES = ((8, 64), (64, 64), (128, 512), (256, 32))  # n, d
NOISE = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # added to identical or orthogonal rows

_DRAWS: dict[Scale, int] = {"smoke": 2, "small": 20, "paper": 500}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    return [
        Chunk(f"{n} rows of dimension {d}", {"n": n, "d": d, "seed": 0, "draws": _DRAWS[scale]})
        for n, d in SHAPES
    ]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    n, d = chunk.settings["n"], chunk.settings["d"]
    generator = torch.Generator().manual_seed(chunk.settings["seed"])
    branches = outside = sigma_below = 0.0
    for _ in range(chunk.settings["draws"]):
        z = gaussian_rows(n, spiked_eigenvalues(d, max(0.2, 1 / d)), generator=generator)
        rows_gram = (n**2 / (z @ z.T).square().sum()).item()
        dims_gram = (n**2 / (z.T @ z).square().sum()).item()
        whole = spectrum(z)
        values = [rows_gram, dims_gram, whole.participation_ratio, candidate_ranks(z[None]).item()]
        branches = max(branches, max(values) / min(values) - 1)
        outside += not 1 - 1e-12 <= rows_gram <= min(n, d) * (1 + 1e-12)
        sigma_below += whole.top < 1 / rows_gram - 1e-12
    orthogonal = torch.eye(d, dtype=torch.float64)[:n] if n <= d else None
    return [
        {
            "n": n,
            "d": d,
            "identical": participation_ratio(torch.ones(n, d, dtype=torch.float64)),
            "orthogonal": None if orthogonal is None else participation_ratio(orthogonal),
            "branches": branches,
            "outside": outside,
            "sigma_below": sigma_below,
            "noise": list(NOISE),
            "from_identical": [
                _noisy(torch.ones(n, d, dtype=torch.float64) / d**0.5, size, generator)
                for size in NOISE
            ],
            "from_orthogonal": None
            if orthogonal is None
            else [_noisy(orthogonal, size, generator) for size in NOISE],
        }
    ]


def _noisy(rows: torch.Tensor, size: float, generator: torch.Generator) -> float:
    """Effective rank after adding to each unit row noise of the given length."""
    noise = torch.randn(rows.shape, dtype=rows.dtype, generator=generator) / rows.shape[1] ** 0.5
    return participation_ratio(rows + size * noise)


def _judge(rows: list[Row]) -> Verdict:
    identical = max(abs(row["identical"] - 1) for row in rows)
    orthogonal = max(abs(r["orthogonal"] / r["n"] - 1) for r in rows if r["orthogonal"] is not None)
    branches = max(row["branches"] for row in rows)
    outside = sum(row["outside"] + row["sigma_below"] for row in rows)
    measured = (
        f"R = 1 to {identical:.0e}, R = n to {orthogonal:.0e}, branches agree to {branches:.0e}"
    )
    wide = next(row for row in rows if row["from_orthogonal"] is not None and row["n"] == row["d"])
    note = (
        f'"Near-orthogonal" must be taken strictly when n = d = {wide["n"]}: independent random '
        f"rows, whose cosines are about 1/sqrt(d), have R near n/2, not n "
        f"(noise as long as the row: {wide['from_orthogonal'][NOISE.index(1.0)]:.0f})."
    )
    right = max(identical, orthogonal, branches) <= 1e-9 and outside == 0
    return decided({"every check holds": right}, {}, measured, note)


def _draw(rows: list[Row], figure: "Figure") -> None:
    row = next(r for r in rows if (r["n"], r["d"]) == (64, 64))
    axes = figure.subplots()
    place = range(len(NOISE))
    axes.plot(place, row["from_orthogonal"], "o-", color=BLUE)
    axes.plot(place, row["from_identical"], "o-", color=ORANGE)
    axes.text(0, 60, "orthogonal rows: 64", color=BLUE, fontsize=9)
    axes.text(0, 3, "identical rows: 1", color=ORANGE, fontsize=9)
    axes.axhline(32, color=GREY, linewidth=1, linestyle=":")
    axes.text(0, 33, "independent random rows: about half", color=GREY, fontsize=8)
    axes.set_xticks(place, [f"{x:g}" for x in NOISE])
    axes.set_ylim(0, 68)
    tidy(
        axes,
        "Both sanity checks hold; added noise moves either batch to half of the maximum",
        "length of the noise added to each unit row",
        "effective rank of 64 rows in dimension 64",
    )


CLAIM = Claim(
    name="p3-sanity",
    section="Balanced Spectral Picker (Policy P3), Sanity checks",
    statement="Identical rows have R_eff = 1, orthogonal rows n; the ZZ^T and Z^T Z branches "
    "agree; R_eff lies in [1, min(n, d)] and sigma-hat >= 1/R_eff.",
    printed="R = 1, R = n",
    criterion="Reproduced if both values and the agreement of the branches hold to 1e-9 and no "
    "draw leaves the range or has sigma-hat below 1/R; otherwise does not reproduce.",
    size={scale: f"4 shapes x {draws} draws" for scale, draws in _DRAWS.items()},
    minutes={"smoke": 0.01, "small": 0.05, "paper": 0.2},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
