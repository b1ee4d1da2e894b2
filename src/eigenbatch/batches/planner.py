"""Selectors and planners: what chooses a batch, and what arranges an epoch.

A *selector* chooses one batch from a pool: any callable `(pool, batch_size, *, generator) ->
indices`. A *planner* arranges all rows of an epoch into batches: any object with
`plan(rows, batch_size, *, generator) -> (batches, batch_size)`. `InTurn` makes a planner of a
selector. Letters: N rows in all, k rows of a pool, n rows of a batch, d dimensions.
"""

from copy import deepcopy
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.batches.separate import separate
from eigenbatch.checks import (
    check_callable,
    check_entries,
    check_generator,
    check_tensor,
    ids_tensor,
    real,
    whole,
)
from eigenbatch.core.contrast import check_matrix, finite_rows, unit_rows
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError

POOL_BATCHES = 10
"""The paper's pool, in batches."""


class Selector(Protocol):
    """Chooses one batch from a pool of embeddings; any such function is a selector.

    Examples:
        >>> import torch
        >>> from eigenbatch import select
        >>> def first_rows(pool, batch_size, *, generator=None):
        ...     return torch.arange(batch_size)
        >>> select(torch.randn(40, 8), 3, first_rows).tolist()
        [0, 1, 2]
    """

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(batch_size,) distinct indices into the pool (k, d), a LongTensor on its device."""
        ...


class Planner:
    """Arranges rows into batches. A subclass needs `plan`; the rest is for `SpectralBatchSampler`.

    An object with `plan` alone is a planner too.

    Attributes:
        apart: same-tower cosine above which the sampler keeps two rows of a batch apart.
        ordered: whether batches are handed out in the order of the plan, as those of a schedule;
            others are shuffled.
        handed_out: batches that were handed out before this plan, set by the sampler.
        figures: what the last plan was decided by, kept in `sampler.plan`.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, SpectralBatchSampler
        >>> from eigenbatch.batches import Planner
        >>> class ByFirstEntry(Planner):
        ...     def plan(self, rows, batch_size, *, generator=None):
        ...         order = rows[:, 0, 0].argsort()
        ...         return order[: len(rows) // batch_size * batch_size].view(-1, batch_size)
        >>> cache = EmbeddingCache(4, dim=2)
        >>> cache.update(range(4), torch.tensor([[1.0, 9], [8, 2], [2, 8], [9, 1]]))
        >>> sorted(sorted(ids) for ids in SpectralBatchSampler(cache, 2, ByFirstEntry()))
        [[0, 2], [1, 3]]
    """

    apart: float | None = None
    ordered = False
    handed_out = 0

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._replace = False

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d), float32 on the unit sphere.

        Returns:
            (N // batch_size, batch_size) indices of rows, none twice.
        """
        raise AssertionError("a planner defines plan")

    @property
    def name(self) -> str:
        """As it is said of a plan and in saved states."""
        return type(self).__name__

    def prepare(self, batch_size: int) -> None:
        """Look at the model; called in every process before one of them plans."""

    def draw_from(self, pool_size: int | None, *, replace: bool) -> None:
        """Tell selectors inside where they draw from; see `SpectralBatchSampler`."""
        if replace or pool_size is not None:
            raise ParameterError(
                f"pool_size and replace are for selectors such as Greedy(): {type(self).__name__} "
                "arranges all samples at once"
            )

    def state_dict(self) -> dict[str, Any]:
        """What the next plan depends on, as plain numbers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        check_entries(state, self.name, {})


class InTurn(Planner):
    """Plans with a selector: batches are taken in turn from a shuffled window of rows.

    Half of each batch are the rows that have been in the window longest, the others are what the
    selector puts first; fewer of them as the window empties. Otherwise the last batches would be
    what the selector avoids: with Greedy an effective rank of 1.6 where random batches have 19.
    Selectors see the first tower. Every plan begins with the selector as it was given.

    With `replace` every batch is chosen from a fresh random pool, as printed in the paper, so that
    rows may come several times or never.

    Args:
        selector: chooses a batch from a pool.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy
        >>> from eigenbatch.batches import InTurn  # a sampler makes it of a selector itself
        >>> InTurn(Greedy()).plan(torch.randn(100, 1, 8), 20).shape
        torch.Size([5, 20])
    """

    def __init__(self, selector: Selector) -> None:
        super().__init__()
        check_callable(selector, "selector", "Greedy()")
        self.selector = selector
        self.pool_size: int | None = None

    @property
    def name(self) -> str:
        """That of the selector."""
        return getattr(self.selector, "__name__", type(self.selector).__name__)

    def draw_from(self, pool_size: int | None, *, replace: bool) -> None:
        """Size of the window, or of each pool."""
        self.pool_size, self._replace = pool_size, replace

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        check_plan(rows, batch_size, generator)
        selector, n = deepcopy(self.selector), batch_size
        pool_size = max(n, min(self.pool_size or POOL_BATCHES * n, len(rows)))
        anchors, count = rows[:, 0], len(rows) // n
        if self._replace:
            pools = (shuffled(len(rows), generator, rows.device)[:pool_size] for _ in range(count))
            chosen = [
                filled(pool, _chosen(selector, anchors[pool], n, generator), n, generator)
                for pool in pools
            ]
            return torch.stack(chosen) if chosen else rows.new_empty(0, n, dtype=torch.long)
        order = shuffled(len(rows), generator, rows.device)[: count * n]  # (count n,)
        window, rest = order[:pool_size], order[pool_size:]
        batches = []
        for _ in range(count):
            longest = n - n // 2 * len(window) ** 2 // pool_size**2
            taken = torch.arange(longest, device=rows.device)
            if longest < n:
                picks = _chosen(selector, anchors[window], n, generator)
                taken = torch.cat([taken, picks[picks >= longest]])[:n]
                taken = filled(torch.arange(len(window)).to(taken), taken, n, generator)
            batches.append(window[taken])
            left = torch.ones(len(window), dtype=torch.bool, device=rows.device)
            left[taken] = False
            window, rest = torch.cat([window[left], rest[:n]]), rest[n:]
        return torch.stack(batches) if batches else order.view(0, n)


class Random(Planner):
    """Random batches; as a selector, rows drawn uniformly without replacement.

    Examples:
        >>> import torch
        >>> from eigenbatch import Random, select
        >>> len(select(torch.randn(40, 8), 10, Random()).unique())
        10
    """

    def draw_from(self, pool_size: int | None, *, replace: bool) -> None:
        """With `replace` every batch is drawn from all rows."""
        self._replace = replace

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        check_plan(rows, batch_size, generator)
        count = len(rows) // batch_size
        if self._replace:
            orders = (shuffled(len(rows), generator, rows.device) for _ in range(count))
            batches = [order[:batch_size] for order in orders]
            return torch.stack(batches) if batches else torch.empty(0, batch_size).long()
        order = shuffled(len(rows), generator, rows.device)
        return order[: count * batch_size].view(count, batch_size)

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch."""
        check_sizes(pool, batch_size)
        finite_rows(pool.detach(), "pool")
        return shuffled(len(pool), generator, pool.device)[:batch_size]


class _Custom(Planner):
    """A planner of the user's own, which has nothing but `plan`."""

    def __init__(self, planner: Any) -> None:
        super().__init__()
        self._planner = planner

    @property
    def name(self) -> str:
        """That of the user's class."""
        return type(self._planner).__name__

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        batches: Tensor = self._planner.plan(rows, batch_size, generator=generator)
        return batches


def as_planner(given: Any, name: str = "planner") -> Planner:
    """A planner as it is; a selector in turn."""
    if isinstance(given, type):
        raise ArgumentTypeError(
            f"{name} must be an object, such as {given.__name__}(), got a class"
        )
    if isinstance(given, Planner):
        return given
    if hasattr(given, "plan"):
        return _Custom(given)
    check_callable(given, name, "Neighbours() or Greedy()")
    return InTurn(given)


def select(
    pool: Tensor,
    batch_size: int,
    selector: Selector,
    *,
    groups: Tensor | None = None,
    apart: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Super-batch mode: embed more than a batch, keep the best one.

    For streams, where no index sampler can exist:

        z = encoder(images)                       # 10 x batch_size rows
        keep = select(z, batch_size, Greedy())    # then train on images[keep]

    Args:
        pool: (k, d) embeddings of the candidates.
        batch_size: how many of them to keep.
        selector: a selector, such as `Greedy()`.
        groups: (k,) integers: rows of one group are exchanged until each stands alone.
        apart: cosine above which two rows are exchanged as near-duplicates; None: no limit.
        generator: the source of randomness; torch's global one if not given.

    Returns:
        (batch_size,) indices into the pool; fewer only from `Greedy(literal=True)`.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy, select
        >>> z = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
        >>> z[select(z, 10, Greedy())].shape
        torch.Size([10, 8])
    """
    check_callable(selector, "selector", "Greedy()")
    check_generator(generator)
    check_sizes(pool, batch_size)
    groups = None if groups is None else ids_tensor(groups, "groups")
    if groups is not None and groups.shape != (len(pool),):
        raise ShapeError(f"groups must hold {len(pool)} integers, got {tuple(groups.shape)}")
    apart = None if apart is None else real(apart, "apart")
    chosen = _chosen(selector, pool.detach(), batch_size, generator)
    if groups is None and apart is None:
        return chosen
    rest = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
    rest[chosen] = False
    batches, _ = separate(
        chosen[None],
        unit_rows(pool.detach(), "pool")[:, None],
        groups=groups,
        apart=apart,
        spare=rest.nonzero()[:, 0],
        generator=generator,
    )
    return batches[0]


def _chosen(
    selector: Selector, pool: Tensor, batch_size: int, generator: torch.Generator | None
) -> Tensor:
    """What `selector` returns; raises unless it is a batch of distinct indices into the pool."""
    chosen: Any = selector(pool, batch_size, generator=generator)
    fewer = bool(getattr(selector, "literal", False))  # Algorithm 2 as printed
    name = getattr(selector, "__name__", type(selector).__name__)
    wanted = (
        f"a selector must return {batch_size} distinct indices below {len(pool)} as a LongTensor"
    )
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.int64:
        kind = chosen.dtype if isinstance(chosen, Tensor) else type(chosen).__name__
        fix = "use torch.tensor(indices, dtype=torch.int64)"
        raise ArgumentTypeError(f"{wanted}, but {name} returned {kind}: {fix}")
    if chosen.ndim != 1 or not (1 if fewer else batch_size) <= len(chosen) <= batch_size:
        raise ShapeError(f"{wanted}, but {name} returned shape {tuple(chosen.shape)}")
    ascending = chosen.sort().values
    if (ascending[1:] == ascending[:-1]).any() or ascending[0] < 0 or ascending[-1] >= len(pool):
        raise ParameterError(f"{wanted}, but {name} returned {chosen.tolist()!s:.200}")
    return chosen


def filled(
    pool: Tensor, chosen: Tensor, batch_size: int, generator: torch.Generator | None
) -> Tensor:
    """`pool[chosen]`, filled up at random from the rest of the pool."""
    missing = batch_size - len(chosen)
    if not missing:
        return pool[chosen]
    rest = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
    rest[chosen] = False
    others = pool[rest]
    others = others[shuffled(len(others), generator, pool.device)[:missing]]
    return torch.cat([pool[chosen], others])


def check_plan(rows: Tensor, batch_size: int, generator: torch.Generator | None) -> None:
    """Raise unless rows (N, towers, d) can be arranged into batches of this size."""
    check_tensor(rows, "rows")
    if rows.ndim != 3:
        raise ShapeError(f"rows must have the shape (N, towers, d), got {tuple(rows.shape)}")
    whole(batch_size, "batch_size", least=1)
    check_generator(generator)


def check_sizes(pool: Tensor, batch_size: int) -> None:
    """Raise unless `batch_size` rows can be chosen from the pool."""
    check_matrix(pool, "pool")
    whole(batch_size, "batch_size", least=1)
    if len(pool) < batch_size:
        raise ShapeError(
            f"pool has {len(pool)} rows but batch_size is {batch_size}: a selector needs k >= n "
            "(is drop_last=False leaving a short last pool?)"
        )


def shuffled(count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """A random permutation of `count` indices on `device`, drawn on the generator's own."""
    check_generator(generator)
    source = device if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=source).to(device)
