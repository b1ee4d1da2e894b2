"""Rules that compose with any selector: thin the pool first, so that no choice can break them."""

import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from eigenbatch.checks import check_callable, check_choice, check_tensor, real
from eigenbatch.core.precision import no_autocast, unit_rows
from eigenbatch.errors import NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors.selector import (
    Selector,
    bound,
    check_ids,
    check_pool,
    check_state,
    restore,
    shuffled,
    state_of,
)

Shortfall = Literal["raise", "fill"]
_BLOCK = 1024


class _Thinned:
    """A selector on the rows that `_allowed` leaves; shared by the constraints.

    shortfall: what to do when fewer than batch_size rows are left: "raise", or "fill" the batch
        with random other rows and warn (a sampler that must use every sample needs that).
    """

    def __init__(self, selector: Selector, shortfall: Shortfall) -> None:
        check_callable(selector, "selector", "Greedy()")
        check_choice(shortfall, get_args(Shortfall), "shortfall")
        self.selector = selector
        self.shortfall = shortfall

    def __call__(
        self, pool: Tensor, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        check_pool(pool, batch_size)
        order = shuffled(len(pool), generator, pool.device)
        allowed = self._allowed(pool, order)  # (a,) indices into pool
        if len(allowed) >= batch_size:
            inner = bound(
                self.selector, allowed, len(pool)
            )  # the inner selector may depend on ids too
            return allowed[inner(pool[allowed], batch_size, generator=generator)]
        message = (
            f"{self._rule} leaves {len(allowed)} of {len(pool)} rows, but batch_size is "
            f"{batch_size}"
        )
        if self.shortfall == "raise":
            raise ShapeError(f'{message}: enlarge the pool, or pass shortfall="fill"')
        warnings.warn(f"{message}: filled at random", NumericalWarning, stacklevel=2)
        left_out = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
        left_out[allowed] = False
        return torch.cat([allowed, order[left_out[order]][: batch_size - len(allowed)]])

    @property
    def _rule(self) -> str:
        raise AssertionError("a constraint names its rule")

    def _allowed(self, pool: Tensor, order: Tensor) -> Tensor:
        raise AssertionError("a constraint says which rows it allows")

    def state_dict(self) -> dict[str, Any]:
        """The inner selector's state; a constraint has none."""
        return state_of(self.selector)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise unless the inner selector would load `state`."""
        check_state(self.selector, state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the inner selector."""
        restore(self.selector, state)


class NoNearDuplicates(_Thinned):
    """No two picks with a cosine above `cosine`.

    Rows are visited in random order and kept unless too close to one kept before. Costs up to
    k^2 d / 2 multiplications.
    """

    def __init__(
        self, selector: Selector, cosine: float = 0.95, *, shortfall: Shortfall = "raise"
    ) -> None:
        super().__init__(selector, shortfall)
        if not -1 <= real(cosine, "cosine") < 1:
            raise ParameterError(f"cosine must lie in [-1, 1), got {cosine}")
        self.cosine = cosine

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """Pass the sample ids on to the inner selector."""
        check_ids(ids, of)
        inner = bound(self.selector, ids, of)
        return NoNearDuplicates(inner, self.cosine, shortfall=self.shortfall)

    @property
    def _rule(self) -> str:
        return f"no two cosines above {self.cosine}"

    def _allowed(self, pool: Tensor, order: Tensor) -> Tensor:
        rows = unit_rows(pool, "pool")[order]  # (k, d)
        kept = rows[:0]
        keep = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        with no_autocast(rows):
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]  # (b, d)
                fresh = ~(block @ kept.T > self.cosine).any(1)  # (b,)
                close = (block @ block.T > self.cosine).triu(1)  # (b, b) earlier x later
                for i in (close.any(1) & fresh).nonzero()[:, 0].tolist():
                    if fresh[i]:
                        fresh &= ~close[i]
                keep[start : start + _BLOCK] = fresh
                kept = rows[keep]
        return order[keep]


class OnePerGroup(_Thinned):
    """No two picks of the same group: the same caption, document, patient, class.

    groups: (k,) integers, the group of each row of the pool; or of each sample of the data set when
        a sampler binds the pool's sample ids. A random member represents its group.
    """

    def __init__(
        self, selector: Selector, groups: Tensor, *, shortfall: Shortfall = "raise"
    ) -> None:
        super().__init__(selector, shortfall)
        check_tensor(groups, "groups")
        if groups.ndim != 1 or groups.is_floating_point():
            raise ShapeError(f"groups must be a vector of integers, got {tuple(groups.shape)}")
        self.groups = groups

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The constraint for a pool whose row i is sample `ids[i]`."""
        check_ids(ids, of)
        self._check(of)
        if len(ids) and int(ids.max()) >= len(self.groups):
            raise ShapeError(
                f"sample {int(ids.max())} has no group: groups has {len(self.groups)} entries, "
                "one for each sample of the data set is needed"
            )
        inner = bound(self.selector, ids, of)
        groups = self.groups[ids.to(self.groups.device)]
        return OnePerGroup(inner, groups, shortfall=self.shortfall)

    @property
    def _rule(self) -> str:
        return "one row per group"

    def _allowed(self, pool: Tensor, order: Tensor) -> Tensor:
        self._check(len(pool))
        groups = self.groups.to(pool.device)[order]  # (k,) in random order
        ordered = groups.argsort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = groups[ordered][1:] != groups[ordered][:-1]
        return order[ordered[first].sort().values]

    def _check(self, size: int | None) -> None:
        if size is not None and len(self.groups) != size:
            raise ShapeError(
                f"groups has {len(self.groups)} entries but the pool {size} rows: pass the "
                "groups of the pool's rows, or bind(ids) first"
            )
