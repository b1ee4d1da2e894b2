"""Hard batches while what they teach carries over: the gap rule."""

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from eigenbatch.batches.neighbours import Neighbours, miss_of
from eigenbatch.batches.planner import Planner, Random, check_plan
from eigenbatch.checks import check_callable, check_entries, described, is_flag
from eigenbatch.core.contrast import check_matrix, positive_scalar, unit_rows
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError

logger = logging.getLogger("eigenbatch")

Pairs = Callable[[], tuple[Tensor, Tensor]]

LIMIT = 10.0
"""Ratio from which on hard batches lose where training pairs are memorised."""

SMALLEST = 1e-7
"""Of a miss: below it the odds are mostly rounding."""


class Auto(Planner):
    """Hard batches while training pairs are not memorised, random ones afterwards.

    For *retrieval*: translations, captions, code search, CLIP. Where features are judged by classes
    (SimCLR on pictures, kNN, linear probe), take `Random()`: near pictures are of one class, and
    telling them apart hurts, however easy random batches look.

    Before each plan both functions embed some hundred pairs with the model as it is now. The ratio
    is the odds of a miss on held-out pairs over those on training pairs, in random batches. It
    begins near 1 and climbs with every visit of a pair: on memorised pairs what hard batches teach
    no longer carries over. Batches are those of `Neighbours` while the ratio is below `limit`.

    Args:
        tau: temperature of the loss, or a function that returns it if it is learned.
        held_out: returns the embeddings (m, d) and (m, d) of pairs that are not trained on.
        trained: returns those of some training pairs, by the same model in the same mode (put both
            into evaluation mode, say). Some hundred of each are enough; with several processes both
            are called in every one.
        limit: ratio from which on batches are random.

    Examples:
        >>> import torch
        >>> from eigenbatch import Auto
        >>> model = torch.nn.Linear(8, 4)
        >>> pairs, others = torch.randn(2, 300, 8), torch.randn(2, 300, 8)
        >>> planner = Auto(
        ...     tau=0.07,
        ...     held_out=lambda: (model(others[0]), model(others[1])),
        ...     trained=lambda: (model(pairs[0]), model(pairs[1])),
        ... )
        >>> planner.plan(torch.nn.functional.normalize(torch.randn(100, 2, 4), dim=2), 20).shape
        torch.Size([5, 20])
    """

    def __init__(
        self,
        tau: float | Callable[[], float],
        *,
        held_out: Pairs | None = None,
        trained: Pairs | None = None,
        limit: float = LIMIT,
    ) -> None:
        super().__init__()
        if not callable(tau):
            positive_scalar(tau, "tau")
        if held_out is None or trained is None:
            missing = [n for n, f in (("held_out", held_out), ("trained", trained)) if f is None]
            raise ParameterError(
                f"Auto compares held-out pairs with training pairs, {' and '.join(missing)} is "
                "missing: pass held_out=lambda: (z1, z2) and trained=lambda: (z1, z2), which embed "
                "some hundred pairs each. Without held-out pairs take Neighbours()"
            )
        check_callable(held_out, "held_out", "lambda: (z1, z2)")
        check_callable(trained, "trained", "lambda: (z1, z2)")
        self.tau, self.held_out, self.trained = tau, held_out, trained
        self.limit = positive_scalar(limit, "limit")
        self._hard: bool | None = None  # the last decision
        self._prepared = False

    @property
    def apart(self) -> float | None:  # type: ignore[override]
        """As the planner in force has it."""
        return Neighbours.apart if self._hard else None

    def prepare(self, batch_size: int) -> None:
        """Measure the ratio and decide."""
        tau = positive_scalar(self.tau() if callable(self.tau) else self.tau, "tau")
        with torch.no_grad(), torch.random.fork_rng():
            held_out, trained = (
                _odds(_pairs(pairs, name), batch_size, tau)
                for name, pairs in (("held_out", self.held_out), ("trained", self.trained))
            )
        ratio = held_out / trained
        hard = ratio < self.limit
        self.figures = {
            "held_out_odds": held_out, "trained_odds": trained, "ratio": ratio, "hard": float(hard),
        }  # fmt: skip
        if hard != self._hard:
            why = "carries over to held-out pairs" if hard else "no longer carries over"
            logger.warning(
                "Auto: %s batches from here on. Held-out pairs are %.1f times as hard as training "
                "pairs (limit %g): what hard batches teach %s",
                "hard" if hard else "random", ratio, self.limit, why,
            )  # fmt: skip
        self._hard, self._prepared = hard, True

    def plan(
        self, rows: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Arrange rows (N, towers, d)."""
        check_plan(rows, batch_size, generator)
        if not self._prepared:
            self.prepare(batch_size)
        self._prepared = False
        planner = Neighbours() if self._hard else Random()
        return planner.plan(rows, batch_size, generator=generator)

    def state_dict(self) -> dict[str, bool | None]:
        """The last decision, so that a resumed run does not say it again."""
        return {"hard": self._hard}

    def load_state_dict(self, state: dict[str, bool | None]) -> None:
        """Continue with it."""
        check_entries(state, "Auto", {"hard": lambda hard: hard is None or is_flag(hard)})
        self._hard = state["hard"]


def _pairs(function: Pairs, name: str) -> Tensor:
    """(m, 2, d) unit rows of the pairs that a function returns."""
    found = function()
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ArgumentTypeError(
            f"{name} must return two embeddings (z1, z2), got {described(found)}"
        )
    for side, z in zip(("z1", "z2"), found, strict=True):
        check_matrix(z, f"{name}'s {side}", least=2)
    first, second = found
    if first.shape != second.shape:
        raise ShapeError(
            f"{name} returned embeddings of shapes {tuple(first.shape)} and {tuple(second.shape)}: "
            "row i of one belongs to row i of the other"
        )
    units = [unit_rows(z.detach(), f"{name}'s {s}") for s, z in (("z1", first), ("z2", second))]
    return torch.stack(units, 1).float()


def _odds(rows: Tensor, batch_size: int, tau: float) -> float:
    """Odds of a miss in random batches of these pairs, of all if there are fewer than a batch."""
    n = max(2, min(batch_size, len(rows)))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    batches = order[: len(rows) // n * n].view(-1, n).to(rows.device)
    miss = miss_of(rows, batches, tau)
    assert miss is not None
    miss = min(max(miss, SMALLEST), 1 - SMALLEST)
    return miss / (1 - miss) if math.isfinite(miss) else math.nan
