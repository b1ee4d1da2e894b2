"""Schedules: which planner or selector makes which batches, as composition.

What a schedule goes by (rank, isotropy gap, loss) is looked at once per plan and compared between
plans: on one snapshot of the embeddings everything looks steady. Batches are counted when they are
handed out.
"""

import math
from collections import deque
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.batches.greedy import Greedy
from eigenbatch.batches.planner import InTurn, Planner, Selector, as_planner, check_plan, shuffled
from eigenbatch.batches.pools import PoolBalanced
from eigenbatch.checks import (
    are_numbers,
    check_callable,
    check_entries,
    is_dict,
    is_flag,
    real,
    whole,
)
from eigenbatch.core.contrast import check_matrix
from eigenbatch.core.spectrum import isotropy_gap, participation_ratio
from eigenbatch.errors import ParameterError


class Signal(Protocol):
    """Says when a schedule switches: called once per plan."""

    def __call__(self, rows: Tensor, handed_out: int) -> int | None:
        """From which batch on; None: not in this plan.

        Args:
            rows: (N, d) first towers of the samples that are planned.
            handed_out: batches handed out before.

        Returns:
            The number of the first batch after the switch, counted like `handed_out`.
        """
        ...


class AfterBatches:
    """Switches once `count` batches were handed out.

    Args:
        count: batches before the switch.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import AfterBatches
        >>> AfterBatches(100)(torch.randn(40, 8), handed_out=90)
        100
    """

    def __init__(self, count: int) -> None:
        self.count = whole(count, "count", least=0)

    def __call__(self, rows: Tensor, handed_out: int) -> int | None:
        """The same batch, whatever the rows are."""
        _check_call(rows, handed_out)
        return self.count


class IsotropyBelow:
    """Switches once the noise-corrected isotropy gap of the embeddings is small enough.

    The raw gap of a batch never gets near 5 % (sampling alone gives 100 sqrt((d-1)/n)), so the
    paper's switch only makes sense with the unbiased estimate.

    Args:
        percent: largest gap that counts as isotropic.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import IsotropyBelow
        >>> signal = IsotropyBelow(5.0)
        >>> signal(torch.ones(40, 8), 0), signal(torch.eye(8).repeat(200, 1), 0)
        (None, 0)
    """

    def __init__(self, percent: float = 5.0) -> None:
        self.percent = real(percent, "percent")

    def __call__(self, rows: Tensor, handed_out: int) -> int | None:
        """Measure the gap."""
        _check_call(rows, handed_out)
        isotropic = len(rows) > 1 and isotropy_gap(_some(rows), unbiased=True) <= self.percent
        return handed_out if isotropic else None


class RankSteady:
    """Switches once the unbiased R_eff of the embeddings changes little between two plans.

    Args:
        tolerance: largest relative difference.

    Examples:
        >>> import torch
        >>> from eigenbatch.batches import RankSteady
        >>> signal, rows = RankSteady(), torch.eye(8).repeat(5, 1)
        >>> signal(rows, 0), signal(rows, 5)
        (None, 5)
    """

    def __init__(self, tolerance: float = 0.02) -> None:
        if not real(tolerance, "tolerance") >= 0:
            raise ParameterError(f"tolerance must be at least 0, got {tolerance}")
        self.tolerance = tolerance
        self.rank: float | None = None  # at the plan before

    def __call__(self, rows: Tensor, handed_out: int) -> int | None:
        """Measure the rank and compare it with that of the plan before."""
        _check_call(rows, handed_out)
        if len(rows) < 2:
            return None
        before, self.rank = self.rank, participation_ratio(_some(rows), unbiased=True)
        if before is None or not abs(self.rank - before) <= self.tolerance * before:
            return None
        return handed_out


def _check_call(rows: Tensor, handed_out: int) -> None:
    """Raise unless a signal can be asked with these arguments."""
    check_matrix(rows, "rows", least=0)
    whole(handed_out, "handed_out", least=0)


def _some(rows: Tensor) -> Tensor:
    """At most 8,192 rows, evenly spaced: enough for a rank."""
    return rows[:: -(-len(rows) // 8192)]


class _Parts(Planner):
    """A planner that lets two others make its batches; each gets a random share of the rows."""

    ordered = True

    def __init__(self, first: Planner, second: Planner) -> None:
        super().__init__()
        self._first, self._second = first, second

    @property
    def apart(self) -> float | None:  # type: ignore[override]
        """The lowest limit of the parts that have one."""
        limits = [part.apart for part in (self._first, self._second) if part.apart is not None]
        return min(limits, default=None)

    def prepare(self, batch_size: int) -> None:
        """Let both parts look at the model."""
        for part in (self._first, self._second):
            part.prepare(batch_size)

    def draw_from(self, pool_size: int | None, *, replace: bool) -> None:
        """Tell the parts."""
        self._replace = replace
        for part in (self._first, self._second):
            if isinstance(part, InTurn | _Parts):
                part.draw_from(pool_size, replace=replace)

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        check_plan(rows, batch_size, generator)
        count = len(rows) // batch_size
        by_second = self._by_second(rows, count)  # (count,)
        order = shuffled(len(rows), generator, rows.device)[: count * batch_size]
        batches = torch.empty(count, batch_size, dtype=torch.long, device=rows.device)
        start = 0
        for part, mine in ((self._first, ~by_second), (self._second, by_second)):
            size = int(mine.sum()) * batch_size
            share = order if self._replace else order[start : start + size]
            start += size
            if size:
                part.handed_out = self.handed_out
                made = share[part.plan(rows[share], batch_size, generator=generator)]
                if not part.ordered:
                    made = made[shuffled(len(made), generator, rows.device)]
                batches[mine.to(rows.device)] = made[: int(mine.sum())]
        self.figures = self._first.figures | self._second.figures
        return batches

    def _by_second(self, rows: Tensor, count: int) -> Tensor:
        """(count,) which of the next batches the second part makes."""
        raise AssertionError("a schedule divides its batches")

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts."""
        return {"parts": [self._first.state_dict(), self._second.state_dict()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with them."""
        check_entries(state, type(self).__name__, {"parts": _are_states})
        for part, its_own in zip((self._first, self._second), state["parts"], strict=True):
            part.load_state_dict(its_own)


class Schedule(_Parts):
    """`warmup` until `when` says so, `then` from that batch on.

    The default is the paper's recipe: Pool-P3, then Greedy-64 once the isotropy gap is at most 5 %.
    Schedules nest: `then` may be another one.

    Args:
        warmup: the first planner or selector.
        then: the second one.
        when: a signal, such as `AfterBatches(100)`.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Neighbours, Random, Schedule
        >>> from eigenbatch import SpectralBatchSampler
        >>> from eigenbatch.batches import AfterBatches
        >>> schedule = Schedule(Random(), Neighbours(), AfterBatches(100))
        >>> sampler = SpectralBatchSampler(EmbeddingCache(1000, dim=16), 50, schedule)
    """

    def __init__(
        self,
        warmup: Planner | Selector | None = None,
        then: Planner | Selector | None = None,
        when: Signal | None = None,
    ) -> None:
        super().__init__(
            as_planner(PoolBalanced() if warmup is None else warmup, "warmup"),
            as_planner(Greedy(probe=64) if then is None else then, "then"),
        )
        self.when = IsotropyBelow() if when is None else when
        check_callable(self.when, "when", "AfterBatches(100)")
        self.switched = False

    def _by_second(self, rows: Tensor, count: int) -> Tensor:
        batches = torch.arange(self.handed_out, self.handed_out + count)
        if self.switched:
            return torch.ones(count, dtype=torch.bool)
        begin = self.when(rows[:, 0], self.handed_out)
        if begin is None:
            return torch.zeros(count, dtype=torch.bool)
        self.switched = begin <= self.handed_out
        return batches >= begin

    def state_dict(self) -> dict[str, Any]:
        """Whether the switch was made, and the rank at the last plan."""
        own = {"switched": self.switched, "rank": getattr(self.when, "rank", None)}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the planner that was in force."""
        entries = {"parts": _are_states, "switched": is_flag, "rank": _is_rank}
        check_entries(state, "Schedule", entries)
        super().load_state_dict({"parts": state["parts"]})
        self.switched = state["switched"]
        if isinstance(self.when, RankSteady):
            self.when.rank = state["rank"]


class EveryNth(_Parts):
    """`selector` makes every `every`-th batch, `otherwise` the others (P2 "to escape flats").

    Args:
        selector: makes the `every`-th, 2 `every`-th, ... batch.
        every: batches per use of `selector`.
        otherwise: makes the other batches.

    Examples:
        >>> import torch
        >>> from eigenbatch import PoolBalanced, PoolMin
        >>> from eigenbatch.batches import EveryNth
        >>> rarely = EveryNth(PoolMin(), 10, PoolBalanced())
        >>> rarely.plan(torch.randn(400, 1, 8), 20).shape
        torch.Size([20, 20])
    """

    def __init__(
        self, selector: Planner | Selector, every: int, otherwise: Planner | Selector
    ) -> None:
        super().__init__(as_planner(otherwise, "otherwise"), as_planner(selector, "selector"))
        self.every = whole(every, "every", least=1)

    def _by_second(self, rows: Tensor, count: int) -> Tensor:
        return torch.arange(self.handed_out + 1, self.handed_out + count + 1) % self.every == 0


class OnLossPlateau(_Parts):
    """`selector` while the training loss stands still, `otherwise` while it falls.

    The loss stands still when the mean of the last `span` losses is not below that of the `span`
    before by more than `tolerance`, relatively. Call `observe` with the loss of every step; our
    trainer does.

    Args:
        selector: for the plateau.
        otherwise: for the rest of the time.
        tolerance: smallest relative fall that counts.
        span: losses that are averaged.

    Examples:
        >>> from eigenbatch import PoolBalanced, PoolMin
        >>> from eigenbatch.batches import OnLossPlateau
        >>> planner = OnLossPlateau(PoolMin(), PoolBalanced(), span=2)
        >>> for loss in (4.0, 3.0, 3.0, 4.0):
        ...     planner.observe(loss)
        >>> planner.reached
        True
    """

    def __init__(
        self,
        selector: Planner | Selector,
        otherwise: Planner | Selector,
        *,
        tolerance: float = 0.01,
        span: int = 100,
    ) -> None:
        super().__init__(as_planner(otherwise, "otherwise"), as_planner(selector, "selector"))
        if not real(tolerance, "tolerance") >= 0:
            raise ParameterError(f"tolerance must be at least 0, got {tolerance}")
        self.tolerance, self.span = tolerance, whole(span, "span", least=1)
        self._losses: deque[float] = deque(maxlen=2 * self.span)

    def observe(self, loss: float) -> None:
        """Note the loss of one step; one that is not finite says nothing about a plateau."""
        if math.isfinite(number := real(loss, "loss")):
            self._losses.append(number)

    @property
    def reached(self) -> bool:
        """Whether the loss stands still; False until there are enough losses to say."""
        if len(self._losses) < 2 * self.span:
            return False
        losses = list(self._losses)
        before, latest = sum(losses[: self.span]), sum(losses[self.span :])
        return before - latest <= self.tolerance * abs(before)

    def _by_second(self, rows: Tensor, count: int) -> Tensor:
        return torch.full((count,), self.reached)

    def state_dict(self) -> dict[str, Any]:
        """The losses kept."""
        return super().state_dict() | {"losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with them."""
        check_entries(state, "OnLossPlateau", {"parts": _are_states, "losses": are_numbers})
        super().load_state_dict({"parts": state["parts"]})
        self._losses = deque(state["losses"], maxlen=2 * self.span)


def _are_states(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_dict, value))


def _is_rank(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isnan(value))
