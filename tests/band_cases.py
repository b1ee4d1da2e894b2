"""Batches that are hard to certify, and their true gradients by definition, in numpy.

Drawn from a numpy generator: layout, geometry, dtype, sizes, temperature. `true_gradients` shares
no code with the library: it takes the rows as the user gives them, in float64, or in numpy's long
double where the rows are float64 themselves. Used by the tests and by `python -m benchmarks
band_fuzz`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigenbatch import Contrast, gradient_band, infonce
from eigenbatch.core.sums import anchor_sums

LAYOUTS = ("paired", "cross", "queued", "queued_with_batch")
GEOMETRIES = (
    "random",
    "low_rank",
    "clustered",
    "duplicated",
    "antipodal",
    "one_hot",
    "constant",
    "near_collapsed",
    "heavy_tailed",
    "norms",
)
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
WORK = {"float64": 2e7}  # n M d of a batch at most; long double has no BLAS
USUAL_WORK = 2e8


@dataclass(frozen=True)
class Case:
    """One batch as a user would give it."""

    layout: str
    geometry: str
    dtype: str
    tau: float
    directions: int
    first: Tensor  # (n, d) anchors or first views
    second: Tensor  # (n, d) positives
    queue: Tensor  # (K, d), used by the queued layouts

    @property
    def contrast(self) -> Contrast:
        match self.layout:
            case "paired":
                return Contrast.paired(self.first, self.second)
            case "cross":
                return Contrast.cross(self.first, self.second)
        batch_negatives = self.layout == "queued_with_batch"
        return Contrast.queued(self.first, self.second, self.queue, batch_negatives=batch_negatives)

    def __str__(self) -> str:
        n, d = self.first.shape
        return (
            f"{self.layout}, {self.geometry}, {self.dtype}, n={n}, K={len(self.queue)}, d={d}, "
            f"tau={self.tau:.4g}, directions={self.directions}"
        )


def draw(
    number: int, *, rows: int = 600, dim: int = 600, queue: int = 65_536, seed: int = 0
) -> Case:
    """Batch `number`, with up to that many rows, dimensions and queued keys.

    Consecutive numbers go through all geometries, and then through all dtypes.
    """
    rng = np.random.default_rng([seed, number])
    geometry = GEOMETRIES[number % len(GEOMETRIES)]
    dtype = list(DTYPES)[number // len(GEOMETRIES) % len(DTYPES)]
    layout = str(rng.choice(LAYOUTS))
    d = _log_integer(rng, 1, dim)
    n = _log_integer(rng, 2, rows) if rng.random() < 0.3 else int(rng.integers(2, rows + 1))
    if layout == "paired":
        n = max(2, n // 2)  # pairs
    stored = _log_integer(rng, 1, queue) if layout.startswith("queued") else 1
    stored = queue if stored > 0.8 * queue else stored
    n = max(2, int(n * min(1.0, WORK.get(dtype, USUAL_WORK) / (n * (2 * n + stored) * d))))
    z = _rows(rng, geometry, 2 * n + stored, d, dtype)  # (2 n + K, d)
    first, second, extra = np.split(z, [n, 2 * n])
    aligned = rng.choice(["independent", "near", "copy"], p=[0.5, 0.3, 0.2])
    if aligned != "independent":
        noise = 10 ** rng.uniform(-6, 0) if aligned == "near" else 0.0
        second = first * (1 + noise * rng.standard_normal(first.shape))
    candidates = {"paired": 2 * n, "cross": n, "queued": stored}.get(layout, n + stored)
    return Case(
        layout=layout,
        geometry=geometry,
        dtype=dtype,
        tau=float(10 ** rng.uniform(-3, 2)),
        directions=min(int(rng.choice([0, 1, 1, 1, 2, 4])), candidates, d),
        first=_cast(first, dtype),
        second=_cast(second, dtype),
        queue=_cast(extra, dtype),
    )


def _log_integer(rng: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def _rows(rng: np.random.Generator, geometry: str, count: int, d: int, dtype: str) -> NDArray:
    """(count, d) float64 rows, not normalised."""
    z = rng.standard_normal((count, d))
    match geometry:
        case "low_rank":
            rank = int(rng.integers(1, 4))
            return rng.standard_normal((count, rank)) @ rng.standard_normal((rank, d))
        case "clustered":
            centres = rng.standard_normal((int(rng.integers(2, 9)), d))
            return centres[rng.integers(len(centres), size=count)] + 10 ** rng.uniform(-6, -1) * z
        case "duplicated":
            return z[rng.integers(max(2, count // 4), size=count)]
        case "antipodal":
            return rng.choice([-1.0, 1.0], size=(count, 1)) * (
                z[:1] + 10 ** rng.uniform(-9, -2) * z
            )
        case "one_hot":
            return np.eye(d)[rng.integers(d, size=count)]
        case "constant":
            return np.repeat(z[:1], count, axis=0)
        case "near_collapsed":
            return z[:1] / np.linalg.norm(z[:1]) + 10 ** rng.uniform(-12, -2) * z / d**0.5
        case "heavy_tailed":
            return rng.standard_cauchy((count, d))
        case "norms":
            reach = 3 if dtype == "float16" else 30
            return z * 10 ** rng.uniform(-reach, reach, size=(count, 1))
    return z


def _cast(z: NDArray, dtype: str) -> Tensor:
    """`z` in that dtype; what overflows is clipped, and a row without direction gets one."""
    largest = torch.finfo(DTYPES[dtype]).max
    rows = torch.from_numpy(z).clamp(-largest, largest).to(DTYPES[dtype])
    rows[(rows == 0).all(1), 0] = 1
    return rows


def outside(case: Case) -> NDArray:
    """(n,) which anchors the certified band fails: all of them where it fails the batch mean.

    A band also fails when its ends are out of order, or its own measurement lies outside.
    """
    contrast, truth = case.contrast, true_gradients(case)
    band = gradient_band(contrast, case.tau, directions=case.directions)
    lower, measured, upper = (
        z.double().numpy() for z in (band.lower, band.measured, band.upper)
    )  # (n,) each
    holds = (lower <= truth) & (truth <= upper) & band.contained.numpy()
    holds &= (lower >= 0) & (lower <= measured) & (measured <= upper)
    means = [band.mean]
    if case.directions == 1:  # what a monitor reads
        means.append(anchor_sums(contrast, infonce(contrast, case.tau)).certified)
    for mean in means:
        holds &= (mean.lower <= truth.mean()) & (truth.mean() <= mean.upper) & mean.contained
        holds &= 0 <= mean.lower <= mean.measured <= mean.upper
    return ~holds


def true_gradients(case: Case) -> NDArray:
    """(n,) gamma_i = ||grad of anchor i's loss||^2 of the exact rows, keys held fixed."""
    wide = np.longdouble if case.dtype == "float64" else np.float64
    first, second, queue = (_unit(z, wide) for z in (case.first, case.second, case.queue))
    n = len(first)
    own = np.arange(n)
    match case.layout:
        case "paired":
            anchors = keys = np.concatenate([first, second])
            own = np.roll(np.arange(2 * n), n)
        case "cross":
            anchors, keys = first, second
        case _:
            anchors, keys = first, np.concatenate([second, queue])
    everyone = np.arange(len(anchors))
    logits = anchors @ keys.T / wide(case.tau)  # (n, m)
    positive = logits[everyone, own]
    logits[everyone, own] = -np.inf
    if case.layout == "paired":
        logits[everyone, everyone] = -np.inf
    if case.layout == "queued":
        logits[:, :n] = -np.inf
    peak = logits.max(1, keepdims=True)
    weights = np.exp(logits - peak)
    mass = weights.sum(1)
    log_odds = peak[:, 0] + np.log(mass) - positive
    residual = (weights / mass[:, None]) @ keys - keys[own]  # (n, d) m - z+
    miss = np.exp(-np.logaddexp(wide(0), -log_odds))
    return (miss / wide(case.tau)) ** 2 * (residual**2).sum(1)


def _unit(z: Tensor, wide: type[np.floating]) -> NDArray:
    rows = z.double().numpy().astype(wide)
    rows = rows / np.abs(rows).max(1, keepdims=True)
    return rows / np.sqrt((rows**2).sum(1, keepdims=True))
