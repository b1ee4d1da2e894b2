"""The greedy element-wise builder, Algorithm 2."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_choice, check_flags, whole
from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.errors import NumericalWarning, ParameterError
from eigenbatch.selectors.diversity import trace_after_adding
from eigenbatch.selectors.least_similar import least_similar
from eigenbatch.selectors.offer import Offer, check_offer, mapped
from eigenbatch.selectors.pool import check_window
from eigenbatch.selectors.search import SearchState, greedy_search, least_squares

Score = Literal["spectral", "centroid"]


class Greedy:
    """Pick rows one at a time so that the batch's effective rank R grows fastest.

    The first seed is random, the second the row least similar to it (the paper leaves both open).
    Deviates from Alg. 2: with a window the batch is still filled, because training needs n rows.

    Args:
        probe: rows scored per pick (Greedy-m); None scores the whole pool, which costs less than a
            small probe does in a plain loop, and is better.
        window: steer R so that the full batch ends in the middle of [low, high].
        score: "spectral" minimises q_B(z); "centroid" is the paper's cheaper proxy
            `<z, mean of B>`.
        literal: stop as printed once R enters the window, with fewer than batch_size rows (for
            study); where every sample must be used, random rows fill the batch.

    Examples:
        >>> import torch
        >>> from eigenbatch import Greedy, participation_ratio, select
        >>> pool = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
        >>> batch = pool[select(pool, 20, Greedy(), generator=torch.Generator().manual_seed(1))]
        >>> participation_ratio(batch) > participation_ratio(pool[:20])
        True
    """

    def __init__(
        self,
        probe: int | None = 64,
        window: tuple[float, float] | None = None,
        score: Score = "spectral",
        *,
        literal: bool = False,
    ) -> None:
        if probe is not None:
            whole(probe, "probe", least=1)
        check_choice(score, get_args(Score), "score")
        check_flags(literal=literal)
        if window is not None and score == "centroid":
            raise ParameterError('a window steers the effective rank: it needs score="spectral"')
        if literal and window is None:
            raise ParameterError("literal=True stops inside a window: give window=(low, high)")
        self.probe = probe
        self.window = None if window is None else check_window(window)
        self.score = score
        self.literal = literal

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Choose one batch; only `literal=True` may return fewer than `batch_size` indices."""
        return self.complete(Offer.of(pool, batch_size), batch_size, generator=generator)

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add to the given rows those that raise the rank of the batch fastest (first tower)."""
        check_offer(offer, batch_size, generator)
        rows, index = mapped(offer)
        chosen = index[self._search(rows, batch_size, generator, len(offer.given))]
        if len(chosen) == batch_size or not offer.must_fill:
            return chosen
        rest = replace(offer, given=chosen).some(batch_size - len(chosen), generator)
        return torch.cat([chosen, rest])

    def _search(
        self, rows: Tensor, batch_size: int, generator: torch.Generator | None, begun: int
    ) -> Tensor:
        """Picks among unit rows, of which the first `begun` are in the batch."""
        if self.window is None and self.score == "spectral":
            return least_similar(
                rows, batch_size, probe=self.probe, generator=generator, begun=begun
            )
        if self.score == "centroid":
            return greedy_search(
                rows,
                batch_size,
                ranking=_nearest_centroid,
                probe=self.probe,
                generator=generator,
                begun=begun,
            )
        assert self.window is not None
        low, high = self.window
        attainable = min(batch_size, rows.shape[1])
        if high > attainable:
            raise ParameterError(
                f"window {self.window} is out of reach: {batch_size} rows in dimension "
                f"{rows.shape[1]} have an effective rank of at most {attainable}"
            )
        aim = _path((low + high) / 2, rows, batch_size)

        def off_target(state: SearchState) -> Tensor:
            scores = state.squares / state.size
            ranks = 1 / trace_after_adding(state.trace, state.size, scores)
            return (ranks - aim(state.size + 1)).abs()

        def inside(state: SearchState) -> bool:
            return state.size >= 2 and bool(low <= 1 / state.trace <= high)

        chosen = greedy_search(
            rows,
            batch_size,
            ranking=least_squares if self.literal else off_target,
            probe=self.probe,
            generator=generator,
            stop=inside if self.literal else None,
            begun=begun,
        )
        reached = participation_ratio(rows[chosen])
        if not low - 1e-6 <= reached <= high + 1e-6:
            warnings.warn(
                f"the batch has an effective rank of {reached:.2f}, outside the window "
                f"{self.window}: no better one was found in this pool",
                NumericalWarning,
                stacklevel=2,
            )
        return chosen


def _path(end: float, pool: Tensor, batch_size: int) -> Callable[[int], float]:
    """The effective rank to aim for at each size, so that the full batch has the rank `end`.

    b independent rows of a cloud have tr(Sigma^2) = 1/b + (1 - 1/b) t on average, t being that of
    the cloud. Below what random rows of the pool would have, the path is that of the cloud which
    ends there: a batch that is too diverse early could not come down again. Above, the sooner the
    better.
    """
    typical = 1 / batch_size + (1 - 1 / batch_size) / participation_ratio(pool)
    if 1 / end < typical or batch_size == 1:
        return lambda size: end
    cloud = (1 / end - 1 / batch_size) / (1 - 1 / batch_size)
    return lambda size: 1 / (1 / size + (1 - 1 / size) * cloud)


def _nearest_centroid(state: SearchState) -> Tensor:
    """Smallest <z, sum of B>: largest 1 - <z, mean of B>."""
    return state.cosines
