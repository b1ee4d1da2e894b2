"""Everything a second moment says about a cloud of unit rows, each number under its own name.

Only `Moments` are needed, never the rows: moments add up across processes and across batches, and
so do the readings made from them.
"""

import math
from dataclasses import dataclass

import torch

from eigenbatch.core.errors import ShapeError
from eigenbatch.core.moments import Moments
from eigenbatch.core.spectrum import Spectrum, spectrum


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """Ranks, gaps and the mean direction of `count` unit rows in `dimension` dimensions."""

    count: int
    dimension: int
    sigma_hat: float  # top eigenvalue, between 1/d and 1
    mean_sqnorm: float  # ||zbar||^2: what all rows have in common
    participation_ratio: float
    participation_ratio_unbiased: float
    entropy_rank: float
    stable_rank: float
    centred_entropy_rank: float
    isotropy_gap: float
    isotropy_gap_unbiased: float

    @property
    def attainable_rank(self) -> int:
        """min(n, d): the largest value any uncentred rank can take."""
        return min(self.count, self.dimension)

    @property
    def attainable_centred_rank(self) -> int:
        """min(n - 1, d): one direction goes with the mean."""
        return min(self.count - 1, self.dimension)

    @property
    def mean_share(self) -> float:
        """||zbar||^2 / sigma-hat in [0, 1]: how much of the top eigenvalue is just the mean."""
        return self.mean_sqnorm / self.sigma_hat


def cloud_of(total: Moments, cloud_spectrum: Spectrum | None = None) -> Cloud:
    """The summary of all rows behind `total`; they must have been unit rows.

    `cloud_spectrum` is `spectrum(total)`, for callers that need it too.
    """
    n, d = total.count, len(total.sum)
    if n < 2:
        raise ShapeError(f"a cloud needs at least 2 rows, got {n}")
    values = spectrum(total) if cloud_spectrum is None else cloud_spectrum
    # Mean of <z_i, z_j>^2 over i != j: tr(Sigma^2) of the population behind the sample.
    squares = total.second.square().sum().item()
    off_diagonal = max(0.0, squares - n) / (n * (n - 1))
    excess = d * off_diagonal - 1
    return Cloud(
        count=n,
        dimension=d,
        sigma_hat=values.top,
        mean_sqnorm=total.mean.square().sum().item(),
        participation_ratio=values.participation_ratio,
        participation_ratio_unbiased=math.inf if off_diagonal == 0 else 1 / off_diagonal,
        entropy_rank=values.entropy_rank,
        stable_rank=values.stable_rank,
        centred_entropy_rank=_centred_entropy_rank(total),
        isotropy_gap=values.isotropy_gap,
        isotropy_gap_unbiased=math.copysign(100 * math.sqrt(abs(excess)), excess),
    )


def _centred_entropy_rank(total: Moments) -> float:
    """Entropy rank of the covariance; 0 when all rows are one and the same."""
    covariance = total.covariance  # (d, d)
    rounding = len(covariance) * torch.finfo(covariance.dtype).eps
    if covariance.trace() <= rounding:
        return 0.0
    centred = Moments(
        count=total.count, sum=torch.zeros_like(total.sum), second=covariance * total.count
    )
    return spectrum(centred).entropy_rank
