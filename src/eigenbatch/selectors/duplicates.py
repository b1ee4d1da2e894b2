"""The guard against false negatives: near-duplicates of a sample are not its negatives.

Letters: k rows offered, b rows of a block.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from eigenbatch.checks import real
from eigenbatch.errors import ParameterError
from eigenbatch.selectors.closeness import Closeness
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

    The inner selector chooses a batch, later rows of pairs that are too close are replaced, and so
    on until none is left. Usually only the picks are compared, and it costs as much as the inner
    selector a few times. If most replacements are too close as well, the batch is compared with
    all candidates, which takes longer the more there are. Given rows stay, whatever they are.

    Args:
        selector: chooses the rows.
        cosine: two rows are too close if their cosine within a tower is above it; None: no limit.
        relative: they are also too close if `<anchor_i, key_j>` is above this share of
            `<anchor_i, key_i>` or of `<anchor_j, key_j>`, so that it holds for anchors and keys.
            0.95 is the margin of NV-Retriever, `relative_margin=0.05` of `mine_hard_negatives`.
            With two towers the limit is never below what random negatives reach: badly embedded
            pairs would otherwise exclude almost every row. It needs two towers, or `positive`.
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

    def _check_towers(self, towers: int) -> None:
        """Raise unless rows can be compared with positive pairs, if they are to be."""
        if towers == 1 and self.relative is not None and self.positive is None:
            raise ParameterError(
                "relative compares negatives with positive pairs: cache both towers "
                "(EmbeddingCache(..., towers=2)), or pass positive=, their similarity"
            )

    def bind(self, ids: Tensor, of: int | None = None) -> Selector:
        """Pass the sample ids on to the inner selector."""
        check_ids(ids, of)
        return self._around(bound(self.selector, ids, of))

    def complete(
        self, offer: Offer, batch_size: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Add rows that are not too close to each other or to the given ones."""
        check_offer(offer, batch_size, generator)
        self._check_towers(offer.towers)
        inner, adjust = settled(self.selector, offer)
        batch = self._completed(inner, offer, batch_size, generator)
        adjust(batch)
        return batch

    def _completed(
        self, inner: Selector, offer: Offer, batch_size: int, generator: torch.Generator | None
    ) -> Tensor:
        """Ask `inner` for a batch and for replacements until no two rows are too close."""
        close = Closeness(offer, self.cosine, self.relative, self.positive)
        left, asked, searched, poor = offer, batch_size, 0, False
        while True:
            begun = len(left.given)
            batch = complete(inner, left, asked, generator=generator)
            kept = _kept(close, batch, begun, batch_size)
            if len(kept) == batch_size:
                return kept
            barred = torch.zeros(len(offer), dtype=torch.bool, device=offer.rows.device)
            barred[batch] = True
            barred[kept] = False
            share = (len(kept) - begun) / (asked - begun)
            poor = poor or (left is not offer and share < FEW)
            left = replace(left, given=kept).barring(barred)
            if poor:  # kept rows stay in order: those before `searched` were compared
                left = left.barring(_conflicts(close, left, kept[searched:]))
                searched = len(kept)
            most = len(kept) + len(left.free)
            if most < batch_size:
                rest = torch.cat([kept, left.shuffled(generator)])
                kept = _kept(close, rest, len(kept), batch_size)
                return self._filled(kept, self._rule, offer, batch_size, generator)
            if getattr(inner, "extendable", False):
                needed = (batch_size - len(kept)) / max(share, LEAST)
                asked = min(most, len(kept) + math.ceil(SPARE * needed))

    @property
    def _rule(self) -> str:
        limits = [f"no two cosines above {self.cosine}"] if self.cosine is not None else []
        if self.relative is not None:
            limits.append(f"no negative above {self.relative} of a positive")
        return " and ".join(limits)


def _kept(close: Closeness, batch: Tensor, begun: int, most: int) -> Tensor:
    """The first `begun` rows and those after them not too close to an earlier one; `most`.

    Block by block: rows are compared with those kept so far and within their block.
    """
    kept = batch[:begun]
    for block in torch.split(batch[begun:], BLOCK):
        if len(kept) >= most:
            break
        if len(kept):
            block = block[~close.between(kept, block).any(0)]
        kept = torch.cat([kept, block[_apart(close, block)]])
    return kept[:most]


def _apart(close: Closeness, block: Tensor) -> Tensor:
    """(b,) False for rows too close to one that stands earlier in the block and is kept."""
    earlier = close.between(block, block).triu(1).cpu().numpy()  # loops faster than torch
    keep = np.ones(len(block), dtype=bool)
    for i in np.flatnonzero(earlier.any(axis=1)):
        if keep[i]:
            keep &= ~earlier[i]
    return torch.from_numpy(keep).to(block.device)


def _conflicts(close: Closeness, offer: Offer, kept: Tensor) -> Tensor:
    """(k,) True for rows that could be chosen, but are too close to a kept one."""
    conflicts = torch.zeros(len(offer), dtype=torch.bool, device=kept.device)
    for part in torch.split(offer.free, 8192):
        conflicts[part] = close.between(kept, part).any(0)
    return conflicts
