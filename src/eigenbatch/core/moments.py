"""Additive second moments: what a spectrum needs to know of a batch, mergeable across ranks."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from eigenbatch.checks import check_flags, check_tensor, whole
from eigenbatch.core.precision import accumulated, finite_rows, no_autocast, unit_rows
from eigenbatch.errors import ShapeError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Sums over rows, so that `a + b` describes both batches together.

    Args:
        count: rows n.
        sum: (d,) sum of z.
        second: (d, d) sum of z z^T.

    Examples:
        >>> import torch
        >>> from eigenbatch import moments
        >>> z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> (moments(z[:32]) + moments(z[32:])).count
        64
    """

    count: int
    sum: Tensor
    second: Tensor

    def __post_init__(self) -> None:
        whole(self.count, "count", least=0)
        check_tensor(self.sum, "sum")
        check_tensor(self.second, "second")

    def __add__(self, other: Self) -> "Moments":
        if self.sum.shape != other.sum.shape:
            raise ShapeError(
                f"moments of dimension {len(self.sum)} and {len(other.sum)} cannot be added"
            )
        return Moments(
            count=self.count + other.count,
            sum=self.sum + other.sum,
            second=self.second + other.second,
        )

    @property
    def mean(self) -> Tensor:
        """(d,) mean row."""
        return self.sum / self.count

    @property
    def second_moment(self) -> Tensor:
        """(d, d) Sigma-hat: uncentred; trace one for unit rows."""
        return self.second / self.count

    @property
    def covariance(self) -> Tensor:
        """(d, d) second moment of the centred rows."""
        return self.second_moment - torch.outer(self.mean, self.mean)


@torch.no_grad()
def moments(z: Tensor, *, normalize: bool = True) -> Moments:
    """Count, sum and second-moment sum of rows; the results of several batches can be added.

    Args:
        z: (n, d) rows.
        normalize: put rows on the unit sphere first.

    Returns:
        Sums in float64 on the CPU.

    Examples:
        >>> import torch
        >>> from eigenbatch import moments, spectrum
        >>> z = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
        >>> both = moments(z[:32]) + moments(z[32:])
        >>> abs(spectrum(both).top - spectrum(z).top) < 1e-12
        True
    """
    rows = accumulated_rows(z, normalize=normalize)  # (n, d)
    with no_autocast(rows):
        return Moments(count=len(rows), sum=rows.sum(0), second=rows.T @ rows)


def accumulated_rows(z: Tensor, *, normalize: bool) -> Tensor:
    """Detached rows in the dtype that sums are formed in."""
    check_tensor(z, "z")
    check_flags(normalize=normalize)
    rows = unit_rows(z.detach()) if normalize else finite_rows(z.detach(), "z")
    return accumulated(rows)
