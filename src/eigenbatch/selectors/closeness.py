"""Which rows are too close to each other to be negatives.

Letters: s and o rows that are compared, w width of a row (d, or 2d for two towers).
"""

import torch
from torch import Tensor

from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.offer import Offer

SAMPLED = 128
"""Candidates whose similarities say what a random negative is."""

CLEAR = 3.0
"""Standard deviations above their median from which on a similarity is not that of random
negatives: about one in a thousand. If each row excluded more of the others, no batch would be left
while positives are hardly more similar than negatives."""


class Closeness:
    """Compares rows of one offer.

    Two rows are too close if their cosine within a tower is above `cosine`, or if `<anchor_i,
    key_j>` or `<anchor_j, key_i>` is above `relative` times the positive similarity of i or of j.
    That limit is never below the most similar of random negatives: badly embedded pairs, as all are
    before training, would otherwise exclude almost every row.
    """

    def __init__(
        self, offer: Offer, cosine: float | None, relative: float | None, positive: float | None
    ) -> None:
        self._rows, self._towers = offer.rows, offer.towers
        self._cosine, self._relative, self._positive = cosine, relative, positive
        if relative is not None and positive is None:
            self._floor = self._similar_negative(offer)

    def between(self, some: Tensor, others: Tensor) -> Tensor:
        """(s, o) True where two rows are too close."""
        one, two = self._rows[some], self._rows[others]  # (s, w), (o, w)
        close = torch.zeros(len(one), len(two), dtype=torch.bool, device=one.device)
        with no_autocast(one):
            if self._cosine is not None:
                for a, b in zip(self._split(one), self._split(two), strict=True):
                    close |= a @ b.T > self._cosine
            if self._relative is not None:
                limit = torch.minimum(self._limits(one)[:, None], self._limits(two))
                close |= torch.maximum(*self._across(one, two)) > limit
        return close

    def _limits(self, rows: Tensor) -> Tensor:
        """(s,) the largest similarity that a negative of each row may have."""
        assert self._relative is not None
        if self._positive is not None:
            return torch.full_like(rows[:, 0], self._relative * self._positive)
        anchors, keys = self._split(rows)
        return (self._relative * (anchors * keys).sum(1)).clamp_min(self._floor)

    def _similar_negative(self, offer: Offer) -> float:
        """Similarity across towers that few candidates have that are no pair.

        From quantiles: copies of samples are rare, but would stretch a standard deviation.
        """
        free = offer.free
        some = self._rows[free[:: -(-len(free) // SAMPLED) or 1]]  # (s, w)
        if len(some) < 2:
            return -1.0
        with no_autocast(some):
            forth, _ = self._across(some, some)
        pairs = torch.eye(len(some), dtype=torch.bool, device=some.device)
        shares = torch.tensor([0.16, 0.5, 0.84], dtype=forth.dtype, device=forth.device)
        low, median, high = forth[~pairs].quantile(shares).tolist()
        return float(median + CLEAR * (high - low) / 2)

    def _across(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """(s, o) <anchor, key> in both directions."""
        own, other = self._split(one), self._split(two)
        return own[0] @ other[-1].T, own[-1] @ other[0].T

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.chunk(self._towers, 1)
