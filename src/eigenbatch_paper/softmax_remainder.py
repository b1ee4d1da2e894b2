"""What the first-order expansion of the negatives' softmax leaves, on synthetic batches.

q_ij - 1/N- = (l_ij - mean l_i)/N- + R_ij with logits l = s/tau. Two statements of the appendix
bound R and C2 = eps sum_j R_ij z_j; the claims about them share these figures.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenbatch import infonce
from eigenbatch.core import Contrast
from eigenbatch_paper.batch_bands import decomposed
from eigenbatch_paper.claim import Chunk, Place, Row, Scale
from eigenbatch_paper.synthetic import (
    gaussian_rows,
    positives_at_cosine,
    spiked_eigenvalues,
)

TEMPERATURES = (0.05, 0.1, 0.2, 0.3)
TOPS = (0.0, 0.3, 0.6, 0.95)  # 0: isotropic
SIZES: dict[Scale, tuple[int, int, int]] = {  # pairs, d, batches
    "smoke": (16, 64, 2),
    "small": (128, 1024, 10),
    "paper": (128, 1024, 250),
}
SIZE_TEXTS: dict[Scale, str] = {
    scale: f"16 settings x {batches} batches, n = {2 * pairs}, d = {dim}"
    for scale, (pairs, dim, batches) in SIZES.items()
}


def remainder_chunks(scale: Scale) -> Sequence[Chunk]:
    """One chunk for each spectrum."""
    pairs, dim, batches = SIZES[scale]
    return [
        Chunk(
            f"softmax remainder, top eigenvalue {top or '1/d'}",
            {"pairs": pairs, "dim": dim, "top": top, "seed": 0, "batches": batches},
        )
        for top in TOPS
    ]


def remainder_rows(chunk: Chunk, place: Place) -> list[Row]:
    """Violations of each bound, and the largest ratios of both sides, by temperature."""
    settings = chunk.settings
    top = settings["top"] or 1 / settings["dim"]
    generator = torch.Generator().manual_seed(settings["seed"] + round(1000 * top))
    eigenvalues = spiked_eigenvalues(settings["dim"], top).float()
    rows: dict[float, Row] = {tau: {"top": settings["top"], "tau": tau} for tau in TEMPERATURES}
    for _ in range(settings["batches"]):
        z = gaussian_rows(settings["pairs"], eigenvalues, generator=generator)
        positives = positives_at_cosine(z, 0.6 + 0.4 * top, generator=generator)
        batch = decomposed(Contrast.paired(z.double(), positives.double()))
        for tau, row in rows.items():
            for name, value in _measure(batch.contrast, batch.negative_tops, tau).items():
                merge = max if name.startswith("most") else float.__add__
                row[name] = merge(row.get(name, 0.0), value)
    return list(rows.values())


def _measure(contrast: Contrast, tops: Tensor, tau: float) -> dict[str, float]:
    """One batch: names beginning with "most" are maxima, all others are sums."""
    rows, count = contrast.anchors, contrast.negative_count
    negative = contrast.negatives  # (n, n)
    similarity = rows @ rows.T  # (n, n)
    centred = similarity - (similarity * negative).sum(1, keepdim=True) / count
    deviation = centred.masked_fill(~negative, 0.0)  # (n, n) s - mean s, on negatives
    weights = (similarity / tau).masked_fill(~negative, -torch.inf).softmax(1)  # (n, n) q
    remainder = (weights - 1 / count - deviation / (count * tau)).masked_fill(~negative, 0.0)
    squares = (deviation / tau).square()  # (n, n)
    miss = infonce(contrast, tau).miss
    vector = remainder @ rows  # (n, d) C2 / eps
    spectral = (tops / tau**2).square()  # (n,) sigma*^2 / tau^4
    length = vector.square().sum(1)  # (n,)
    fourth = deviation.square().square().sum(1) / count / tops.square()  # (n,) C4 of each anchor
    box = miss.square() * fourth * spectral / count  # (n,)
    largest = remainder.abs().amax(1)
    return {
        "entries": float(negative.sum()),
        "anchors": float(len(rows)),
        "batches": 1.0,
        "eighth_violations": float((remainder.abs() > squares / 8).sum()),
        "half_violations": float((remainder.abs() > squares / (2 * count)).sum()),
        "norm_violations": float((largest > squares.amax(1) / 8).sum()),
        "most_norm": (largest / (squares.amax(1) / 8)).max().item(),
        "most_smoothness": (length / spectral).max().item(),  # the c_sm that is needed
        "box_violations": float((miss.square() * length).mean() > box.mean()),
        "most_box": ((miss.square() * length).mean() / box.mean()).item(),
        # What the proof yields when its last line is multiplied out: C4/4 and no 1/N-.
        "most_corrected": ((miss.square() * length).mean() / (count / 4 * box.mean())).item(),
        "most_fourth": fourth.max().item(),
    }


def joined(rows: list[Row], name: str) -> float:
    """The sum, or for names beginning with "most" the maximum, over settings."""
    values = [float(row[name]) for row in rows]
    return max(values) if name.startswith("most") else sum(values)
