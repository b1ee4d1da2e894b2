"""Appendix "Equivalence of Two Effective-Rank Estimators"."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenbatch import spectrum
from eigenbatch.core import participation_ratio
from eigenbatch_paper.claim import Chunk, Claim, Place, Row, Scale
from eigenbatch_paper.figures import BLUE, ORANGE, tidy
from eigenbatch_paper.synthetic import gaussian_rows
from eigenbatch_paper.verdict import Verdict, decided

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNT, DIM = 512, 128
DECAYS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # eigenvalues fall as j^-decay

_DRAWS: dict[Scale, int] = {"smoke": 1, "small": 10, "paper": 100}


def _chunks(scale: Scale) -> Sequence[Chunk]:
    return [Chunk("decaying spectra", {"seed": 0, "draws": _DRAWS[scale]})]


def _compute(chunk: Chunk, place: Place) -> list[Row]:
    generator = torch.Generator().manual_seed(chunk.settings["seed"])
    rows = []
    for decay in DECAYS:
        eigenvalues = torch.arange(1, DIM + 1, dtype=torch.float64) ** -decay
        error = ratio = entropy = 0.0
        for _ in range(chunk.settings["draws"]):
            z = gaussian_rows(COUNT, eigenvalues, generator=generator)
            lengths = 0.5 + torch.rand(COUNT, 1, dtype=torch.float64, generator=generator)
            for cloud in (z, z * lengths):  # unit rows, and rows of any length
                trace = cloud.square().sum()
                by_gram = (trace.square() / (cloud @ cloud.T).square().sum()).item()
                by_spectrum = spectrum(cloud, normalize=False).participation_ratio
                by_trace = participation_ratio(cloud, normalize=False)
                values = (by_gram, by_spectrum, by_trace)
                error = max(error, max(values) / min(values) - 1)
            found = spectrum(z)
            ratio += found.participation_ratio / chunk.settings["draws"]
            entropy += found.entropy_rank / chunk.settings["draws"]
        rows.append({"decay": decay, "error": error, "participation": ratio, "entropy": entropy})
    return rows


def _judge(rows: list[Row]) -> Verdict:
    error = max(row["error"] for row in rows)
    ratios = [row["entropy"] / row["participation"] for row in rows]
    measured = f"largest relative difference {error:.0e}"
    note = (
        "The entropy form (RankMe) of the paper's accuracy table is another quantity: "
        f"{min(ratios):.2f} to {max(ratios):.2f} times this one on the same rows."
    )
    return decided({"the three forms agree to 1e-9": error <= 1e-9}, {}, measured, note)


def _draw(rows: list[Row], figure: "Figure") -> None:
    axes = figure.subplots()
    decays = [row["decay"] for row in rows]
    entropy = [row["entropy"] for row in rows]
    participation = [row["participation"] for row in rows]
    axes.plot(decays, entropy, "o-", color=ORANGE)
    axes.plot(decays, participation, "o-", color=BLUE)
    axes.text(1.05, entropy[4] + 2, "entropy form (RankMe)", color=ORANGE, fontsize=9)
    axes.text(0.05, 6, "1 / tr(Sigma²), from the Gram matrix,\nthe spectrum or traces: the same",
              color=BLUE, fontsize=9)  # fmt: skip
    axes.set_ylim(0, None)
    tidy(
        axes,
        "The two estimators agree; the entropy form is something else",
        "how steeply the eigenvalues fall (power of the index)",
        f"effective rank of {COUNT} rows in dimension {DIM}",
    )


CLAIM = Claim(
    name="rank-estimators",
    section="Equivalence of Two Effective-Rank Estimators",
    statement="1/tr(Sigma^2) of the trace-one second moment equals (tr Z^T Z)^2/||Z Z^T||_F^2.",
    printed="identity",
    criterion="Reproduced if Gram, spectrum and trace forms agree to 1e-9 for unit rows and rows "
    "of any length; otherwise does not reproduce.",
    size={
        scale: f"7 spectra x {draws} draws, n = {COUNT}, d = {DIM}"
        for scale, draws in _DRAWS.items()
    },
    minutes={"smoke": 0.01, "small": 0.1, "paper": 0.8},
    chunks=_chunks,
    compute=_compute,
    judge=_judge,
    draw=_draw,
)
