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

    @property
    def step(self) -> Tensor:
        """(T,) 1 for anchors of z1, -1 for those of z2."""
        return torch.where(self.anchors < self.total, 1, -1)

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

    def interleaved(self) -> Tensor:
        """(2N,) the order z1[0], z2[0], z1[1], ..."""
        return torch.arange(2 * self.total).view(2, -1).T.flatten()


# --- Forms: which terms there are ---


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Form:
    """Which rows are anchors and which are candidates.

    Args:
        kind: its name in a report.
        sides: the views whose rows are anchors, 0 and 1.
        negatives: "all" rows of both views, the "other" view, "own" process's, or "none".
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
    half: bool = False


def scales(tau: float, dim: int) -> dict[str, float]:
    """Factors of the cosines that are not 1 / tau."""
    found = {
        "temperature multiplied: the logits are multiplied by tau, divide by tau": tau,
        "temperature absent: tau is never used (the loss has tau = 1)": 1.0,
        "temperature squared: the logits are divided by tau twice (or by tau ** 2)": tau**-2,
        f"temperature doubled: the loss has {2 * tau:g} (does it halve the cosines?)": 0.5 / tau,
        f"temperature halved: the loss has {tau / 2:g} (squared distances of unit rows in place "
        "of cosines?)": 2 / tau,
        "square root of the temperature: divide by tau itself": tau**-0.5,
        "logit scale not exponentiated: the logits are multiplied by log(1 / tau), use "
        "logit_scale.exp()": -math.log(tau),
        "logit scale has the wrong sign: the logits are multiplied by log(tau)": math.log(tau),
        "logit scale exponentiated twice: the logits are multiplied by exp(1 / tau)":
            math.exp(min(1 / tau, 700.0)),
        "temperature exponentiated: the logits are multiplied by exp(tau)": math.exp(tau),
        "temperature exponentiated: the logits are divided by exp(tau)": math.exp(-tau),
        "logit scale clamped at log(100): clamp the logarithm, or the scale at 100":
            min(math.log(100), 1 / tau),
        "logit scale clamped at 100": min(100.0, 1 / tau),
        "temperature replaced by sqrt(d): the logits are divided by sqrt(d)": dim**-0.5,
        "temperature times sqrt(d): the logits are divided by sqrt(d) too": dim**-0.5 / tau,
    }  # fmt: skip
    return {text: x for text, x in found.items() if x and not math.isclose(x, 1 / tau)}


LOGITS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "sign of the similarity reversed: positives are pushed apart (distances in place of cosines?)":
        lambda c, s: -c * s,
    "absolute value of the cosine: opposite rows count as equal": lambda c, s: c.abs() * s,
    "cosine clipped at 0: negative cosines have no gradient": lambda c, s: c.relu() * s,
    "cosine squared": lambda c, s: c.square() * s,
    "angle in place of the cosine": lambda c, s: -c.clamp(-1, 1).arccos() * s,
    "exponential twice: the cross-entropy is given exp(cosine / tau), give it cosine / tau":
        lambda c, s: (c * s).exp(),
    "exponential before the temperature: the logits are exp(cosine) / tau": lambda c, s: c.exp() * s,
    "sigmoid of the logits before the softmax": lambda c, s: (c * s).sigmoid(),
    "tanh of the logits before the softmax": lambda c, s: (c * s).tanh(),
    "logarithm of the exponential missing or doubled: the logits are log(1 + exp(cosine / tau))":
        lambda c, s: softplus(c * s),
    "logits shifted: the cosine is mapped to (1 + cosine) / 2": lambda c, s: (1 + c) / 2 * s,
}  # fmt: skip

KERNELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "distance in place of the cosine: logits are -|a - b| / tau": lambda a, b: -torch.cdist(a, b),
    "L1 distance in place of the cosine": lambda a, b: -torch.cdist(a, b, p=1),
    "squared distance in place of the cosine: logits are -|a - b|^2 / tau (temperature halved)":
        lambda a, b: -(a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T),
    "mean squared difference in place of the cosine":
        lambda a, b: -(a[:, None] - b).square().mean(2),
    "cosine averaged over the features: the mean of products in place of their sum":
        lambda a, b: a @ b.T / a.shape[1],
}  # fmt: skip

ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normalised over the batch: use normalize(z, dim=1), each row on its own":
        lambda z: normalize(z, dim=0),
    "normalised as a whole: the matrix is divided by one norm, each row needs its own":
        lambda z: z / z.norm(),
    "rows divided by their sum of absolute values: normalise with p=2":
        lambda z: normalize(z, p=1, dim=1),
    "softmax of the embeddings before the similarity": lambda z: z.softmax(1),
    "softmax of the embeddings before they are normalised": lambda z: normalize(z.softmax(1), dim=1),
    "relu of the embeddings before they are normalised": lambda z: normalize(z.relu(), dim=1),
    "features centred over the batch": lambda z: normalize(z - z.mean(0), dim=1),
    "features standardised over the batch": lambda z: (z - z.mean(0)) / z.std(0),
    "features standardised over the batch before rows are normalised":
        lambda z: normalize((z - z.mean(0)) / z.std(0), dim=1),
    "features standardised over the batch (batch norm)":
        lambda z: batch_norm(z, None, None, training=True),
    "features standardised over the batch (batch norm) before rows are normalised":
        lambda z: normalize(batch_norm(z, None, None, training=True), dim=1),
    "layer norm in place of unit length: cosines are multiplied by d":
        lambda z: layer_norm(z, z.shape[1:]),
    "rows centred before they are normalised":
        lambda z: normalize(z - z.mean(1, keepdim=True), dim=1),
    "rows divided by their largest absolute value: normalise with p=2":
        lambda z: z / z.abs().amax(1, keepdim=True),
    "rows divided by their squared length": lambda z: z / z.square().sum(1, keepdim=True),
}  # fmt: skip


def row_changes(form: Form) -> Iterator[tuple[str, Callable[[Tensor, Probe], Tensor]]]:
    """What is done to the rows: of each view, of both together, of all but the queue."""

    def views(rows: Tensor, probe: Probe, change: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([change(part) for part in rows.split(probe.sizes) if len(part)])

    def together(rows: Tensor, probe: Probe, change: Callable[[Tensor], Tensor]) -> Tensor:
        both = 2 * len(probe.z1)
        return torch.cat([change(rows[:both]), normalize(rows[both:], dim=1)])

    def not_queue(rows: Tensor, probe: Probe, change: Callable[[Tensor], Tensor]) -> Tensor:
        z1, z2, queue = rows.split(probe.sizes)
        return torch.cat([change(z1), change(z2), queue])

    def twice(rows: Tensor, probe: Probe, first: int) -> Tensor:
        parts = normalize(rows, dim=1).split(probe.sizes)
        return torch.cat([parts[first], parts[first], parts[2]])

    def joined(rows: Tensor, probe: Probe, dim: int) -> Tensor:
        z1, z2, queue = rows.split(probe.sizes)
        return torch.cat([*normalize(torch.cat([z1, z2], 1), dim=dim).chunk(2, 1), queue])

    for i in (0, 1):
        yield (
            f"one view twice: z{2 - i} is never used, z{i + 1} is contrasted with itself",
            partial(twice, first=i),
        )
    yield "views are joined along the features before they are normalised", partial(joined, dim=1)
    for text, change in ROWS.items():
        yield text, partial(views, change=change)
        if "batch" in text or "whole" in text:
            yield text, partial(together, change=change)
        if form.queue != "none":
            yield text, partial(not_queue, change=change)


POSITIVES: list[tuple[str, str, Callable[[Terms], Tensor]]] = [
    ("", "the anchor itself is its positive", lambda t: t.anchors),
    ("", "labels shifted by one, the next sample's key", lambda t: t.key(t.sample + 1)),
    ("", "labels shifted by one, the previous sample's key", lambda t: t.key(t.sample - 1)),
    ("", "always key 0 (labels are zeros)", lambda t: t.key(0 * t.sample)),
    ("", "always the last key", lambda t: t.key(0 * t.sample - 1)),
    ("", "views misaligned by one sample", lambda t: t.key(t.sample + t.step)),
    ("", "views misaligned by one sample, the other way", lambda t: t.key(t.sample - t.step)),
    ("", "keys in reversed order", lambda t: t.key(-1 - t.sample)),
    ("batch", "labels shifted by half the batch", lambda t: t.key(t.sample + t.total // 2)),
    ("batch", "every key is given twice: labels are i // 2", lambda t: t.key(t.sample // 2)),
    ("queue", "label i in place of 0: the positive is the first column of every row", lambda t:
        torch.where(t.sample == 0, t.positive, 2 * t.total - 1 + t.sample)),
    ("queue", "the first negative (label 0 where the positive is not the first column)",
        lambda t: torch.full_like(t.anchors, 2 * t.total)),
    ("queue", "the last negative", lambda t: torch.full_like(t.anchors, sum(t.probe.sizes) - 1)),
    ("queue", "label 1 in place of 0: the second negative, or the first",
        lambda t: torch.full_like(t.anchors, 2 * t.total + 1)),
    ("queue", "negative i of the queue", lambda t: 2 * t.total + t.sample),
    ("all", "views are interleaved but labels are for views stacked as [z1; z2]",
        lambda t: t.ordered(t.interleaved(), lambda place: place + t.total)),
    ("all", "views are stacked as [z1; z2] but labels are for interleaved views, rows 2i and "
        "2i + 1 are taken for a pair", lambda t: t.anchors ^ 1),
    ("all", "a neighbouring row of the stack", lambda t: (t.anchors + 1) % (2 * t.total)),
    ("all", "a neighbouring row of the stack, the previous one",
        lambda t: (t.anchors - 1) % (2 * t.total)),
    ("all", "labels shifted by one in the stack [z1; z2]",
        lambda t: (t.anchors + t.total + 1) % (2 * t.total)),
    ("all", "labels shifted by one in the stack [z1; z2], the other way",
        lambda t: (t.anchors + t.total - 1) % (2 * t.total)),
    ("all", "next sample of the same view",
        lambda t: (t.sample + 1) % t.total + (t.anchors >= t.total) * t.total),
    ("all", "labels 0 ... n - 1 for both views: rows of z1 are their own positives (no offset n)",
        lambda t: t.sample),
    ("all", "labels n ... 2n - 1 for both views: rows of z2 are their own positives",
        lambda t: t.sample + t.total),
    ("all", "the rows of the stack in reversed order", lambda t: 2 * t.total - 1 - t.anchors),
    ("all", "always row 0 of the stack (labels are zeros)", lambda t: 0 * t.anchors),
    ("world", "local offset of the labels is missing: they point at the keys of rank 0, add "
        "rank * n", lambda t: t.key(t.local)),
    ("world", "labels are shifted by rank, add rank * n", lambda t: t.key(t.local + t.process)),
    ("world", "labels are shifted by 2 * rank * n, add rank * n",
        lambda t: t.key(t.local + 2 * t.process * t.probe.pairs)),
    ("world", "labels point at the last rank's keys", lambda t: t.key(t.local - t.probe.pairs)),
    ("world", "labels point at the next rank's keys", lambda t: t.key(t.sample + t.probe.pairs)),
    ("world", "labels point at the previous rank's keys",
        lambda t: t.key(t.sample - t.probe.pairs)),
    ("world", "ranks in reversed order",
        lambda t: t.key(t.local + (t.probe.world - 1 - t.process) * t.probe.pairs)),
    ("world queue", "order of the gathered rows: keys and negatives alternate by rank, labels "
        "count keys first", lambda t: torch.argsort(torch.where(
            t.probe.side == 0, 9 * t.probe.world, t.probe.rank * 2 + t.probe.side,
        ), stable=True)[t.sample]),
    ("world batch", "order of the gathered rows: each rank's [z1; z2] follow each other, positives "
        "are taken for all z1, then all z2",
        lambda t: t.ordered(t.by_rank(), lambda place: place + t.total)),
    ("world batch", "order of the gathered rows: all z1 come before all z2, positives are taken "
        "for [z1; z2] per rank", lambda t: t.anchors - t.anchors % (2 * t.probe.pairs)
        + (t.anchors + t.probe.pairs) % (2 * t.probe.pairs)),
    ("world batch", "order of the gathered rows: all z1 come before all z2, labels count within "
        "[z1; z2] of one rank", lambda t: (t.local + (t.anchors < t.total) * t.probe.pairs
        + t.process * 2 * t.probe.pairs) % (2 * t.total)),
    ("world batch", "order of the gathered rows: each rank's [z1; z2] follow each other, keys are "
        "counted as if all were of one view", lambda t: t.by_rank()[t.sample]),
    ("world batch", "order of the gathered rows: rows of all ranks are interleaved, labels count "
        "them rank by rank",
        lambda t: t.key(t.sample % t.probe.world * t.probe.pairs + t.sample // t.probe.world)),
    ("world batch", "order of the gathered rows: rows of all ranks are interleaved, labels count "
        "them in rank order", lambda t: t.key(t.local * t.probe.world + t.process)),
]  # fmt: skip


def with_positive(t: Terms, positive: Callable[[Terms], Tensor]) -> Terms:
    """Other positives; they are candidates."""
    index = positive(t)
    return t.but(positive=index, candidates=t.candidates.scatter(1, index[:, None], True))


def also_itself(t: Terms, masked: bool) -> Terms:
    """The mean of two positives, the anchor's and the anchor itself."""
    candidates = t.candidates if masked else t.candidates | t.itself
    first = t.but(positive=t.anchors, candidates=candidates)
    return first.but(other=t if masked else t.but(candidates=candidates))


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
TIMES_WORLD = "multiplied by world: the value is multiplied by the number of processes"

CANDIDATES: list[tuple[str, str, Callable[[Terms], Terms]]] = [
    ("", DECOUPLED, lambda t: t.but(candidates=t.candidates & ~t.own)),
    ("", "the last key is missing in the denominator", lambda t: without(t, -1)),
    ("", "the first key is missing in the denominator", lambda t: without(t, 0)),
    ("", "positive twice in the denominator: it is also counted among the negatives",
        lambda t: t.but(added=t.own * math.log(2))),
    ("", "negatives twice in the denominator", lambda t: t.but(added=~t.own * math.log(2))),
    ("", "negatives averaged in the denominator: sum them", averaged),
    ("", "positive masked with 0: its logit is 0, only the anchor's own may be masked",
        lambda t: t.but(fixed=t.own, fixed_logit=0.0)),
    ("", "positive with logit 0 in the denominator: it adds exp(0) = 1 (decoupled, but masked "
        "with 0 in place of -inf)",
        lambda t: t.but(reduce=partial(own_replaced, x=0.0))),
    ("all", "no self-mask: every anchor is its own negative, fill the diagonal of the logits with "
        "-inf", lambda t: t.but(candidates=t.candidates | t.itself)),
    ("all", "self-mask of 0: the anchor's own logit is 0 and adds exp(0) = 1, fill the diagonal "
        "with -inf (is it 1e-9 for 1e9, or a product with the mask?)",
        lambda t: t.but(candidates=t.candidates | t.itself, fixed=t.itself)),
    ("all", "self-mask on the positive: the positive is masked and the anchor itself is not",
        lambda t: t.but(candidates=(t.candidates | t.itself) & ~t.own)),
    ("all", "negatives of the anchor's own view only",
        lambda t: t.but(candidates=t.candidates & (t.same_view | t.own))),
    ("all", "negatives of the anchor's own view only, and the anchor itself",
        lambda t: t.but(candidates=t.candidates & (t.same_view | t.own) | t.itself)),
    ("all", "the anchor itself is a second positive (in the denominator too): take the diagonal "
        "out of the mask of positives", lambda t: also_itself(t, masked=False)),
    ("all", "the anchor itself is a second positive (masked in the denominator): take the diagonal "
        "out of the mask of positives", lambda t: also_itself(t, masked=True)),
    ("cross", "one view twice: rows are contrasted with their own view",
        lambda t: t.but(positive=t.anchors, candidates=t.same_view)),
    ("cross", "negatives of the anchor's own view only, and the anchor itself",
        lambda t: t.but(candidates=t.same_view | t.own)),
    ("cross", "own view added without a self-mask",
        lambda t: t.but(candidates=t.candidates | t.same_view)),
    ("queue", "negatives are compared with the keys, not with the queries",
        lambda t: t.but(asking=t.positive, shared=True)),
    ("queue", "queue never used", lambda t: t.but(candidates=t.candidates & (t.probe.side < 2))),
    ("world", "own rows twice among the gathered keys",
        lambda t: t.but(added=(t.probe.rank == t.process) * math.log(2))),
    ("world", "negatives of this rank only: gather the rows of all processes",
        lambda t: t.but(candidates=t.candidates
                        & (t.probe.rank == t.probe.rank[t.anchors][:, None]))),
    ("world all", "self-mask without the rank's offset: it masks a row of rank 0, not the anchor",
        masked_elsewhere),
]  # fmt: skip

PICKS: dict[str, Callable[[Tensor, Tensor, Terms], Tensor]] = {
    "positive summed over all keys: it must be the product of row i with row i (an einsum that "
    "sums too much?)": lambda num, den, t: den.masked_fill(~other_view(t), 0).sum(1),
    "positive averaged over all keys: no label picks it":
        lambda num, den, t: den.masked_fill(~other_view(t), 0).sum(1) / other_view(t).sum(1),
    "positives summed over the batch: the sum needs dim=1": lambda num, den, t: num.sum().expand_as(num),
    "positives averaged over the batch before the logarithm":
        lambda num, den, t: t.mean(num).expand_as(num),
    "positives are the keys with the largest logit (argmax in place of labels)":
        lambda num, den, t: den.masked_fill(~t.candidates, -torch.inf).amax(1),
    "positive and negative are exchanged: the smallest logit is the positive":
        lambda num, den, t: den.masked_fill(~t.candidates, torch.inf).amin(1),
}  # fmt: skip


def other_view(t: Terms) -> Tensor:
    """(T, M) rows of the batch in the view that the anchor is not of."""
    return (t.probe.side < 2) & ~t.same_view


# --- Reductions of T numerators and (T, M) denominators to a loss ---


def probability(num: Tensor, den: Tensor) -> Tensor:
    """(T,) of the positives."""
    return (num - den.logsumexp(1)).exp()


def average(den: Tensor, which: Tensor) -> Tensor:
    """(T,) the mean logit of some keys."""
    return den.masked_fill(~which, 0.0).sum(1) / which.sum(1)


def own_replaced(num: Tensor, den: Tensor, t: Terms, x: float) -> Tensor:
    """The positive has logit x in the denominator."""
    return mean(num, den.masked_fill(t.own, x), t)


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


REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor, Terms], Tensor], ...]] = {
    "-log of the mean: average the losses, not the probabilities":
        (lambda n, d, t: -t.mean(probability(n, d)).log(),),
    "no logarithm: the loss is the mean of -p": (
        lambda n, d, t: -t.mean(probability(n, d)), lambda n, d, t: 1 - t.mean(probability(n, d))),
    "no logarithm of the denominator: the sum of exponentials itself is subtracted":
        (lambda n, d, t: t.mean(d.exp().sum(1) - n),),
    "softmax twice: the cross-entropy is given probabilities, give it logits":
        (softmax_twice, partial(softmax_twice, masked=True)),
    "temperature after the softmax: probabilities are divided by tau, divide the cosines":
        (partial(softmax_twice, plain=True), partial(softmax_twice, masked=True, plain=True)),
    "one softmax over the whole matrix: each anchor needs its own":
        (lambda n, d, t: d.flatten().logsumexp(0) - t.mean(n),),
    "one fraction: sums over the batch are divided before the logarithm":
        (lambda n, d, t: d.flatten().logsumexp(0) - n.logsumexp(0),),
    "maximum subtracted in the denominator only: subtract it from all logits":
        (lambda n, d, t: t.mean(d.logsumexp(1) - d.detach().amax(1) - n),),
    "only the first anchor has a loss": (lambda n, d, t: d[0].logsumexp(0) - n[0],),
    "only the largest loss of the batch counts, in place of the mean":
        (lambda n, d, t: (d.logsumexp(1) - n).max(),),
    "only the largest logit is in the denominator: use logsumexp":
        (lambda n, d, t: t.mean(d.amax(1) - n),),
    "logits averaged in the denominator: no exponential, use logsumexp":
        (lambda n, d, t: t.mean(average(d, t.candidates) - n),
         lambda n, d, t: t.mean(average(d, t.candidates & ~t.own) - n)),
    "no denominator: positives are pulled and nothing is pushed": (lambda n, d, t: -t.mean(n),),
    "no positive: the denominator alone is the loss": (lambda n, d, t: t.mean(d.logsumexp(1)),),
    "no exponential: logits are divided by the sum of logits":
        (lambda n, d, t: -t.mean((n / d.masked_fill(~t.candidates, 0).sum(1)).log()),),
    "-log(1 - p): the positive is taken for a negative":
        (lambda n, d, t: -t.mean((-probability(n, d)).log1p()),),
    "the negatives are taken for positives: -log p is averaged over them":
        (lambda n, d, t: t.mean(d.logsumexp(1) - average(d, t.candidates & ~t.own)),),
    "no label: -log p is averaged over all keys, the positive is not picked":
        (lambda n, d, t: t.mean(d.logsumexp(1) - average(d, t.candidates)),),
    "softmax over the batch: it must run over the keys of an anchor (dim=1)":
        (lambda n, d, t: n.logsumexp(0) - t.mean(n),),
}  # fmt: skip

SIGMOID_REDUCTIONS: dict[str, tuple[Callable[[Tensor, Tensor, Terms], Tensor], ...]] = {
    "labels 0 in place of -1: negatives have no gradient": (lambda n, d, t:
        t.mean((t.candidates & ~t.own).sum(1) * math.log(2) + softplus(-n)),),
    "labels reversed: positives have -1 and negatives 1": (lambda n, d, t:
        t.mean(softplus(-d.masked_fill(~t.candidates | t.own, torch.inf)).sum(1) + softplus(n)),),
    "label 1 everywhere: negatives are pulled together too": (lambda n, d, t:
        t.mean(softplus(-d.masked_fill(~t.candidates, torch.inf)).sum(1)),),
}  # fmt: skip

FACTORS: dict[str, Callable[[Probe], float]] = {
    "sum over the anchors in place of the mean: the gradient grows with the batch":
        lambda p: p.pairs,
    "sum over both views' anchors in place of the mean: the gradient grows with the batch":
        lambda p: 2 * p.pairs,
    "mean taken twice: the loss is divided by the number of pairs once more":
        lambda p: 1 / p.pairs,
    "mean taken twice: the loss is divided by the number of rows once more":
        lambda p: 0.5 / p.pairs,
    "sum divided by the number of negatives, not of anchors": lambda p: p.pairs / (p.pairs - 1),
    "mean taken twice: the loss is divided by the number of negatives once more":
        lambda p: 1 / (p.pairs - 1),
    "mean taken twice: the loss is divided by 2n - 1 once more": lambda p: 1 / (2 * p.pairs - 1),
    "mean taken twice: the loss is divided by the 2n - 2 negatives once more":
        lambda p: 0.5 / (p.pairs - 1),
    "divided by log(n), the loss of chance": lambda p: 1 / math.log(p.pairs),
    "mean over 2n - 1 in place of 2n anchors": lambda p: 2 * p.pairs / (2 * p.pairs - 1),
    "divided by the square of the batch": lambda p: 1 / p.pairs**2,
    "divided by the number of features in place of anchors": lambda p: p.pairs / p.z1.shape[1],
    "mean taken over the features too: the loss is divided by d": lambda p: 1 / p.z1.shape[1],
    "sum multiplied by the number of rows": lambda p: 4 * p.pairs**2,
    "sign of the loss reversed: training would push positives apart": lambda p: -1.0,
}  # fmt: skip

WORLD_FACTORS: dict[str, Callable[[Probe], float]] = {
    TIMES_WORLD: lambda p: p.world,  # right where the gradient is taken once
    "divided by world: DDP divides by the number of processes again": lambda p: 1 / p.world,
    "sum over the anchors of all processes in place of the mean": lambda p: len(p.z1),
    "sum over the rows of all processes in place of the mean": lambda p: 2 * len(p.z1),
}

OUTERS: dict[str, Callable[[Tensor, Probe], Tensor]] = {
    "the loss is squared: its gradient vanishes with it": lambda v, p: v.square(),
    "exponential of the loss: return the loss itself": lambda v, p: v.exp(),
    "exponential of minus the loss: return the loss itself": lambda v, p: (-v).exp(),
    "logarithm twice: the loss is the logarithm of the loss": lambda v, p: v.log(),
    "square root of the loss": lambda v, p: v.sqrt(),
}

AVERAGED = "denominator averaged over {} keys: a constant is subtracted, the gradient not changed"
OFFSETS: dict[str, Callable[[Probe], float]] = {
    AVERAGED.format("n"): lambda p: -math.log(len(p.z1)),
    AVERAGED.format("n - 1"): lambda p: -math.log(len(p.z1) - 1),
    AVERAGED.format("2n"): lambda p: -math.log(2 * len(p.z1)),
    AVERAGED.format("2n - 1"): lambda p: -math.log(2 * len(p.z1) - 1),
    AVERAGED.format("2n - 2"): lambda p: -math.log(2 * len(p.z1) - 2),
}

PLACES = {
    "in the numerator only": ({"positive"}, False), "in the denominator only": ({""}, False),
    "on the positives only": ({"positive"}, True), "on the negatives only": ({""}, True),
}  # fmt: skip


def departures(form: Form, tau: float, dim: int, world: int) -> list[Departure]:
    """All of a form: of the whole loss first, then of one half of it."""

    def turned(part: str, text: str, mistake: bool = True, **knobs: Any) -> Departure:
        change = partial(Terms.but, **knobs)
        return Departure(part=part, text=text, change=change, mistake=mistake)

    def outer(part: str, text: str, do: Callable[[Any, Probe], Any]) -> Departure:
        mistake = part != "offset" and text != TIMES_WORLD
        return replace(turned(part, text, mistake, outer=do), outer=do)

    logits = [("scale", "scale", text, x) for text, x in scales(tau, dim).items()]
    logits += [("similarity", "logit", text, f) for text, f in LOGITS.items()]  # type: ignore[misc]
    whole = [turned(part, text, **{knob: x, f"positive_{knob}": x})
             for part, knob, text, x in logits]  # fmt: skip
    whole += [turned("similarity", text, kernel=f) for text, f in KERNELS.items()]
    for when, text, positive in POSITIVES:
        if form.has(when, world):
            text = f"wrong positive (labels or mask): {text}"
            change = partial(with_positive, positive=positive)
            whole.append(Departure(part="positive", text=text, change=change))
    whole += [
        Departure(part="candidates", text=text, change=change, mistake=text != DECOUPLED)
        for when, text, change in CANDIDATES if form.has(when, world)
    ]  # fmt: skip
    reductions = SIGMOID_REDUCTIONS if form.pairwise else REDUCTIONS
    whole += [turned("reduction", text, reduce=f) for text, fs in reductions.items() for f in fs]
    whole += [turned("pick", text, pick=f, shared=shared)
              for text, f in PICKS.items() for shared in (False, True)]  # fmt: skip
    halves = []
    for one in whole:
        if len(form.sides) == 2:
            halves += [_of_half(one, side) for side in (0, 1)]
        elif not form.pairwise:
            halves.append(_of_half(one, None))
    for part, knob, text, x in logits:
        head, _, fix = text.partition(":")
        for where, (knobs, shared) in PLACES.items():
            text = f"{head.replace('absent', 'missing')} {where}:{fix}".rstrip(":")
            turn = turned(part, text, shared=shared, **{f"{k}_{knob}".strip("_"): x for k in knobs})
            halves.append(replace(turn, half=True))
    whole += [turned("rows", text, rows=change) for text, change in row_changes(form)]
    factors = FACTORS | (WORLD_FACTORS if world > 1 else {})
    whole += [outer("factor", text, partial(_times, f=f)) for text, f in factors.items()]
    whole += [outer("outer", text, f) for text, f in OUTERS.items()]
    whole += [outer("offset", text, partial(_plus, f=f)) for text, f in OFFSETS.items()]
    return whole + halves


def _times(value: Any, probe: Probe, f: Callable[[Probe], float]) -> Any:
    return value * f(probe)


def _plus(value: Any, probe: Probe, f: Callable[[Probe], float]) -> Any:
    return value + f(probe)


def _of_half(one: Departure, side: int | None) -> Departure:
    """The same departure for one view's anchors; for one of two equal halves if there is one."""

    def change(t: Terms) -> Terms:
        if side is None:
            return one.change(t).but(other=t)
        return one.change(t.of_view(side)).but(other=t.of_view(1 - side))

    text = "in one of two halves of the loss" if side is None else f"anchors of z{side + 1} only"
    return replace(one, text=f"{one.text} ({text})", change=change, half=True)


# --- Departures with a number, which is fitted at one probe and must explain all others ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A departure with a number in it: its text has a place for the number, or for 1 / it."""

    part: str
    text: str
    change: Callable[[Terms, float], Terms]
    grid: Sequence[float] = (0.0, 1.0)  # two points if the loss is linear in the number
    mistake: bool = True
    neutral: float = 0.0  # the number that changes nothing
    signed: bool = False  # below 0 it is a mistake
    least: float = 1e-4  # nearer to neutral is rounding
    trait: str = ""

    def at(self, x: float) -> Departure:
        """The departure with this number."""
        wrong = self.signed and x < 0
        return Departure(
            part=self.part, text=wrong * "wrong sign: " + self.text.format(x, 1 / x if x else 0),
            change=lambda t: self.change(t, x), mistake=self.mistake or wrong,
        )  # fmt: skip

    def roots(self, error: Callable[[float], float]) -> Iterator[float]:
        """By a line through two points where it is one, else by bisection on the grid."""
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
            for _ in range(48):
                middle = (low + high) / 2
                if (error(middle) < 0) == (at_low < 0):
                    low = middle
                else:
                    high = middle
            yield (low + high) / 2


def _smoothed(t: Terms, x: float) -> Terms:
    """(1 - x) InfoNCE + x times the mean of -log p over all candidates."""
    return t.but(reduce=lambda num, den, t: t.mean(
        den.logsumexp(1) - (1 - x) * num - x * average(den, t.candidates)))  # fmt: skip


def _with_epsilon(t: Terms, x: float) -> Terms:
    return t.but(reduce=lambda num, den, t: -t.mean((probability(num, den) + x).log()))


def _with_constant(t: Terms, x: float) -> Terms:
    return t.but(reduce=lambda num, den, t: t.mean((den.logsumexp(1).exp() + x).log() - num))


def _clamped(t: Terms, x: float, low: float, high: float) -> Terms:
    def logit(c: Tensor, s: float) -> Tensor:
        return (c * s).clamp(low * x, high * x)

    return t.but(logit=logit, positive_logit=logit)


WIDE = (-1e10, -1e5, -1e3, -300, -100, -30, -10, -3, 0, 3, 10, 30, 100, 300)

FACTOR = Fitted(
    part="factor", text="times {:.6g}: a constant factor, right only if meant (it acts like a "
    "learning rate; two directions added up give 2, tau / base_temperature is another)",
    change=lambda t, x: t.but(outer=lambda v, p, f=t.outer: x * f(v, p)),
    mistake=False, neutral=1.0, signed=True,
)  # fmt: skip
OFFSET = Fitted(
    part="offset",
    text="offset of {:.6g}: a constant is added; the gradient is not changed",
    change=lambda t, x: t.but(outer=lambda v, p, f=t.outer: f(v, p) + x),
    mistake=False,
)
SMOOTHING = Fitted(
    part="reduction", text="label smoothing {:.3g}: right only if meant", change=_smoothed,
    mistake=False,
)  # fmt: skip
BIAS = Fitted(
    part="bias", text="a bias of {:.3f} (a learned one is usual; without, negatives outweigh "
    "positives at first)", change=lambda t, x: t.but(
        logit=lambda c, s: c * s + x, positive_logit=lambda c, s: c * s + x),
    grid=range(-40, 21), mistake=False, least=-1.0,
)  # fmt: skip
FITTED = (
    FACTOR, OFFSET, SMOOTHING,
    Fitted(
        part="similarity", text="margin of {:.3g} on the positive's cosine: right only if meant",
        change=lambda t, x: t.but(margin=x, shared=True),
        grid=(-1.5, -0.7, -0.2, -0.05, 0.05, 0.2, 0.7, 1.5), mistake=False, signed=True,
    ),
    Fitted(
        part="scale", text="another temperature: the loss has tau = {1:.4g} (logits times {0:.4g})",
        change=lambda t, x: t.but(scale=x, positive_scale=x),
        grid=[sign * 10 ** (e / 8) for sign in (-1, 1) for e in range(-24 * sign, 25 * sign, sign)],
    ),
    Fitted(
        part="candidates", text="self-mask of {:.4g}: the anchor's own logit is finite, fill the "
        "diagonal with -inf", change=lambda t, x: t.but(
            candidates=t.candidates | t.itself, fixed=t.itself, fixed_logit=x),
        grid=WIDE, least=-1.0, trait="all",
    ),
    Fitted(
        part="candidates", text="positive masked: its logit is {:.4g} for all anchors (mask the "
        "anchor itself, and only where it is among the keys)",
        change=lambda t, x: t.but(fixed=t.own, fixed_logit=x), grid=WIDE, least=-1.0,
    ),
    Fitted(
        part="reduction", text="epsilon of {:.2g} inside the logarithm: it caps the loss of hard "
        "positives, use log_softmax", change=_with_epsilon,
        grid=(0.0, 1e-7, 1e-5, 1e-3, 0.1, 1.0), least=1e-8,
    ),
    Fitted(
        part="reduction", text="{:.4g} is added to the denominator (an epsilon, or masked entries "
        "with logit 0 in place of -inf)", change=_with_constant,
        grid=(0.0, 1e-6, 1e-3, 0.1, 1.5, 10.0, 1e3, 1e6), least=1e-8,
    ),
    *(Fitted(
        part="similarity", text=f"logits clamped {text} {{:.4g}}: beyond it they have no gradient",
        change=partial(_clamped, low=low, high=high), grid=(0.003, 0.03, 0.1, 0.3, 0.6, 0.9, 1.5,
        3.0, 5.0, 7.0, 9.0, 11.0, 15.0, 30.0, 100.0), least=0.0,
    ) for text, low, high in (("to plus and minus", -1, 1), ("at", -torch.inf, 1))),
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
        probe = self.measured[k].probe
        terms = self._changed(match, k, process)
        place = (terms.rows, terms.kernel, k)
        if place not in self._cosines:
            rows = terms.rows(probe.rows, probe)
            self._cosines[place] = terms.kernel(rows, rows)
        found = self._cosines[place]
        return float(terms.value(found, found))

    def _changed(self, match: Match, k: int, process: int) -> Terms:
        """The terms on probe k; those of at most one departure are kept, pairs build on them."""
        if len(match.changes) > 1:
            first = self._changed(Match(match.form, match.changes[:-1]), k, process)
            return match.changes[-1].change(first)
        key = (match.form, match.changes, k, process)
        if key not in self._terms:
            self._terms[key] = match.terms(self.measured[k].probe, process, self.tau)
        return self._terms[key]

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
            if form.negatives != "all" or len(form.sides) == 2:
                if pairs := list(islice(self._pairs(form, options[form]), 4)):
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
        """Two departures; one of the finished loss needs no new evaluation."""
        outer = [one for one in options if one.outer]
        inner = [one for one in options if not one.outer and not one.half]
        k, process = self.points[0]
        probe = self.measured[k].probe
        for i, one in enumerate(inner):
            single = Match(form, (one,))
            for change in (FACTOR, OFFSET, SMOOTHING):
                if change.part != one.part and (found := self.fitted(single, change)):
                    yield found
            value = torch.tensor(self.value(single, k, process), dtype=torch.float64)
            others = [
                o for o in outer if o.outer and self.close(float(o.outer(value, probe)), k, process)
            ]
            for other in (*others, *inner[i + 1 :]):
                alike = one.part == other.part != "candidates"
                if not alike and self.explains(single.but(other)):
                    yield single.but(other)

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
