"""The paper's pool policies P1, P2 and P3.

A pool is parted at random into k // n candidate batches (section "Greedy vs. Pool"), of which one
is kept by its effective rank R = (tr H)^2 / ||H||_F^2, H the smaller Gram of the batch
(Algorithm 1). Letters: k rows of the pool, c candidate batches of n rows, d dimensions.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from eigenbatch.batches.planner import check_sizes, shuffled
from eigenbatch.checks import check_flags, described, real
from eigenbatch.core.contrast import accumulation_dtype, finite_rows, no_autocast, unit_rows
from eigenbatch.errors import ArgumentTypeError, ParameterError

MEMORY = 1000
"""Candidate ranks that P3 remembers for its running percentiles."""


class _Partition:
    """Shared by the pool policies: draw the partition, score it, take the batch at `_choice`."""

    def __init__(self, *, normalize: bool = True) -> None:
        check_flags(normalize=normalize)
        self.normalize = normalize

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        check_sizes(pool, batch_size)
        rows = (unit_rows if self.normalize else finite_rows)(pool.detach(), "pool")
        count = len(rows) // batch_size
        order = shuffled(len(rows), generator, rows.device)
        candidates = order[: count * batch_size].view(count, batch_size)
        ranks = candidate_ranks(rows[candidates])  # (count,)
        return candidates[self._choice(ranks, min(batch_size, rows.shape[1]))]

    def _choice(self, ranks: Tensor, attainable: int) -> Tensor:
        raise AssertionError("a policy defines its choice")


class PoolMax(_Partition):
    """P1, stability: the candidate batch of largest effective rank.

    Args:
        normalize: put rows on the unit sphere before they are scored.

    Examples:
        >>> import torch
        >>> from eigenbatch import PoolMax, select
        >>> pool = torch.randn(400, 8)
        >>> len(select(pool, 20, PoolMax()).unique())
        20
    """

    def _choice(self, ranks: Tensor, attainable: int) -> Tensor:
        return ranks.argmax()


class PoolMin(_Partition):
    """P2, update magnitude: the candidate batch of smallest effective rank. Use rarely.

    Args:
        normalize: put rows on the unit sphere before they are scored.

    Examples:
        >>> import torch
        >>> from eigenbatch import PoolMin, select
        >>> pool = torch.randn(400, 8)
        >>> len(select(pool, 20, PoolMin()).unique())
        20
    """

    def _choice(self, ranks: Tensor, attainable: int) -> Tensor:
        return ranks.argmin()


class PoolBalanced(_Partition):
    """P3, balanced: the candidate batch whose rank is closest to a target.

    The target is p10 + fraction (p90 - p10) of the latest candidate ranks, or, with `window`,
    the absolute interval [low, high] (ties inside go to the one nearest its middle).

    Args:
        fraction: where between the 10th and 90th percentile of ranks the target lies.
        window: absolute ranks (low, high) instead.
        normalize: put rows on the unit sphere before they are scored.

    Examples:
        >>> import torch
        >>> from eigenbatch import PoolBalanced, select
        >>> pool = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> len(select(pool, 20, PoolBalanced(fraction=0.3)))
        20
    """

    def __init__(
        self,
        fraction: float = 0.5,
        window: tuple[float, float] | None = None,
        *,
        normalize: bool = True,
    ) -> None:
        super().__init__(normalize=normalize)
        if not 0 <= real(fraction, "fraction") <= 1:
            raise ParameterError(f"fraction must lie in [0, 1], got {fraction}")
        self.fraction = fraction
        self.window = None if window is None else check_window(window)
        self._seen: deque[float] = deque(maxlen=MEMORY)

    def _choice(self, ranks: Tensor, attainable: int) -> Tensor:
        if self.window is not None:
            low, high = (min(edge, attainable) for edge in self.window)
            outside = (ranks - ranks.clamp(low, high)).abs()
            nearest = outside == outside.min()
            off_middle = (ranks - (low + high) / 2).abs()
            return off_middle.masked_fill(~nearest, torch.inf).argmin()
        self._seen.extend(ranks.tolist())
        low, high = self.percentiles
        target = low + self.fraction * (high - low)
        return (ranks - min(max(target, 1.0), attainable)).abs().argmin()

    @property
    def percentiles(self) -> tuple[float, float]:
        """p10 and p90 of the latest candidate ranks."""
        if not self._seen:
            raise ParameterError("no candidate has been scored yet: there are no percentiles")
        seen = torch.tensor(list(self._seen), dtype=torch.float64)
        low, high = torch.quantile(seen, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist()
        return low, high


def candidate_ranks(batches: Tensor) -> Tensor:
    """Participation ratio of each batch, clipped to [1, min(n, d)].

    Args:
        batches: (c, n, d) candidate batches.

    Returns:
        (c,) ratios.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import candidate_ranks
        >>> candidate_ranks(torch.stack([torch.eye(3), torch.ones(3, 3)])).tolist()
        [3.0, 1.0]
    """
    _, n, d = batches.shape
    other = batches.mT
    with no_autocast(batches):
        grams = batches @ other if n < d else other @ batches  # (c, s, s), s = min(n, d)
    wide = accumulation_dtype(batches.device)
    traces = batches.square().sum((1, 2), dtype=wide)  # (c,)
    return (traces.square() / grams.square().sum((1, 2), dtype=wide)).clamp(1, min(n, d))


def check_window(window: tuple[float, float]) -> tuple[float, float]:
    """A window of effective ranks, 1 <= low <= high."""
    if not isinstance(window, Sequence) or isinstance(window, str) or len(window) != 2:
        raise ArgumentTypeError(f"window must be a pair (low, high), got {described(window)}")
    low, high = (real(edge, "window") for edge in window)
    if not 1 <= low <= high:
        raise ParameterError(f"a window of effective ranks needs 1 <= low <= high, got {window}")
    return low, high
