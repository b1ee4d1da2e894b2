"""The guard against false negatives: near-duplicates of a sample are not its negatives.

Letters: k rows offered, n rows of the batch, w width of a row (d, or 2d for two towers).
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from eigenbatch.checks import real
from eigenbatch.core.precision import no_autocast
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.offer import Offer, check_offer, complete, settled
from eigenbatch.selectors.rule import Rule, Shortfall
from eigenbatch.selectors.selector import Selector, bound, check_ids

BLOCK = 256
"""Rows that are compared with each other at a time."""

FEW, LEAST, SPARE = 0.25, 0.05, 1.25
"""Share of replacements kept below which all conflicts are searched; the least share that the next
request is prepared for; and how much more it asks for."""


class NoNearDuplicates(Rule):
    """No two picks that are nearly the same sample: copies, paraphrases.

    Only the picks are compared: the inner selector chooses a batch, later rows of pairs that are
    too close are replaced, and so on until none is left. So it costs as much as the inner selector
    a few times, whatever the size of the pool; if most replacements are too close as well, all
    rows near the batch are searched and barred. Given rows stay, whatever they are.

    Args:
        selector: chooses the rows.
        cosine: two rows are too close if their cosine within a tower is above it; None: no limit.
        relative: they are also too close if `<anchor_i, key_j>` is above this share of the
            similarity of a positive pair: the largest of that of i, of j, and the mean of the
            batch. 0.95 is the margin of NV-Retriever and of `mine_hard_negatives`. It needs two
            towers, or `positive`.
        positive: similarity of positive pairs, where only one tower is cached.
        shortfall: "raise" if too few rows are left, or "fill" the batch at random and warn once.
            A sampler that must use every sample (coverage "epoch" and "stream") always fills.

    Examples:
        >>> import torch
        >>> from eigenbatch import Neighbours, NoNearDuplicates, select
        >>> copies = torch.eye(8).repeat(3, 1)  # each row three times
        >>> chosen = select(copies, 8, NoNearDuplicates(Neighbours(seeds=1)))
        >>> sorted(chosen.remainder(8).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(
        self,
        selector: Selector,
        cosine: float | None = 0.95,
        *,
        relative: float | None = None,
        positive: float | None = None,
        shortfall: Shortfall = "raise",
    ) -> None:
        super().__init__(selector, shortfall)
        if cosine is not None and not -1 <= real(cosine, "cosine") < 1:
            raise ParameterError(f"cosine must lie in [-1, 1), got {cosine}")
        if relative is not None and not 0 < real(relative, "relative") <= 1:
            raise ParameterError(f"relative must lie in (0, 1], got {relative}")
        if positive is not None and not 0 < real(positive, "positive") <= 1:
            raise ParameterError(f"positive must lie in (0, 1], got {positive}")
        self.cosine, self.relative, self.positive = cosine, relative, positive

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """Pass the sample ids on to the inner selector."""
        check_ids(ids, of)
        return self._bound(bound(self.selector, ids, of))

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add rows that are not too close to each other or to the given ones."""
        check_offer(offer, batch_size, generator)
        inner, adjust = settled(self.selector, offer)
        batch = self._completed(inner, offer, batch_size, generator)
        adjust(batch)
        return batch

    def _completed(
        self, inner: Selector, offer: Offer, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Ask `inner` for a batch and for replacements until no two rows are too close."""
        left, asked, searched, poor = offer, batch_size, 0, False
        while True:
            begun = len(left.given)
            batch = complete(inner, left, asked, generator=generator)
            kept = self._kept(left, batch, begun, batch_size)
            if len(kept) == batch_size:
                return kept
            barred = torch.zeros(len(offer), dtype=torch.bool, device=offer.rows.device)
            barred[batch] = True
            barred[kept] = False
            share = (len(kept) - begun) / (asked - begun)
            poor = poor or (left is not offer and share < FEW)
            left = replace(left, given=kept).barring(barred)
            if poor:  # kept rows stay in order: those before `searched` were compared
                left = left.barring(self._conflicts(left, kept[searched:]))
                searched = len(kept)
            most = len(kept) + len(left.free)
            if most < batch_size:
                return self._short(offer, left, batch_size, generator)
            if getattr(inner, "extendable", False):
                needed = (batch_size - len(kept)) / max(share, LEAST)
                asked = min(most, len(kept) + math.ceil(SPARE * needed))

    def _short(
        self, offer: Offer, left: Offer, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Take what still keeps the rule, in random order, and fill the rest."""
        rest = torch.cat([left.given, left.shuffled(generator)])
        kept = self._kept(left, rest, len(left.given), batch_size)
        return self._filled(kept, self._rule, offer, batch_size, generator)

    @property
    def _rule(self) -> str:
        limits = [f"no two cosines above {self.cosine}"] if self.cosine is not None else []
        if self.relative is not None:
            limits.append(f"no negative above {self.relative} of a positive")
        return " and ".join(limits)

    def _kept(self, offer: Offer, batch: Tensor, begun: int, most: int) -> Tensor:
        """The first `begun` rows and those after them not too close to an earlier one; `most`.

        Block by block: rows are compared with those kept so far and within their block.
        """
        kept = batch[:begun]
        for block in torch.split(batch[begun:], BLOCK):
            if len(kept) >= most:
                break
            if len(kept):
                block = block[~self._close(offer, kept, block).any(0)]
            kept = torch.cat([kept, block[self._apart(offer, block)]])
        return kept[:most]

    def _apart(self, offer: Offer, block: Tensor) -> Tensor:
        """(b,) False for rows too close to one that stands earlier in the block and is kept."""
        earlier = self._close(offer, block, block).triu(1).cpu().numpy()  # loops faster than torch
        keep = np.ones(len(block), dtype=bool)
        for i in np.flatnonzero(earlier.any(axis=1)):
            if keep[i]:
                keep &= ~earlier[i]
        return torch.from_numpy(keep).to(block.device)

    def _conflicts(self, offer: Offer, kept: Tensor) -> Tensor:
        """(k,) True for rows that could be chosen, but are too close to a kept one."""
        conflicts = torch.zeros(len(offer), dtype=torch.bool, device=kept.device)
        for part in torch.split(offer.free, 8192):
            conflicts[part] = self._close(offer, kept, part).any(0)
        return conflicts

    def _close(self, offer: Offer, some: Tensor, others: Tensor) -> Tensor:
        """(s, o) True where two rows are too close to be negatives of each other."""
        one, two = offer.rows[some], offer.rows[others]  # (s, w), (o, w)
        close = torch.zeros(len(one), len(two), dtype=torch.bool, device=one.device)
        with no_autocast(one):
            if self.cosine is not None:
                for a, b in zip(
                    one.chunk(offer.towers, 1), two.chunk(offer.towers, 1), strict=True
                ):
                    close |= a @ b.T > self.cosine
            if self.relative is not None:
                forth, back = self._across(offer, one, two)
                own, other = self._positives(offer, one), self._positives(offer, two)
                reference = torch.maximum(own[:, None], other[None]).clamp_min(own.mean())
                close |= torch.maximum(forth, back) > self.relative * reference
        return close

    def _across(self, offer: Offer, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """(s, o) <anchor, key> in both directions."""
        anchors, keys = one.chunk(offer.towers, 1)[0], one.chunk(offer.towers, 1)[-1]
        others = two.chunk(offer.towers, 1)
        return anchors @ others[-1].T, keys @ others[0].T

    def _positives(self, offer: Offer, rows: Tensor) -> Tensor:
        """(s,) similarity of each anchor and its own key."""
        if self.positive is not None:
            return torch.full_like(rows[:, 0], self.positive)
        if offer.towers == 1:
            raise ParameterError(
                "relative compares negatives with positive pairs: cache both towers "
                "(EmbeddingCache(..., towers=2)), or pass positive=, their similarity"
            )
        anchors, keys = rows.chunk(2, 1)
        return (anchors * keys).sum(1)
