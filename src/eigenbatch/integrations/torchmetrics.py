"""torchmetrics: the spectrum of everything seen since the last reset, on all processes."""

import torch
from torch import Tensor

from eigenbatch.checks import whole
from eigenbatch.core.cloud import cloud_of, known_numbers
from eigenbatch.core.contrast import check_matrix
from eigenbatch.core.spectrum import Moments, moments
from eigenbatch.errors import ShapeError
from eigenbatch.missing import missing

try:
    from torchmetrics import Metric
except ImportError as reason:
    raise missing("torchmetrics") from reason


class SpectralMetric(Metric):
    """Ranks, gaps and sigma-hat of all rows given to `update`; the state is additive.

    d^2 + d + 1 numbers are kept and summed across processes, whatever the number of rows.
    """

    full_state_update = False
    is_differentiable = False

    count: Tensor
    sum: Tensor
    second: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        whole(dimension, "dimension", least=1)
        wide = torch.float64
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("sum", torch.zeros(dimension, dtype=wide), dist_reduce_fx="sum")
        self.add_state(
            "second", torch.zeros(dimension, dimension, dtype=wide), dist_reduce_fx="sum"
        )

    def update(self, z: Tensor) -> None:
        """Add the rows of z (n, d), put on the unit sphere."""
        check_matrix(z, "z")
        if z.shape[1] != len(self.sum):
            raise ShapeError(f"z has dimension {z.shape[1]} but the metric {len(self.sum)}")
        batch = moments(z)
        self.count += batch.count
        self.sum += batch.sum
        self.second += batch.second

    def compute(self) -> dict[str, Tensor]:
        """Every number under its own name, as in `Reading.scalars`."""
        total = Moments(count=int(self.count), sum=self.sum, second=self.second)
        values = known_numbers(cloud_of(total))
        return {f"spectral/{name}": torch.tensor(value) for name, value in values.items()}
