"""One row per group: a rule that is known before any row is chosen."""

import torch
from torch import Tensor

from eigenbatch.checks import check_tensor
from eigenbatch.errors import ShapeError
from eigenbatch.selectors.offer import Offer, check_offer, complete
from eigenbatch.selectors.rule import Rule, Shortfall
from eigenbatch.selectors.selector import Selector, bound, check_ids


class OnePerGroup(Rule):
    """No two picks of the same group: the same caption, document, patient, class.

    A random member represents its group.

    Args:
        selector: chooses among the representatives.
        groups: (k,) integers, the group of each row of the pool; or of each sample of the data set
            when a sampler binds the pool's sample ids.
        shortfall: what to do if there are fewer groups than samples: "raise", or "fill" the batch
            at random and warn once. A sampler that must use every sample always fills.

    Examples:
        >>> import torch
        >>> from eigenbatch import OnePerGroup, Random, select
        >>> pool, groups = torch.randn(40, 8), torch.arange(40) // 4
        >>> len(groups[select(pool, 10, OnePerGroup(Random(), groups))].unique())
        10
    """

    def __init__(
        self, selector: Selector, groups: Tensor, *, shortfall: Shortfall = "raise"
    ) -> None:
        super().__init__(selector, shortfall)
        check_tensor(groups, "groups")
        if groups.ndim != 1 or groups.is_floating_point():
            raise ShapeError(f"groups must be a vector of integers, got {tuple(groups.shape)}")
        self.groups = groups

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add rows of groups that the batch does not have yet."""
        check_offer(offer, batch_size, generator)
        self._check(len(offer))
        allowed = self._representatives(offer, generator)  # (a,)
        kept = torch.cat([offer.given, allowed])
        if len(kept) < batch_size:
            return self._filled(kept, "one row per group", offer, batch_size, generator)
        barred = torch.ones(len(offer), dtype=torch.bool, device=offer.rows.device)
        barred[kept] = False
        return complete(self.selector, offer.barring(barred), batch_size, generator=generator)

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """The rule for a pool whose row i is sample `ids[i]`."""
        check_ids(ids, of)
        self._check(of)
        if len(ids) and int(ids.max()) >= len(self.groups):
            raise ShapeError(
                f"sample {int(ids.max())} has no group: groups has {len(self.groups)} entries, "
                "one for each sample of the data set is needed"
            )
        rule = self._around(bound(self.selector, ids, of))
        rule.groups = self.groups[ids.to(self.groups.device)]
        return rule

    def _representatives(self, offer: Offer, generator: torch.Generator | None) -> Tensor:
        """A row of every group that no given row belongs to: a seed, else a random one."""
        every = self.groups.to(offer.rows.device)
        order = offer.shuffled(generator)
        if len(offer.seeds):
            first = torch.isin(order, offer.seeds)
            order = torch.cat([order[first], order[~first]])
        order = order[~torch.isin(every[order], every[offer.given])]
        groups = every[order]  # (k,) in random order
        ordered = groups.argsort(stable=True)
        first = torch.ones_like(ordered, dtype=torch.bool)
        first[1:] = groups[ordered][1:] != groups[ordered][:-1]
        return order[ordered[first].sort().values]

    def _check_samples(self, size: int, kept_rows: int) -> None:
        """Raise if groups are not those of the data set, or too few for a batch."""
        if len(self.groups) != size:
            raise ShapeError(
                f"groups has {len(self.groups)} entries, but the data set {size} samples: one for "
                "each sample is needed"
            )
        if kept_rows == 0 or self.shortfall == "fill":
            return
        if kept_rows > (count := len(torch.unique(self.groups))):
            raise ShapeError(
                f"batches of {kept_rows} need as many groups, there are {count}: lower batch_size, "
                'or pass shortfall="fill"'
            )

    def _check(self, size: int | None) -> None:
        if size is not None and len(self.groups) != size:
            raise ShapeError(
                f"groups has {len(self.groups)} entries but the pool {size} rows: pass the "
                "groups of the pool's rows, or bind(ids) first"
            )
