"""How embeddings use their coordinates: two numbers that a spectrum cannot show.

A spectrum does not change under rotation, but two common faults are faults of single coordinates:
a ReLU as the last layer leaves no negative entry, and an unscaled feature fills one coordinate.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from eigenbatch.core.precision import accumulated


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What the coordinates of unit rows look like."""

    dominance: float  # d max_k E[z_k^2]: 1 when all coordinates are used alike, d for a single one
    negative_share: float  # of all entries; about 0.5 for centred embeddings, 0 after a ReLU

    @classmethod
    def from_sums(cls, sums: Tensor) -> Self:
        """The axes behind `axis_sums`, which add up over processes."""
        rows, negative = sums[0].item(), sums[1].item()
        squares = sums[2:]  # (d,)
        d = len(squares)
        return cls(
            dominance=d * squares.max().item() / rows,
            negative_share=negative / (rows * d),
        )


def random_dominance(dimension: int, sigma: float) -> float:
    """Dominance that a leading direction of strength sigma reaches by chance, at the 1 % level.

    A random unit vector u in d dimensions has u_k^2 > q with a probability of at most
    (1 - q)^((d - 1) / 2), so that all d of them stay below q = 1 - (0.01 / d)^(2 / (d - 1)) in 99
    of 100 cases. If the rows vary along u only, E[z_k^2] is about sigma u_k^2.
    """
    if dimension < 2:
        return 1.0
    largest: float = 1 - (0.01 / dimension) ** (2 / (dimension - 1))
    return dimension * sigma * largest


@torch.no_grad()
def axis_sums(rows: Tensor) -> Tensor:
    """(2 + d,): number of rows, negative entries, and the sum of z_k^2 for every coordinate k."""
    head = torch.stack([rows.new_tensor(len(rows)), (rows < 0).sum()])
    return torch.cat([accumulated(head), accumulated(rows.square().sum(0))])
