"""InfoNCE as a program with knobs: which losses there are, what may be wrong, and the search.

Letters: W processes with n pairs each, N = W n, K queue rows per process, M = 2N + W K rows (all
first views, all second views, all queues), T terms. On process r every loss here is

    loss = reduce_t  -log( exp(s(a_t, p_t)) / sum_{k in C_t} exp(s(a_t, k)) ),    s = cosine / tau

A *form* says which terms (anchor a_t, positive p_t, candidates C_t) there are. A *departure* turns
one knob. The departures are tables of (name and remedy, value of the knob); the mistakes are those
of public code, listed in docs/check-loss.md. `Search` finds the form and the fewest departures that
give the loss of every probe on every process.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import batch_norm, layer_norm, normalize, softplus


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
    def sizes(self) -> list[int]:
        """N, N and W K."""
        return [len(self.z1), len(self.z2), len(self.queue)]

    @property
    def side(self) -> Tensor:
        """(M,) 0 for first views, 1 for second views, 2 for queue rows."""
        return torch.arange(3).repeat_interleave(torch.tensor(self.sizes))

    def split(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows as z1, z2 and queue."""
        return torch.split(rows, self.sizes)

    @property
    def rank(self) -> Tensor:
        """(M,) the process that holds a row."""
        return torch.cat([torch.arange(size) * self.world // max(size, 1) for size in self.sizes])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """One probe: the loss and its gradient with respect to the rows, of every process."""

    probe: Probe
    values: tuple[float, ...]  # (W,)
    gradients: tuple[tuple[Tensor, Tensor], ...]  # W times (n, d), (n, d)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """(len(a), len(b)) of unit rows."""
    return a @ b.T


def mean(num: Tensor, den: Tensor, t: "Terms") -> Tensor:
    """InfoNCE: the mean of -log p."""
    return t.mean(den.logsumexp(1) - num)


def sigmoid(num: Tensor, den: Tensor, t: "Terms") -> Tensor:
    """SigLIP: softplus of the negatives' logits and of minus the positive's, per anchor."""
    return t.mean(softplus(den.masked_fill(t.own, -torch.inf)).sum(1) + softplus(-num))


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
    rows: Callable[[Tensor, Probe], Tensor] = lambda rows, _: normalize(rows, dim=1)
    kernel: Callable[[Tensor, Tensor], Tensor] = cosines
    logit: Callable[[Tensor, float], Tensor] = torch.mul  # (cosine, scale) -> logit
    positive_logit: Callable[[Tensor, float], Tensor] = torch.mul
    margin: float = 0.0  # taken from the positive's cosine
    pick: Callable[[Tensor, Tensor, "Terms"], Tensor] = lambda num, den, t: num
    shared: bool = False  # the denominator holds the numerator's logit, margin and scale included
    fixed: Tensor | None = None  # (T, M) bool, entries whose logit is `fixed_logit`
    fixed_logit: float = 0.0
    added: Tensor | None = None  # (T, M) added to the denominator's logits
    asking: Tensor | None = None  # (T,) rows in place of the anchors in the denominator
    reduce: Callable[[Tensor, Tensor, "Terms"], Tensor] = mean
    outer: Callable[[Tensor, Probe], Tensor] = lambda value, _: value
    other: "Terms | None" = None  # the second half of the loss, if it is treated otherwise

    def but(self, **changes: Any) -> Self:
        """A copy with other knobs, ten times faster than `dataclasses.replace`."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    def value(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """The loss from cosines (M, M); two matrices, so that gradients can be told apart."""
        value = self.reduce(*self.logits(numerator, denominator), self)
        if self.other is not None:
            second = self.other.logits(numerator, denominator)
            value = (value + self.other.reduce(*second, self.other)) / 2
        return self.outer(value, self.probe)

    def logits(self, numerator: Tensor, denominator: Tensor) -> tuple[Tensor, Tensor]:
        """(T,) of the positives, (T, M) of the candidates, -inf elsewhere."""
        cosine = numerator[self.anchors, self.positive]
        num = self.positive_logit(cosine - self.margin if self.margin else cosine,
                                  self.positive_scale)  # fmt: skip
        asking = self.anchors if self.asking is None else self.asking
        den = self.logit(denominator[asking], self.scale)
        num = self.pick(num, den, self)
        if self.shared:
            den = den.scatter(1, self.positive[:, None], num[:, None])
        if self.fixed is not None:
            den = den.masked_fill(self.fixed, self.fixed_logit)
            at = self.fixed.gather(1, self.positive[:, None])[:, 0]
            num = num.masked_fill(at, self.fixed_logit)
        if self.added is not None:
            den = den + self.added
        return num, den.masked_fill(~self.candidates, -torch.inf)

    def mean(self, x: Tensor) -> Tensor:
        """The weighted mean over the terms."""
        return (self.weight * x).sum()

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

    @property
    def same_view(self) -> Tensor:
        """(T, M) where a row is of the anchor's view."""
        return self.probe.side == self.probe.side[self.anchors][:, None]

    @property
    def other_view(self) -> Tensor:
        """(T, M) rows of the batch in the view that the anchor is not of."""
        return (self.probe.side < 2) & ~self.same_view

    @property
    def total(self) -> int:
        """N, the pairs of all processes."""
        return len(self.probe.z1)

    @property
    def sample(self) -> Tensor:
        """(T,) the anchors' samples."""
        return self.anchors % self.total

    @property
    def local(self) -> Tensor:
        """(T,) the anchors' samples, counted in their process."""
        return self.sample % self.probe.pairs

    def key(self, sample: Tensor) -> Tensor:
        """(T,) the row of a sample in the view that the anchor is not of."""
        return sample % self.total + (self.anchors < self.total) * self.total

    def ordered(self, order: Tensor, partner: Callable[[Tensor], Tensor]) -> Tensor:
        """(T,) the row at the partner's place, where rows stand in another order than thought."""
        return order[partner(torch.argsort(order)[self.anchors]) % len(order)]

    def by_rank(self) -> Tensor:
        """(2N,) the order of a gather of cat([z1, z2]): per process, then per view."""
        both = 2 * self.total
        place = self.probe.rank[:both] * 2 + self.probe.side[:both]
        return torch.argsort(place, stable=True)


# --- Forms: which terms there are ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Which rows are anchors and which are candidates."""

    kind: str  # its name in a report
    sides: tuple[int, ...] = (0, 1)  # the views whose rows are anchors
    negatives: str = "other"  # "all" rows of both views, the "other" view, "own" process, "none"
    queue: str = "none"  # or "own" of this process, or "all"
    everywhere: bool = False  # anchors of all processes (a global loss) instead of this one's
    remark: str = ""  # what makes the form right only if it is meant
    pairwise: bool = False  # -log sigmoid of every pair (SigLIP) in place of a softmax

    def terms(self, probe: Probe, process: int, tau: float) -> Terms:
        """The right terms, at temperature tau."""
        side, rank, total = probe.side, probe.rank, len(probe.z1)
        is_anchor = torch.isin(side, torch.tensor(self.sides))
        if not self.everywhere:
            is_anchor &= rank == process
        anchors = is_anchor.nonzero()[:, 0]  # (T,)
        positive = (anchors + total) % (2 * total)
        other = side == 1 - side[anchors][:, None]  # (T, M)
        candidates = {
            "all": (side < 2).expand_as(other), "other": other, "own": other & (rank == process),
            "none": torch.zeros_like(other),
        }[self.negatives].clone()  # fmt: skip
        if self.queue != "none":
            candidates |= (side == 2) & ((rank == process) | (self.queue == "all"))
        candidates.scatter_(1, anchors[:, None], False).scatter_(1, positive[:, None], True)
        return Terms(
            probe=probe, process=process, anchors=anchors, positive=positive,
            candidates=candidates, weight=torch.full((len(anchors),), 1 / len(anchors)).double(),
            scale=1 / tau, positive_scale=1 / tau, reduce=sigmoid if self.pairwise else mean,
        )  # fmt: skip

    def has(self, traits: str, world: int) -> bool:
        """Whether all traits hold; a departure's table names those it needs."""
        facts = {
            "queue": self.queue != "none", "batch": self.queue == "none", "world": world > 1,
            "all": self.negatives == "all",
            "cross": self.negatives != "all" and self.queue == "none",
        }  # fmt: skip
        return all(facts[trait] for trait in traits.split())


ONE_WAY = (
    "one direction only: rows of {} are anchors, the others only keys (if both were meant: is the "
    "second cross-entropy taken of the transposed logits?)"
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
        one_way = [(0, ONE_WAY.format("z1")), (1, ONE_WAY.format("z2"))]
        found = [
            Form(kind="NT-Xent", negatives="all"),
            Form(kind="symmetric InfoNCE (CLIP)"),
            *(Form(kind=f"InfoNCE from z{i + 1} to z{2 - i}", sides=(i,), remark=remark)
              for i, remark in one_way),
            *(Form(kind=f"NT-Xent with anchors z{i + 1}", sides=(i,), negatives="all",
                   remark=remark) for i, remark in one_way),
            Form(kind="sigmoid loss (SigLIP)", sides=(0,), pairwise=True),
        ]  # fmt: skip
    return found + ([replace(one, everywhere=True) for one in found] if world > 1 else [])


# --- Departures: one knob each, as tables ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Departure:
    """One change of a form: `part` is the knob, a knob is turned once."""

    part: str
    text: str
    change: Callable[[Terms], Terms]
    mistake: bool = True
    outer: Callable[[Any, Probe], Any] | None = None  # if only the finished loss is changed
    half: bool = False  # of a part of the loss: not combined with another


Row = Callable[[Tensor], Tensor]
Index = Callable[[Terms], Tensor]
Change = Callable[[Terms], Terms]
Logit = Callable[[Tensor, float], Tensor]
Reduce = Callable[[Tensor, Tensor, Terms], Tensor]
Count = Callable[[Probe], float]
Outer = Callable[[Any, Probe], Any]


def scales(tau: float, dim: int) -> dict[str, float]:
    """Factors of the cosines that are not 1 / tau."""
    found = {
        "temperature multiplied: the logits are multiplied by tau, divide by tau": tau,
        "temperature absent: tau is never used (the loss has tau = 1)": 1.0,
        "temperature squared: the logits are divided by tau twice (or by tau ** 2)": tau**-2,
        "temperature doubled: the logits are cosine / (2 tau), are they halved?": 0.5 / tau,
        "temperature halved: the logits are 2 cosine / tau (squared distances?)": 2 / tau,
        "square root of the temperature: divide by tau itself": tau**-0.5,
        "logit scale not exponentiated: the logits are multiplied by log(1 / tau), use "
        "logit_scale.exp()": -math.log(tau),
        "logit scale has the wrong sign: the logits are multiplied by log(tau)": math.log(tau),
        "logit scale exponentiated twice: use exp(logit_scale)": math.exp(min(1 / tau, 700.0)),
        "temperature exponentiated: the logits are multiplied by exp(tau)": math.exp(tau),
        "temperature exponentiated: the logits are divided by exp(tau)": math.exp(-tau),
        "logit scale clamped at log(100): clamp the logarithm, or the scale at 100":
            min(math.log(100), 1 / tau),
        "temperature replaced by sqrt(d): the logits are divided by sqrt(d)": dim**-0.5,
    }  # fmt: skip
    return {text: x for text, x in found.items() if x and not math.isclose(x, 1 / tau)}


LOGITS: dict[str, Logit] = {
    "sign of the similarity reversed: positives are pushed apart": lambda c, s: -c * s,
    "absolute value of the cosine: opposite rows count as equal": lambda c, s: c.abs() * s,
    "cosine clipped at 0: negative cosines have no gradient": lambda c, s: c.relu() * s,
    "cosine squared": lambda c, s: c.square() * s,
    "cosine mapped to (1 + cosine) / 2: this doubles the temperature": lambda c, s: (1 + c) / 2 * s,
    "angle in place of the cosine": lambda c, s: -c.clamp(-1, 1).arccos() * s,
    "exponential twice: give the cross-entropy cosine / tau, not its exponential":
        lambda c, s: (c * s).exp(),
    "exponential twice: exp(cosine) is divided by tau": lambda c, s: c.exp() * s,
    "sigmoid of the logits before the softmax": lambda c, s: (c * s).sigmoid(),
    "tanh of the logits before the softmax": lambda c, s: (c * s).tanh(),
}  # fmt: skip

KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "distance in place of the cosine: logits are -|a - b| / tau": lambda a, b: -torch.cdist(a, b),
    "L1 distance in place of the cosine": lambda a, b: -torch.cdist(a, b, p=1),
    "squared distance in place of the cosine, of rows that are not normalised (and on unit rows "
    "the temperature halved)": lambda a, b: -torch.cdist(a, b).square(),
    "products averaged over the features: sum them": lambda a, b: a @ b.T / a.shape[1],
}

ROWS: dict[str, Row] = {
    "normalised over the batch: use normalize(z, dim=1)": lambda z: normalize(z, dim=0),
    "normalised as a whole: each row needs its own norm": lambda z: z / z.norm(),
    "rows normalised with p=1, not p=2": lambda z: normalize(z, p=1, dim=1),
    "rows normalised with p=inf, not p=2": lambda z: normalize(z, p=torch.inf, dim=1),
    "rows divided by their squared length": lambda z: z / z.square().sum(1, keepdim=True),
    "softmax of the embeddings before the similarity": lambda z: z.softmax(1),
    "softmax of the embeddings, then normalised": lambda z: _unit(z.softmax(1)),
    "relu of the embeddings before they are normalised": lambda z: _unit(z.relu()),
    "features centred over the batch": lambda z: _unit(z - z.mean(0)),
    "features standardised over the batch": lambda z: (z - z.mean(0)) / z.std(0),
    "features standardised over the batch, then normalised":
        lambda z: _unit((z - z.mean(0)) / z.std(0)),
    "batch norm: features standardised over the batch":
        lambda z: batch_norm(z, None, None, training=True),
    "batch norm: features standardised over the batch, then normalised":
        lambda z: _unit(batch_norm(z, None, None, training=True)),
    "layer norm in place of unit length": lambda z: layer_norm(z, z.shape[1:]),
    "rows centred before they are normalised": lambda z: _unit(z - z.mean(1, keepdim=True)),
}  # fmt: skip


def row_changes(form: Form) -> Iterator[tuple[str, Callable[[Tensor, Probe], Tensor]]]:
    """What is done to the rows: of each view, of both views together, of all but the queue."""

    def views(rows: Tensor, probe: Probe, change: Row, of: tuple[int, ...] = (0, 1, 2)) -> Tensor:
        parts = enumerate(probe.split(rows))
        return torch.cat([change(z) if i in of and len(z) else _unit(z) for i, z in parts])

    def together(rows: Tensor, probe: Probe, change: Row) -> Tensor:
        both = 2 * len(probe.z1)
        return torch.cat([change(rows[:both]), _unit(rows[both:])])

    def not_queue(rows: Tensor, probe: Probe, change: Row) -> Tensor:
        z1, z2, queue = probe.split(rows)
        return torch.cat([change(z1), change(z2), queue])

    def twice(rows: Tensor, probe: Probe, view: int) -> Tensor:
        parts = probe.split(_unit(rows))
        return torch.cat([parts[view], parts[view], parts[2]])

    def stacked(rows: Tensor, probe: Probe, dims: tuple[int, ...]) -> Tensor:
        z1, z2, queue = probe.split(rows)
        both = torch.stack([z1, z2])
        return torch.cat([*(both / torch.linalg.vector_norm(both, dim=dims, keepdim=True)), queue])

    for view, text in ((0, "z2 is never used, z1"), (1, "z1 is never used, z2")):
        yield f"one view twice: {text} is contrasted with itself", partial(twice, view=view)
    text = "views are joined along the features before they are normalised: normalise each"
    yield text, partial(stacked, dims=(0, 2))
    yield "normalised over the views, not over the features", partial(stacked, dims=(0,))
    for text, change in ROWS.items():
        yield text, partial(views, change=change)
        if "batch" in text or "whole" in text:
            yield text, partial(together, change=change)
        if form.queue != "none":
            yield text, partial(not_queue, change=change)
        for view in (0, 1):
            yield f"{text} (z{view + 1} only)", partial(views, change=change, of=(view,))


def _unit(rows: Tensor) -> Tensor:
    return normalize(rows, dim=1)


ORDER = "order of the gathered rows: "
POSITIVES: list[tuple[str, str, Index]] = [
    ("", "the anchor itself is its positive", lambda t: t.anchors),
    ("", "labels shifted by one, the next sample's key", lambda t: t.key(t.sample + 1)),
    ("", "labels shifted by one, the previous sample's key", lambda t: t.key(t.sample - 1)),
    ("", "always key 0 (labels are zeros)", lambda t: t.key(0 * t.sample)),
    ("", "always the last key", lambda t: t.key(0 * t.sample - 1)),
    ("", "views misaligned by one sample",
        lambda t: t.key(t.sample + (-1) ** (t.anchors // t.total))),
    ("", "views misaligned by one sample, the other way",
        lambda t: t.key(t.sample - (-1) ** (t.anchors // t.total))),
    ("", "keys in reversed order", lambda t: t.key(-1 - t.sample)),
    ("queue", "label i in place of 0: the positive is the first column of every row", lambda t:
        torch.where(t.sample == 0, t.positive, 2 * t.total - 1 + t.sample)),
    ("queue", "the first negative (label 0 where the positive is not the first column)",
        lambda t: torch.full_like(t.anchors, 2 * t.total)),
    ("queue", "the last negative", lambda t: torch.full_like(t.anchors, sum(t.probe.sizes) - 1)),
    ("queue", "negative i of the queue", lambda t: 2 * t.total + t.sample),
    ("all", "views are interleaved but labels are for views stacked as [z1; z2]",
        lambda t: t.ordered(torch.arange(2 * t.total).view(2, -1).T.flatten(),
        lambda place: place + t.total)),
    ("all", "views are stacked as [z1; z2] but labels are for interleaved views, rows 2i and "
        "2i + 1 are taken for a pair", lambda t: t.anchors ^ 1),
    ("all", "a neighbouring row of the stack", lambda t: (t.anchors + 1) % (2 * t.total)),
    ("all", "a neighbouring row of the stack (before)", lambda t: (t.anchors - 1) % (2 * t.total)),
    ("all", "labels shifted by one in the stack [z1; z2]",
        lambda t: (t.anchors + t.total + 1) % (2 * t.total)),
    ("all", "labels shifted by one in the stack [z1; z2], the other way",
        lambda t: (t.anchors + t.total - 1) % (2 * t.total)),
    ("all", "next sample of the same view",
        lambda t: (t.sample + 1) % t.total + (t.anchors >= t.total) * t.total),
    ("all", "labels 0 ... n - 1 for both views (no offset n)", lambda t: t.sample),
    ("all", "labels n ... 2n - 1 for both views", lambda t: t.sample + t.total),
    ("all", "always row 0 of the stack (labels are zeros)", lambda t: 0 * t.anchors),
    ("world", "local offset of the labels is missing: they point at the keys of rank 0, add "
        "rank * n", lambda t: t.key(t.local)),
    ("world", "labels are shifted by rank, add rank * n", lambda t: t.key(t.local + t.process)),
    ("world", "labels point at the last rank's keys", lambda t: t.key(t.local - t.probe.pairs)),
    ("world", "labels point at the next rank's keys", lambda t: t.key(t.sample + t.probe.pairs)),
    ("world queue", ORDER + "keys and negatives alternate by rank, labels count keys first",
        lambda t: torch.argsort(torch.where(t.probe.side == 0, 9 * t.probe.world,
            t.probe.rank * 2 + t.probe.side), stable=True)[t.sample]),
    ("world batch", ORDER + "each rank's [z1; z2] follow each other, positives are taken for all "
        "z1, then all z2", lambda t: t.ordered(t.by_rank(), lambda place: place + t.total)),
    ("world batch", ORDER + "all z1 come before all z2, positives are taken for [z1; z2] per rank",
        lambda t: t.anchors - t.anchors % (2 * t.probe.pairs)
        + (t.anchors + t.probe.pairs) % (2 * t.probe.pairs)),
    ("world batch", ORDER + "all z1 come before all z2, labels count within [z1; z2] of one rank",
        lambda t: (t.local + (t.anchors < t.total) * t.probe.pairs
        + t.process * 2 * t.probe.pairs) % (2 * t.total)),
    ("world batch", ORDER + "each rank's [z1; z2] follow each other, keys are counted as if all "
        "were of one view", lambda t: t.by_rank()[t.sample]),
    ("world batch", ORDER + "rows of all ranks are interleaved, labels count them rank by rank",
        lambda t: t.key(t.sample % t.probe.world * t.probe.pairs + t.sample // t.probe.world)),
    ("world batch", ORDER + "rows of all ranks are interleaved, labels count them in rank order",
        lambda t: t.key(t.local * t.probe.world + t.process)),
]  # fmt: skip


def with_positive(t: Terms, positive: Index) -> Terms:
    """Other positives; they are candidates."""
    index = positive(t)
    return t.but(positive=index, candidates=t.candidates.scatter(1, index[:, None], True))


def also_itself(t: Terms, masked: bool) -> Terms:
    """The mean of two positives, the anchor's and the anchor itself."""
    right = t if masked else t.but(candidates=t.candidates | t.itself)
    return right.but(positive=t.anchors, other=right)


def without(t: Terms, place: int) -> Terms:
    """One key less: the first or the last candidate of all anchors."""
    missing = torch.arange(t.candidates.shape[1]) == t.candidates.any(0).nonzero()[place]
    return t.but(candidates=t.candidates & ~missing)


def masked_elsewhere(t: Terms) -> Terms:
    """The mask on the row of rank 0 with the anchor's local number."""
    place = t.local + (t.anchors >= t.total) * t.total
    return t.but(candidates=(t.candidates | t.itself).scatter(1, place[:, None], False))


def averaged(t: Terms) -> Terms:
    """Negatives divided by their number."""
    count = (t.candidates & ~t.own).sum(1, keepdim=True)
    return t.but(added=torch.where(t.own, 0.0, -count.log()))


DECOUPLED = "decoupled: the positive is not in the denominator (DCL); right only if meant"
OWN_VIEW = "negatives of the anchor's own view only"
ALSO = "the anchor itself is a second positive: take the diagonal out of the mask of positives"

CANDIDATES: list[tuple[str, str, Change]] = [
    ("", DECOUPLED, lambda t: t.but(candidates=t.candidates & ~t.own)),
    ("", "the last key is missing in the denominator", lambda t: without(t, -1)),
    ("", "the first key is missing in the denominator", lambda t: without(t, 0)),
    ("", "positive twice in the denominator: it is also counted among the negatives",
        lambda t: t.but(added=t.own * math.log(2))),
    ("", "negatives twice in the denominator", lambda t: t.but(added=~t.own * math.log(2))),
    ("", "negatives averaged in the denominator: sum them", averaged),
    ("", "positive masked with 0 in the denominator: it adds exp(0) = 1",
        lambda t: t.but(reduce=lambda num, den, t: mean(num, den.masked_fill(t.own, 0.0), t))),
    ("all", "no self-mask: every anchor is its own negative, fill the diagonal of the logits with "
        "-inf", lambda t: t.but(candidates=t.candidates | t.itself)),
    ("all", "self-mask of 0: the anchor's own logit is 0 and adds exp(0) = 1, fill the diagonal "
        "with -inf (is it 1e-9 for 1e9, or a product with the mask?)",
        lambda t: t.but(candidates=t.candidates | t.itself, fixed=t.itself)),
    ("all", "self-mask on the positive: the positive is masked and the anchor itself is not",
        lambda t: t.but(candidates=(t.candidates | t.itself) & ~t.own)),
    ("all", OWN_VIEW, lambda t: t.but(candidates=t.candidates & (t.same_view | t.own))),
    ("all", f"{OWN_VIEW}, and the anchor itself",
        lambda t: t.but(candidates=t.candidates & (t.same_view | t.own) | t.itself)),
    ("all", ALSO, lambda t: also_itself(t, masked=False)),
    ("all", ALSO, lambda t: also_itself(t, masked=True)),
    ("cross", "one view twice: rows are contrasted with their own view",
        lambda t: t.but(positive=t.anchors, candidates=t.same_view)),
    ("cross", f"{OWN_VIEW}, and the anchor itself",
        lambda t: t.but(candidates=t.same_view | t.own)),
    ("cross", "own view added without a self-mask",
        lambda t: t.but(candidates=t.candidates | t.same_view)),
    ("queue", "negatives are compared with the keys, not with the queries",
        lambda t: t.but(asking=t.positive, shared=True)),
    ("queue", "queue never used", lambda t: t.but(candidates=t.candidates & (t.probe.side < 2))),
    ("world", "own rows twice among the gathered keys",
        lambda t: t.but(added=(t.probe.rank == t.process) * math.log(2))),
    ("world", "negatives of this rank only: gather the rows of all processes", lambda t:
        t.but(candidates=t.candidates & (t.probe.rank == t.probe.rank[t.anchors][:, None]))),
    ("world all", "self-mask without the rank's offset: it masks a row of rank 0, not the anchor",
        masked_elsewhere),
]  # fmt: skip

PICKS: dict[str, Reduce] = {
    "positive summed over all keys: multiply row i with row i (an einsum that sums too much?)":
        lambda n, d, t: d.masked_fill(~t.other_view, 0).sum(1),
    "positive averaged over all keys: no label picks it": lambda n, d, t: average(d, t.other_view),
    "positives summed over the batch: the sum needs dim=1": lambda n, d, t: n.sum().expand_as(n),
    "positives averaged over the batch": lambda n, d, t: t.mean(n).expand_as(n),
    "the largest logit is taken for the positive (argmax in place of labels)":
        lambda n, d, t: d.masked_fill(~t.candidates, -torch.inf).amax(1),
    "the smallest logit is taken for the positive (argmin in place of labels)":
        lambda n, d, t: d.masked_fill(~t.candidates, torch.inf).amin(1),
}  # fmt: skip


# --- Reductions of T numerators and (T, M) denominators to a loss ---


def probability(num: Tensor, den: Tensor) -> Tensor:
    """(T,) of the positives."""
    return (num - den.logsumexp(1)).exp()


def average(den: Tensor, which: Tensor) -> Tensor:
    """(T,) the mean logit of some keys."""
    return den.masked_fill(~which, 0.0).sum(1) / which.sum(1)


def softmax_twice(
    num: Tensor, den: Tensor, t: Terms, masked: bool = False, plain: bool = False
) -> Tensor:
    """Cross-entropy of probabilities: -log softmax(p) at the positive.

    masked: the anchor keeps its column with probability 0; plain: p of cosines, divided by tau.
    """
    scale = t.scale if plain else 1.0
    p = (den / scale).softmax(1) * scale
    p = p.masked_fill(~(t.candidates | t.itself if masked else t.candidates), -torch.inf)
    return t.mean(p.logsumexp(1) - scale * probability(num / scale, den / scale))


REDUCTIONS: list[tuple[str, Reduce]] = [
    ("-log of the mean: average the losses, not the probabilities",
        lambda n, d, t: -t.mean(probability(n, d)).log()),
    ("no logarithm: the loss is the mean of -p", lambda n, d, t: -t.mean(probability(n, d))),
    ("no logarithm: the loss is the mean of 1 - p", lambda n, d, t: 1 - t.mean(probability(n, d))),
    ("no logarithm of the denominator: use logsumexp", lambda n, d, t: t.mean(d.exp().sum(1) - n)),
    ("no logarithm of the denominator, and a mean of exponentials: use logsumexp",
        lambda n, d, t: t.mean(d.exp().sum(1) / t.candidates.sum(1) - n)),
    ("softmax twice: the cross-entropy is given probabilities, give it logits", softmax_twice),
    ("softmax twice: the cross-entropy is given probabilities, give it logits",
        partial(softmax_twice, masked=True)),
    ("temperature after the softmax: divide the cosines", partial(softmax_twice, plain=True)),
    ("temperature after the softmax: divide the cosines",
        partial(softmax_twice, masked=True, plain=True)),
    ("one softmax over the whole matrix: each anchor needs its own",
        lambda n, d, t: d.flatten().logsumexp(0) - t.mean(n)),
    ("one fraction: sums over the batch are divided before the logarithm",
        lambda n, d, t: d.flatten().logsumexp(0) - n.logsumexp(0)),
    ("maximum subtracted in the denominator only: subtract it from all logits",
        lambda n, d, t: t.mean(d.logsumexp(1) - d.detach().amax(1) - n)),
    ("only the first anchor has a loss", lambda n, d, t: d[0].logsumexp(0) - n[0]),
    ("only the largest loss of the batch counts", lambda n, d, t: (d.logsumexp(1) - n).max()),
    ("only the largest logit is in the denominator: use logsumexp",
        lambda n, d, t: t.mean(d.amax(1) - n)),
    ("logits averaged in the denominator: no exponential, use logsumexp",
        lambda n, d, t: t.mean(average(d, t.candidates) - n)),
    ("logits of negatives averaged in the denominator: no exponential, use logsumexp",
        lambda n, d, t: t.mean(average(d, t.candidates & ~t.own) - n)),
    ("no exponential: the logarithm of a sum of logits, use logsumexp",
        lambda n, d, t: t.mean((d.masked_fill(~t.candidates, 0).sum(1) / n).log())),
    ("binary cross-entropy of probabilities: use cross_entropy", lambda n, d, t:
        t.mean(d.logsumexp(1) - n - (-d.softmax(1)).log1p().masked_fill(t.own, 0).sum(1))),
    ("no positive: the denominator alone is the loss", lambda n, d, t: t.mean(d.logsumexp(1))),
    ("-log(1 - p): the positive is taken for a negative",
        lambda n, d, t: -t.mean((-probability(n, d)).log1p())),
    ("the negatives are taken for positives: -log p is averaged over them",
        lambda n, d, t: t.mean(d.logsumexp(1) - average(d, t.candidates & ~t.own))),
    ("no label: -log p is averaged over all keys, the positive is not picked",
        lambda n, d, t: t.mean(d.logsumexp(1) - average(d, t.candidates))),
    ("softmax over the batch: it must run over the keys of an anchor (dim=1)",
        lambda n, d, t: n.logsumexp(0) - t.mean(n)),
]  # fmt: skip

SIGMOIDS: list[tuple[str, Reduce]] = [
    ("labels 0 in place of -1: negatives have no gradient", lambda n, d, t:
        t.mean((t.candidates & ~t.own).sum(1) * math.log(2) + softplus(-n))),
    ("labels reversed: positives have -1 and negatives 1", lambda n, d, t:
        t.mean(softplus(-d.masked_fill(~t.candidates | t.own, torch.inf)).sum(1) + softplus(n))),
    ("label 1 everywhere: negatives are pulled together too", lambda n, d, t:
        t.mean(softplus(-d.masked_fill(~t.candidates, torch.inf)).sum(1))),
]  # fmt: skip


# --- Changes of the finished loss ---

COUNTS: dict[str, Count] = {
    "the anchors": lambda p: p.pairs, "both views' anchors": lambda p: 2 * p.pairs,
    "the negatives": lambda p: p.pairs - 1, "all other rows": lambda p: 2 * p.pairs - 1,
    "the 2n - 2 negatives": lambda p: 2 * p.pairs - 2, "the features": lambda p: p.z1.shape[1],
    "all pairs": lambda p: p.pairs**2, "all pairs of both views": lambda p: 4 * p.pairs**2,
}  # fmt: skip
WORLD_COUNTS: dict[str, Count] = {
    "the anchors of all processes": lambda p: len(p.z1),
    "the rows of all processes": lambda p: 2 * len(p.z1),
}
TIMES_WORLD = "multiplied by world: the value is multiplied by the number of processes"


def outers(world: int) -> Iterator[tuple[str, str, Outer]]:
    """(part, name, function): factors, functions and offsets."""
    for name, count in (COUNTS | (WORLD_COUNTS if world > 1 else {})).items():
        text = f"sum over {name} in place of the mean: the gradient grows with the batch"
        yield "factor", text, partial(_counted, count=count, do=lambda v, n: v * n)
        number = name.removeprefix("the ")
        text = f"mean taken twice: the loss is divided by the number of {number} once more"
        yield "factor", text, partial(_counted, count=count, do=lambda v, n: v / n)
        text = f"denominator averaged over {name}: a constant is subtracted, no gradient changes"
        yield "offset", text, partial(_counted, count=count, do=lambda v, n: v - math.log(n))
    for text, do in (OUTERS | (WORLD_OUTERS if world > 1 else {})).items():
        yield "factor", text, do


def _counted(value: Any, probe: Probe, count: Count, do: Callable[[Any, float], Any]) -> Any:
    return do(value, count(probe))


WORLD_OUTERS: dict[str, Outer] = {
    TIMES_WORLD: lambda v, p: v * p.world,
    "divided by world: DDP divides by the number of processes again": lambda v, p: v / p.world,
}
OUTERS: dict[str, Outer] = {
    "sign of the loss reversed: training would push positives apart": lambda v, p: -v,
    "sum divided by the number of negatives": lambda v, p: v * p.pairs / (p.pairs - 1),
    "mean over 2n - 1 anchors, not 2n": lambda v, p: v * 2 * p.pairs / (2 * p.pairs - 1),
    "divided by log(n), the loss of chance": lambda v, p: v / math.log(p.pairs),
    "the loss is squared: its gradient vanishes with it": lambda v, p: v * v,
    "exponential of the loss: return the loss itself": lambda v, p: v.exp(),
    "logarithm twice: return the loss, not its logarithm": lambda v, p: v.log(),
    "square root of the loss": lambda v, p: v.sqrt(),
}


# --- All of a form ---

PLACES = (  # where a scale or logit is changed: of the numerator or not, and is the positive shared
    ("in the numerator only", "positive_", False), ("in the denominator only", "", False),
    ("on the positives only", "positive_", True), ("on the negatives only", "", True),
)  # fmt: skip


def departures(form: Form, tau: float, dim: int, world: int) -> list[Departure]:
    """Of the whole loss first, then of one half of it."""

    def turned(part: str, text: str, **knobs: Any) -> Departure:
        return Departure(part=part, text=text, change=partial(Terms.but, **knobs))

    logits: list[tuple[str, str, str, Any]] = [
        *(("scale", "scale", text, x) for text, x in scales(tau, dim).items()),
        *(("similarity", "logit", text, x) for text, x in LOGITS.items()),
    ]
    reductions = SIGMOIDS if form.pairwise else REDUCTIONS
    whole = [turned(part, text, **{knob: x, f"positive_{knob}": x})
             for part, knob, text, x in logits]  # fmt: skip
    whole += [turned("similarity", text, kernel=x) for text, x in KERNELS.items()]
    whole += [
        Departure(part="positive", text=f"wrong positive (labels or mask): {text}",
                  change=partial(with_positive, positive=positive))
        for traits, text, positive in POSITIVES if form.has(traits, world)
    ]  # fmt: skip
    whole += [
        Departure(part="candidates", text=text, change=change, mistake=text != DECOUPLED)
        for traits, text, change in CANDIDATES if form.has(traits, world)
    ]  # fmt: skip
    whole += [turned("reduction", text, reduce=x) for text, x in reductions]
    halves = [turned("pick", text, pick=x, shared=shared)
              for text, x in PICKS.items() for shared in (False, True)]  # fmt: skip
    for part, knob, text, x in logits:
        head, _, fix = text.replace("absent", "missing").partition(":")
        for where, of, shared in PLACES:
            text = f"{head} {where}:{fix}".rstrip(":")
            halves.append(turned(part, text, shared=shared, **{of + knob: x}))
    if len(form.sides) == 2:
        halves += [_of_half(one, side) for one in whole for side in (0, 1)]
    elif not form.pairwise:
        halves += [_of_half(one, None) for one in whole]
    rows = [turned("rows", text, rows=change) for text, change in row_changes(form)]
    whole += [one for one in rows if not one.text.endswith("only)")]
    halves += [one for one in rows if one.text.endswith("only)")]
    for part, text, do in outers(world):
        one = turned(part, text, outer=do)
        mistake = part != "offset" and text != TIMES_WORLD  # right where the gradient is once
        whole.append(replace(one, outer=do, mistake=mistake))
    return whole + [replace(one, half=True) for one in halves]


def _of_half(one: Departure, side: int | None) -> Departure:
    """The same departure for one view's anchors; for one of two equal halves if there is one."""

    def change(t: Terms) -> Terms:
        if side is None:
            return one.change(t).but(other=t)
        return one.change(t.of_view(side)).but(other=t.of_view(1 - side))

    text = "in one of two halves of the loss" if side is None else f"anchors of z{side + 1} only"
    return replace(one, text=f"{one.text} ({text})", change=change)


# --- Departures with a number, which is fitted at one probe and must explain all others ---


@dataclass(frozen=True, slots=True)
class Fitted:
    """A departure with a number in it: its text has a place for the number, or for 1 / it."""

    part: str
    text: str
    change: Callable[[Terms, float], Terms]
    grid: Sequence[float] = (0.0, 1.0)  # two points if the loss is linear in the number
    wrong_from: tuple[float, float] = (-math.inf, math.inf)  # a mistake in between, else a remark
    neutral: float = 0.0  # the number that changes nothing
    least: float = 1e-4  # nearer to neutral is rounding
    trait: str = ""

    def at(self, x: float) -> Departure:
        """The departure with this number."""
        low, high = self.wrong_from
        return Departure(
            part=self.part, text=self.text.format(x, 1 / x if x else 0),
            change=lambda t: self.change(t, x), mistake=low < x < high,
        )  # fmt: skip

    def roots(self, error: Callable[[float], float]) -> Iterator[float]:
        """By a line through two points where it is one, else between points of the grid."""
        errors = [error(x) for x in self.grid]
        if len(self.grid) == 2:
            (a, b), (at_a, at_b) = self.grid, errors
            if at_a != at_b:
                yield a - at_a * (b - a) / (at_b - at_a)
            return
        for i in range(len(self.grid) - 1):
            low, high, at_low, at_high = *self.grid[i : i + 2], *errors[i : i + 2]
            if (at_low < 0) == (at_high < 0) or not math.isfinite(at_low + at_high):
                continue
            for _ in range(60):  # regula falsi, Illinois: the end that stays counts half
                x = (low * at_high - high * at_low) / (at_high - at_low)
                at = error(x)
                if abs(at) < 1e-13 * max(1.0, abs(errors[i])):
                    break
                if (at < 0) == (at_low < 0):
                    low, at_low, at_high = x, at, at_high / 2
                else:
                    high, at_high, at_low = x, at, at_low / 2
            yield x


def _reduced(reduce: Callable[[Tensor, Tensor, Terms, float], Tensor], t: Terms, x: float) -> Terms:
    return t.but(reduce=lambda num, den, t: reduce(num, den, t, x))


def _logits(logit: Callable[[Tensor, float], Tensor], t: Terms, x: float) -> Terms:
    """The logits c s, changed in numerator and denominator."""
    changed = lambda c, s: logit(c * s, x)  # noqa: E731
    return t.but(logit=changed, positive_logit=changed)


NEVER, BELOW_0 = (0.0, 0.0), (-math.inf, 0.0)
WIDE = (-1e10, -1e5, -1e3, -300, -100, -30, -10, -3, 0, 3, 10, 30, 100, 300)

FACTOR = Fitted(
    "factor", "times {:.6g}: a constant factor, right only if meant (it acts like a learning rate; "
    "two directions added up give 2, tau / base_temperature is another)",
    lambda t, x: t.but(outer=lambda v, p, f=t.outer: x * f(v, p)), wrong_from=BELOW_0, neutral=1.0,
)  # fmt: skip
OFFSET = Fitted(
    "offset", "offset of {:.6g}: a constant is added; the gradient is not changed",
    lambda t, x: t.but(outer=lambda v, p, f=t.outer: f(v, p) + x), wrong_from=NEVER,
)  # fmt: skip
SMOOTHING = Fitted(
    "reduction", "label smoothing {:.3g}: right only if meant", partial(_reduced, lambda n, d, t, x:
    t.mean(d.logsumexp(1) - (1 - x) * n - x * average(d, t.candidates))), wrong_from=NEVER,
)  # fmt: skip
BIAS = Fitted(
    "bias", "a bias of {:.3f} (a learned one is usual; without, negatives outweigh positives at "
    "first)", partial(_logits, lambda c, x: c + x), range(-40, 21, 2), NEVER, least=-1.0,
)  # fmt: skip
FITTED = (
    FACTOR, OFFSET, SMOOTHING,
    Fitted("similarity", "margin of {:.3g} on the positive's cosine: right only if meant, and "
        "above 0", lambda t, x: t.but(margin=x, shared=True),
        (-1.5, -0.7, -0.2, -0.05, 0.05, 0.2, 0.7, 1.5), BELOW_0),
    Fitted("scale", "another temperature: the loss has tau = {1:.4g} (logits times {0:.4g})",
        lambda t, x: t.but(scale=x, positive_scale=x),
        [sign * 10 ** (e / 8) for sign in (-1, 1) for e in range(-24 * sign, 25 * sign, sign)]),
    Fitted("candidates", "self-mask of {:.4g}: the anchor's own logit is finite, fill the diagonal "
        "with -inf", lambda t, x: t.but(candidates=t.candidates | t.itself, fixed=t.itself,
        fixed_logit=x), WIDE, least=-1.0, trait="all"),
    Fitted("candidates", "positive masked: its logit is {:.4g} (only the anchor may be masked)",
        lambda t, x: t.but(fixed=t.own, fixed_logit=x), WIDE, least=-1.0),
    Fitted("reduction", "epsilon of {:.2g} inside the logarithm: it caps the loss of hard "
        "positives, use log_softmax", partial(_reduced, lambda n, d, t, x:
        -t.mean((probability(n, d) + x).log())), (0.0, 1e-7, 1e-5, 1e-3, 0.1, 1.0), NEVER,
        least=1e-8),
    Fitted("reduction", "{:.4g} is added to the denominator (an epsilon, or masked entries with "
        "logit 0 in place of -inf)", partial(_reduced, lambda n, d, t, x:
        t.mean((d.logsumexp(1).exp() + x).log() - n)),
        (0.0, 1e-6, 1e-3, 0.1, 1.5, 10.0, 1e3, 1e6), (0.01, math.inf), least=1e-8),
    Fitted("similarity", "logits clamped at {:.3g} or near it: no gradient beyond it",
        partial(_logits, lambda c, x: c.clamp(-x, x)),
        (0.003, 0.03, 0.1, 0.3, 0.6, 0.9, 1.5, 3, 5, 7, 9, 11, 15, 30, 100), least=0.0),
)  # fmt: skip


# --- Equal labels ---


def _mates(t: Terms) -> Tensor:
    """(T, M) candidates with the anchor's label."""
    labels = torch.cat([t.probe.labels, t.probe.labels, -1 - torch.arange(len(t.probe.queue))])
    return t.candidates & (labels == labels[t.anchors][:, None])


def _each(t: Terms, weight: Callable[[Tensor], Tensor], *, split: bool = False,
          own: bool = False) -> Terms:  # fmt: skip
    """One term per (anchor, positive) pair; split: other positives leave the softmax.

    weight: of the number of an anchor's positives, one entry per pair.
    """
    positives = _mates(t) | t.itself if own else _mates(t)
    index, positive = positives.nonzero().T
    candidates = t.candidates[index]
    if split:
        candidates = (candidates & ~positives[index]).scatter(1, positive[:, None], True)
    weights = weight(positives.sum(1)[index].to(t.weight.dtype))
    return t.but(anchors=t.anchors[index], positive=positive, candidates=candidates,
                 weight=weights / len(t.anchors))  # fmt: skip


def _per_pair(t: Terms, split: bool) -> Terms:
    changed = _each(t, torch.ones_like, split=split)
    return changed.but(weight=changed.weight / changed.weight.sum())


def _inside(num: Tensor, den: Tensor, t: Terms, averaged: bool) -> Tensor:
    """Positives summed, or averaged, inside the logarithm."""
    mates = _mates(t)
    top = den.masked_fill(~mates, -torch.inf).logsumexp(1)
    return t.mean(den.logsumexp(1) - top + averaged * mates.sum(1).log())


LABELLED: list[tuple[bool, str, Callable[[Terms], Terms]]] = [
    (False, "SupCon", lambda t: _each(t, lambda n: 1 / n)),
    (False, "labelled pairs (pytorch-metric-learning)", lambda t: _per_pair(t, split=True)),
    (False, "labelled pairs, one softmax per anchor", lambda t: _per_pair(t, split=False)),
    (False, "labelled pairs, averaged per anchor", lambda t: _each(t, lambda n: 1 / n, split=True)),
    (False, "equal labels are no negatives",
        lambda t: t.but(candidates=t.candidates & (~_mates(t) | t.own))),
    (False, "SupCon with the positives summed inside the logarithm (MIL-NCE)",
        lambda t: t.but(reduce=partial(_inside, averaged=False))),
    (True, "labelled positives are divided by their number and the anchor: divide by the positives",
        lambda t: _each(t, lambda n: 2 / (n + 1))),
    (False, "SupCon with the mean inside the logarithm (L_in)",
        lambda t: t.but(reduce=partial(_inside, averaged=True))),
    (False, "labels change nothing: samples of one class are negatives of each other", lambda t: t),
    (True, "positives of an anchor are summed, not averaged: divide by their number",
        lambda t: _each(t, torch.ones_like)),
    (True, "the anchor itself is among its positives: take the diagonal out of the mask",
        lambda t: _each(t, lambda n: 1 / n, own=True)),
]  # fmt: skip


# --- The search ---

UNLIKELY = {"rows", "similarity", "positive"}
"""Parts that are not searched in pairs: they are seldom wrong together."""

LEAST_LOSS = 1e-3
"""Tolerances are relative down to this loss; every form gives nearly 0 where logits are huge."""


@dataclass(frozen=True, slots=True)
class Match:
    """A form and the departures that explain every value."""

    form: Form
    changes: tuple[Departure, ...] = ()

    def but(self, change: Departure) -> "Match":
        """With one more departure."""
        return Match(self.form, (*self.changes, change))

    def terms(self, probe: Probe, process: int, tau: float) -> Terms:
        """The form's terms, changed."""
        terms = self.form.terms(probe, process, tau)
        for one in self.changes:
            terms = one.change(terms)
        return terms


@dataclass(slots=True)
class Search:
    """Looks for the form and departures whose values are the measured ones."""

    tau: float
    measured: Sequence[Measured]
    tolerance: float
    _terms: dict[tuple[object, ...], Terms] = field(default_factory=dict)
    _cosines: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[int, int]]:
        """Every probe on every process, the last process first: rank 0 hides wrong offsets."""
        world = self.measured[0].probe.world
        return [(k, r) for k in range(len(self.measured)) for r in reversed(range(world))]

    def value(self, match: Match, k: int, process: int) -> float:
        """The loss that `match` gives for probe k."""
        terms = self._changed(match, k, process)
        found = self._cosines_of(terms, k)
        return float(terms.value(found, found))

    def _cosines_of(self, terms: Terms, k: int) -> Tensor:
        """(M, M), or another kernel, kept for all terms with the same rows."""
        place = (terms.rows, terms.kernel, k)
        if place not in self._cosines:
            rows = terms.rows(terms.probe.rows, terms.probe)
            self._cosines[place] = terms.kernel(rows, rows)
        return self._cosines[place]

    def _changed(self, match: Match, k: int, process: int) -> Terms:
        """The terms on probe k; those of at most one departure are kept, pairs build on them."""
        key = (match.form, match.changes, k, process)
        if key in self._terms:
            return self._terms[key]
        if match.changes:
            first = self._changed(Match(match.form, match.changes[:-1]), k, process)
            terms = match.changes[-1].change(first)
        else:
            terms = match.form.terms(self.measured[k].probe, process, self.tau)
        if len(match.changes) < 2:
            self._terms[key] = terms
        return terms

    def close(self, value: float, k: int, process: int) -> bool:
        """Whether a value is the measured one, up to rounding."""
        told = self.measured[k].values[process]
        return abs(value - told) <= self.tolerance * max(LEAST_LOSS, abs(told))

    def explains(self, match: Match) -> bool:
        """Whether `match` gives every measured value."""
        return all(self.close(self.value(match, k, r), k, r) for k, r in self.points)

    def best(self, known: Sequence[Form], dim: int) -> list[Match]:
        """The matches with the fewest departures; more than one if they cannot be told apart."""
        if exact := self.exact(known):
            return exact
        world = self.measured[0].probe.world
        options = {form: departures(form, self.tau, dim, world) for form in known}
        for form in known:
            matches = [Match(form, (one,)) for one in options[form]]
            if form.pairwise:  # the bias must be found with every departure
                knobs = ("scale", "factor", "reduction")
                fits = (self.fitted(m, BIAS) for m in matches
                        if m.changes[0].part in knobs and not m.changes[0].half)  # fmt: skip
                singles = list(islice(filter(None, fits), 1))
            else:
                singles = [one for one in matches if self.explains(one)]
            if singles:
                return singles
        plain = [form for form in known if not form.pairwise]
        for form in plain:
            for change in FITTED:
                if form.has(change.trait, world) and (found := self.fitted(Match(form), change)):
                    return [found]
        for form in plain:
            rare = form.negatives == "all" and len(form.sides) == 1
            if not rare and (pairs := list(islice(self._pairs(form, options[form]), 4))):
                return pairs
        return []

    def exact(self, known: Sequence[Form]) -> list[Match]:
        """The first form that has the values without a departure; of a sigmoid loss the bias."""
        for form in known:
            found = self.fitted(Match(form), BIAS) if form.pairwise else Match(form)
            if found and (form.pairwise or self.explains(found)):
                return [found]
        return []

    def _pairs(self, form: Form, options: list[Departure]) -> Iterator[Match]:
        """Two departures; one of the finished loss alone needs no new evaluation."""
        outer = [one for one in options if one.outer]
        inner = [one for one in options if not one.outer and not one.half]
        (k, process), (k2, process2) = self.points[0], self.points[-1]
        probe = self.measured[k].probe
        factors = [Match(form, (one,)) for one in outer if one.part == "factor"]
        yield from filter(None, (self.fitted(one, FACTOR) for one in factors))
        told, told2 = self.measured[k].values[process], self.measured[k2].values[process2]
        for i, one in enumerate(inner):
            single = Match(form, (one,))
            value, value2 = self.value(single, k, process), self.value(single, k2, process2)
            linear = [SMOOTHING]
            if value2 and math.isclose(told * value2, told2 * value, rel_tol=10 * self.tolerance):
                linear.append(FACTOR)
            if self.close(value - value2 + told2, k, process):
                linear.append(OFFSET)
            fits = (self.fitted(single, change) for change in linear if change.part != one.part)
            yield from filter(None, fits)
            at = torch.tensor(value, dtype=torch.float64)
            likely = [
                two
                for two in outer
                if two.outer and self.close(float(two.outer(at, probe)), k, process)
            ]
            found = self._cosines_of(terms := self._changed(single, k, process), k)
            logits = terms.logits(found, found)
            for two in inner[i + 1 :]:
                if {one.part, two.part} <= UNLIKELY:
                    continue
                if two.part == "reduction" and terms.other is None:  # the logits stay
                    changed = two.change(terms)
                    value = float(changed.reduce(*logits, changed))
                    if not self.close(value, k, process):
                        continue
                likely.append(two)
            for two in likely:
                alike = one.part == two.part != "candidates"
                if not alike and self.explains(single.but(two)):
                    yield single.but(two)

    def fitted(self, match: Match, change: Fitted) -> Match | None:
        """`match` with one number fitted at one point, if it explains all others.

        Where the loss has its minimum in that number, two roots are too close to be told apart:
        another point has it elsewhere.
        """
        for k, r in self.points[:: max(1, len(self.measured) - 1)]:
            told = self.measured[k].values[r]
            for x in change.roots(lambda x: self._at(match, change, x, k, r) - told):  # noqa: B023
                found = match.but(change.at(x))
                if abs(x - change.neutral) > change.least and self.explains(found):
                    return found
            if match.changes:
                break
        return None

    def _at(self, match: Match, change: Fitted, x: float, k: int, process: int) -> float:
        return self.value(match.but(change.at(x)), k, process)
