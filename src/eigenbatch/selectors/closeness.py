"""Which rows are too close to each other to be negatives.

Letters: s and o rows that are compared, w width of a row (d, or 2d for two towers).
"""

import torch
from torch import Tensor

from eigenbatch.core.precision import no_autocast
from eigenbatch.selectors.offer import Offer

SAMPLED = 128
"""Candidates whose similarities say what a random negative is."""


class Closeness:
    """Compares rows of one offer.

    Two rows are too close if their cosine within a tower is above `cosine`, or if `<anchor_i,
    key_j>` or `<anchor_j, key_i>` is above `relative` times the positive similarity of i or of j.
    That limit is never below the median of random negatives: a badly embedded pair would otherwise
    exclude almost every row.
    """

    def __init__(
        self, offer: Offer, cosine: float | None, relative: float | None, positive: float | None
    ) -> None:
        self._rows, self._towers = offer.rows, offer.towers
        self._cosine, self._relative, self._positive = cosine, relative, positive
        if relative is not None and positive is None:
            self._floor = self._median_negative(offer)

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

    def _median_negative(self, offer: Offer) -> float:
        """The median similarity across towers of some candidates that are no pair."""
        free = offer.free
        some = self._rows[free[:: -(-len(free) // SAMPLED) or 1]]  # (s, w)
        if len(some) < 2:
            return -1.0
        with no_autocast(some):
            forth, _ = self._across(some, some)
        pairs = torch.eye(len(some), dtype=torch.bool, device=some.device)
        return forth[~pairs].median().item()

    def _across(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """(s, o) <anchor, key> in both directions."""
        own, other = self._split(one), self._split(two)
        return own[0] @ other[-1].T, own[-1] @ other[0].T

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return rows.chunk(self._towers, 1)
