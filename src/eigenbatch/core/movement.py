"""Whether embeddings moved between two batches of different samples.

Letters: n rows, d dimension, k = min(d, 64) sketched dimensions, S = (1/n) sum z z^T.

Two batches of one unchanged encoder have second moments that differ by sampling alone. How much
that is, the two halves of one batch tell: with V the variance of a row's z z^T,

    E ||S - S'||^2 = 2 V / n        E ||S_even - S_odd||^2 = 4 V / n

so that F = 2 ||S - S'||^2 / ||S_even - S_odd||^2 is about 1 while nothing moves, whatever the data,
the dimension and the batch, and grows with movement. The mean of both batches' noise is used.

Rows are first projected onto k fixed orthonormal directions, which keeps such ratios and makes the
memory of a run small: k^2 numbers for a view.

A batch that is shown again is recognised row by row: the mean of <z_i, z_i'> minus <mean, mean'>
is near 0 for unrelated samples and near E <z_i, z_i+> when row i is the same sample as before.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from eigenbatch.core.contrast import accumulated, no_autocast

DIRECTIONS = 64
"""Dimensions of a sketch."""

ROWS = 256
"""Rows remembered to recognise a batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """The second moment of a view in k directions, and how well its rows determine it."""

    count: int
    second: Tensor  # (k, k) mean of p p^T with p the projected row
    noise: float  # ||S_even - S_odd||_F^2

    def moved(self, before: "Sketch") -> float:
        """F: about 1 when the encoder did not change since `before`, larger when it did."""
        second = before.second.to(self.second)  # a restored one is on the CPU
        distance = (self.second - second).square().sum().item()
        noise = (self.noise * self.count + before.noise * before.count) / 2  # 4 V
        expected = noise / 4 * (1 / self.count + 1 / before.count)
        if expected == 0:
            return float("inf") if distance else 0.0
        return distance / expected


def projected(rows: Tensor) -> Tensor:
    """(n, k) rows in fixed orthonormal directions, the same for every run and process."""
    d = rows.shape[1]
    if d <= DIRECTIONS:
        return rows
    with no_autocast(rows):
        return rows @ _directions(d).to(rows)


@lru_cache(maxsize=4)
def _directions(d: int) -> Tensor:
    """(d, k) orthonormal columns."""
    generator = torch.Generator().manual_seed(d)
    columns = torch.randn(d, DIRECTIONS, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(columns)[0]
    return basis.float()


@torch.no_grad()
def half_sums(seen: Tensor) -> Tensor:
    """(2, 1 + k^2) of projected rows (n, k): count and sum of p p^T, even and odd rows apart."""
    seen = accumulated(seen)
    halves = []
    with no_autocast(seen):
        for half in (seen[::2], seen[1::2]):
            count = half.new_tensor([len(half)])
            halves.append(torch.cat([count, (half.T @ half).flatten()]))
    return torch.stack(halves)


def sketch_of(sums: Tensor) -> Sketch:
    """The sketch behind `half_sums`, of one process or summed over several."""
    counts, seconds = sums[:, 0], sums[:, 1:]  # (2,), (2, k^2)
    k = round(seconds.shape[1] ** 0.5)
    even, odd = (seconds / counts[:, None]).unbind(0)
    return Sketch(
        count=int(counts.sum()),
        second=(seconds.sum(0) / counts.sum()).view(k, k),
        noise=(even - odd).square().sum().item(),
    )


@torch.no_grad()
def repetition_sums(rows: Tensor, before: Tensor) -> Tensor:
    """(1 + 1 + 2 k,): row count, sum of <p_i, p_i'>, sum of p and of p'; sums add up."""
    count = min(len(rows), len(before))
    now, then = accumulated(rows[:count]), accumulated(before[:count])
    inner = (now * then).sum().reshape(1)
    return torch.cat([now.new_tensor([count]), inner, now.sum(0), then.sum(0)])


def repetition(sums: Tensor, d: int) -> float:
    """Mean of <z_i, z_i'> minus <mean, mean'>, estimated from the projected rows."""
    count, inner = sums[0], sums[1]
    mean, before = (sums[2:] / count).chunk(2)
    k = len(mean)
    return (d / k * (inner / count - mean @ before)).item()


@torch.no_grad()
def remembered_rows(seen: Tensor) -> Tensor:
    """(at most 256, k) of the projected rows, kept to recognise the batch."""
    return seen[:ROWS].to("cpu", torch.float32, copy=True)


@torch.no_grad()
def moment_cosine(rows: Tensor, others: Tensor) -> float:
    """The cosine of the second moments behind two samples of rows, sampling noise removed.

    <S, S'> is the mean of <z_i, z_j'>^2, and ||S||^2 that over distinct rows of one sample; at most
    1 for populations, so that estimates above are cut.
    """
    with no_autocast(rows):
        cross = accumulated(rows @ others.T).square().mean().item()
        norms = [_distinct_squares(one) for one in (rows, others)]
    product = (norms[0] * norms[1]) ** 0.5
    return min(1.0, cross / product) if product else 1.0


def _distinct_squares(rows: Tensor) -> float:
    n = len(rows)
    if n < 2:
        return 0.0
    gram = accumulated(rows @ rows.T)
    return max(0.0, (gram.square().sum().item() - n) / (n * (n - 1)))
