"""InfoNCE as a program with knobs: what a loss is, and the fewest departures that make it so.

Letters: W processes with n pairs each, N = W n, K queue rows per process, M = 2N + W K rows (all
first views, all second views, all queues), T terms. On process r every loss here is

    loss = reduce_t  -log( exp(s(a_t, p_t)) / sum_{k in C_t} exp(s(a_t, k)) ),    s = cosine / tau

A *form* says which terms (anchor a_t, positive p_t, candidates C_t) there are. A *departure*
changes one thing: the rows, the similarity, the temperature, positives, candidates or reduction.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """The rows of all processes, float64; process r holds samples r n ... (r + 1) n - 1."""

    z1: Tensor  # (N, d)
    z2: Tensor  # (N, d)
    queue: Tensor  # (W K, d), may be empty
    labels: Tensor  # (N,)
    world: int

    @property
    def pairs(self) -> int:
        """n, the pairs of one process."""
        return len(self.z1) // self.world

    @property
    def rows(self) -> Tensor:
        """(M, d) first views, second views, queues."""
        return torch.cat([self.z1, self.z2, self.queue])

    @property
    def side(self) -> Tensor:
        """(M,) 0 for first views, 1 for second views, 2 for queue rows."""
        sizes = torch.tensor([len(self.z1), len(self.z2), len(self.queue)])
        return torch.arange(3).repeat_interleave(sizes)

    @property
    def rank(self) -> Tensor:
        """(M,) the process that holds a row."""
        parts = (self.z1, self.z2, self.queue)
        return torch.cat([torch.arange(len(z)) * self.world // max(len(z), 1) for z in parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """One form on one probe and process, with the knobs that departures turn."""

    probe: Probe
    process: int
    anchors: Tensor  # (T,) index into rows
    positive: Tensor  # (T,) index into rows
    candidates: Tensor  # (T, M) bool
    weight: Tensor  # (T,) sums to 1
    scale: float  # of the denominator's cosines: 1 / tau
    positive_scale: float  # of the numerator's
    margin: float = 0.0  # taken from the positive's cosine
    shared: bool = False  # the denominator holds the numerator's logit, margin and scale included
    added: Tensor | None = None  # (T, M) added to the denominator's logits
    asking: Tensor | None = None  # (T,) rows in place of the anchors in the denominator
    self_logit: float | None = None  # in place of the anchor's logit with itself
    similarity: Callable[[Tensor, float], Tensor] = torch.mul  # (cosine, scale) -> logit
    rows: Callable[[Tensor, Probe], Tensor] = lambda rows, _: normalize(rows, dim=1)
    reduce: Callable[[Tensor, Tensor, "Terms"], Tensor] = lambda num, den, t: mean(num, den, t)
    outer: Callable[[Tensor, Probe], Tensor] = lambda value, _: value
    other: "Terms | None" = None  # the anchors of the other view, if they are treated otherwise

    def but(self, **changes: Any) -> Self:
        """A copy with other knobs, ten times faster than `dataclasses.replace`."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def value(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """The loss from cosines (M, M); two matrices, so that gradients can be told apart."""
        value = self.reduced(numerator, denominator)
        if self.other is not None:
            value = (value + self.other.reduced(numerator, denominator)) / 2
        return self.outer(value, self.probe)

    def reduced(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """The loss of these terms alone, before its factor."""
        num = self.similarity(
            numerator[self.anchors, self.positive] - self.margin, self.positive_scale
        )  # (T,)
        asking = self.anchors if self.asking is None else self.asking
        den = self.similarity(denominator[asking], self.scale)  # (T, M)
        if self.shared:
            den = den.scatter(1, self.positive[:, None], num[:, None])
        if self.self_logit is not None:
            den = den.scatter(1, self.anchors[:, None], self.self_logit)
        if self.added is not None:
            den = den + self.added
        den = den.masked_fill(~self.candidates, -torch.inf)
        return self.reduce(num, den, self)

    def of_view(self, side: int) -> Self:
        """The terms whose anchors are of one view."""
        here = self.probe.side[self.anchors] == side
        return self.but(
            anchors=self.anchors[here], positive=self.positive[here],
            candidates=self.candidates[here], weight=self.weight[here] / self.weight[here].sum(),
        )  # fmt: skip

    @property
    def itself(self) -> Tensor:
        """(T, M) where a row is the anchor."""
        return torch.arange(self.candidates.shape[1]) == self.anchors[:, None]

    @property
    def own(self) -> Tensor:
        """(T, M) where a row is the positive."""
        return torch.arange(self.candidates.shape[1]) == self.positive[:, None]


# --- Forms: which terms there are ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Which rows are anchors and which are candidates.

    Args:
        kind: its name in a report.
        sides: the views whose rows are anchors, 0 and 1.
        negatives: "all" rows of both views, the "other" view, or "none" of the batch.
        queue: "none", "own" of this process, or "all".
        everywhere: anchors of all processes (a global loss) instead of this one's.
        remark: what makes the form right only if it is meant.
        pairwise: -log sigmoid of every pair (SigLIP) in place of a softmax.
    """

    kind: str
    sides: tuple[int, ...] = (0, 1)
    negatives: str = "other"
    queue: str = "none"
    everywhere: bool = False
    remark: str = ""
    pairwise: bool = False

    def terms(self, probe: Probe, process: int, tau: float) -> Terms:
        """The right terms, at temperature tau."""
        side, rank, total = probe.side, probe.rank, len(probe.z1)
        is_anchor = torch.isin(side, torch.tensor(self.sides))
        if not self.everywhere:
            is_anchor &= rank == process
        anchors = is_anchor.nonzero()[:, 0]  # (T,)
        positive = (anchors + total) % (2 * total)
        sides = side[anchors][:, None]  # (T, 1)
        keys = {"all": side < 2, "other": side == 1 - sides, "none": side < 0, "own": rank < 0}
        candidates = keys[self.negatives].expand(len(anchors), len(side)).clone()
        if self.negatives == "own":
            candidates = (side == 1 - sides) & (rank == process)
        if self.queue != "none":
            candidates |= (side == 2) & ((rank == process) | (self.queue == "all"))
        candidates.scatter_(1, anchors[:, None], False)
        candidates.scatter_(1, positive[:, None], True)
        return Terms(
            probe=probe, process=process, anchors=anchors, positive=positive,
            candidates=candidates, weight=torch.full((len(anchors),), 1 / len(anchors)).double(),
            scale=1 / tau, positive_scale=1 / tau,
            reduce=sigmoid if self.pairwise else mean,
        )  # fmt: skip


ONE_WAY = (
    "one direction only: {} are anchors, the others only keys (if both were meant: is the second "
    "cross-entropy taken of the transposed logits?)"
)


def forms(queued: bool, world: int) -> list[Form]:
    """The forms that count as right, commonest first."""
    if queued:
        remark = "the batch's other keys are negatives too"
        names = {"none": "InfoNCE with a queue (MoCo)", "other": "InfoNCE with further negatives"}
        if world > 1:
            names["own"] = names["other"]
        found = [
            Form(kind=kind, sides=(0,), negatives=negatives, queue=queue,
                 remark=remark if negatives != "none" else "")
            for negatives, kind in names.items()
            for queue in (("own", "all") if world > 1 else ("own",))
        ]  # fmt: skip
    else:
        found = [
            Form(kind="NT-Xent", negatives="all"),
            Form(kind="symmetric InfoNCE (CLIP)"),
            Form(kind="InfoNCE from z1 to z2", sides=(0,), remark=ONE_WAY.format("rows of z1")),
            Form(kind="InfoNCE from z2 to z1", sides=(1,), remark=ONE_WAY.format("rows of z2")),
            Form(
                kind="NT-Xent with anchors z1", sides=(0,), negatives="all",
                remark=ONE_WAY.format("rows of z1"),
            ),
            Form(
                kind="NT-Xent with anchors z2", sides=(1,), negatives="all",
                remark=ONE_WAY.format("rows of z2"),
            ),
            Form(kind="sigmoid loss (SigLIP)", sides=(0,), pairwise=True),
        ]  # fmt: skip
    return found + ([replace(one, everywhere=True) for one in found] if world > 1 else [])


# --- Reductions of T numerators and (T, M) denominators to a loss ---


def mean(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """InfoNCE: the mean of -log p."""
    return (t.weight * (den.logsumexp(1) - num)).sum()


def sigmoid(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """SigLIP: softplus of the negatives' logits and of minus the positive's, per anchor."""
    negatives = den.masked_fill(t.own, -torch.inf)
    each = torch.nn.functional.softplus(negatives).sum(1) + torch.nn.functional.softplus(-num)
    return (t.weight * each).sum()
