"""What a loss may do other than InfoNCE: one change each, with its name and how to fix it.

The mistakes are those of public code: the threads are listed in docs/check-loss.md.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenbatch.monitor.check_forms import Form, Probe, Terms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Departure:
    """One change of a form: `part` is the knob, a knob is turned once."""

    part: str
    text: str
    change: Callable[[Terms], Terms]
    mistake: bool = True
    factor: Callable[[Probe], float] | None = None  # if the change only multiplies the loss


def turned(**knobs: Any) -> Callable[[Terms], Terms]:
    """A change that sets knobs to fixed values."""
    return lambda t: t.but(**knobs)


def scales(tau: float, dim: int) -> Iterator[Departure]:
    """Temperatures that are not 1 / tau."""
    top = math.log(100)
    for text, scale in (
        ("temperature multiplied: the logits are multiplied by tau, divide by tau", tau),
        ("temperature absent: tau is never used (the loss has tau = 1)", 1.0),
        ("temperature squared: the logits are divided by tau twice (or by tau ** 2)", tau**-2),
        (f"temperature doubled: the loss has {2 * tau:g} (does it halve the cosines?)", 0.5 / tau),
        (f"temperature halved: the loss has {tau / 2:g} (squared distances of unit rows in "
         "place of cosines?)", 2 / tau),
        ("square root of the temperature: divide by tau itself", tau**-0.5),
        ("logit scale not exponentiated: the logits are multiplied by log(1 / tau), use "
         "logit_scale.exp()", -math.log(tau)),
        ("logit scale has the wrong sign: the logits are multiplied by log(tau)", math.log(tau)),
        ("logit scale inverted: the logits are multiplied by exp(-log(1 / tau) ** 2)", 0.0),
        ("logit scale exponentiated twice: the logits are multiplied by exp(1 / tau)",
         math.exp(min(1 / tau, 700.0))),
        ("temperature exponentiated: the logits are multiplied by exp(tau)", math.exp(tau)),
        ("temperature exponentiated: the logits are divided by exp(tau)", math.exp(-tau)),
        ("logit scale clamped at log(100): clamp the logarithm, or the scale at 100",
         min(top, 1 / tau)),
        ("logit scale clamped at 100", min(100.0, 1 / tau)),
        ("temperature replaced by sqrt(d): the logits are divided by sqrt(d)", dim**-0.5),
        ("temperature times sqrt(d): the logits are divided by sqrt(d) too", dim**-0.5 / tau),
    ):  # fmt: skip
        if scale and not math.isclose(scale, 1 / tau):
            yield scaled(text, scale)
    for text, num, den, shared in (
        ("temperature missing in the numerator: only the denominator is divided by tau",
         1.0, 1 / tau, False),
        ("temperature missing in the denominator: only the numerator is divided by tau",
         1 / tau, 1.0, False),
        ("temperature missing on the positives: only negatives are divided by tau",
         1.0, 1 / tau, True),
        ("temperature missing on the negatives: only positives are divided by tau",
         1 / tau, 1.0, True),
    ):  # fmt: skip
        yield scaled(text, den, num, shared)


def scaled(text: str, scale: float, num: float | None = None, shared: bool = False) -> Departure:
    """Another factor of the cosines."""
    num = scale if num is None else num
    return Departure(
        part="scale", text=text,
        change=turned(scale=scale, positive_scale=num, shared=shared),
    )  # fmt: skip


def similarities() -> Iterator[Departure]:
    """What stands in place of the cosine."""
    kinds: dict[str, Callable[[Tensor, float], Tensor]] = {
        "sign of the similarity reversed: positives are pushed apart (distances in place of "
        "cosines?)": lambda cos, s: -cos * s,
        "absolute value of the cosine: opposite rows count as equal": lambda cos, s: cos.abs() * s,
        "cosine clipped at 0: negative cosines have no gradient": lambda cos, s: cos.relu() * s,
        "cosine squared": lambda cos, s: cos.square() * s,
        "distance in place of the cosine: logits are -|a - b| / tau": lambda cos, s: (
            -(2 - 2 * cos).clamp(min=1e-30).sqrt() * s
        ),
        "angle in place of the cosine": lambda cos, s: -cos.clamp(-1, 1).arccos() * s,
        "exponential twice: the cross-entropy is given exp(cosine / tau), give it cosine / tau": (
            lambda cos, s: (cos * s).exp()
        ),
        "sigmoid of the logits before the softmax": lambda cos, s: (cos * s).sigmoid(),
    }
    for text, similarity in kinds.items():
        yield Departure(
            part="similarity", text=text,
            change=turned(similarity=similarity),
        )  # fmt: skip


def row_changes(form: Form) -> Iterator[Departure]:
    """What is done to the rows in place of normalising each of them."""

    def views(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
        def rows(rows: Tensor, probe: Probe) -> Tensor:
            parts = torch.split(rows, [len(probe.z1), len(probe.z2), len(probe.queue)])
            return torch.cat([change(part) if len(part) else part for part in parts])

        return rows

    def together(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
        def rows(rows: Tensor, probe: Probe) -> Tensor:
            both = 2 * len(probe.z1)
            return torch.cat([change(rows[:both]), normalize(rows[both:], dim=1)])

        return rows

    def keys_alone(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Probe], Tensor]:
        """Queue rows are left as they are."""

        def rows(rows: Tensor, probe: Probe) -> Tensor:
            n = len(probe.z1)
            return torch.cat([change(rows[:n]), change(rows[n : 2 * n]), rows[2 * n :]])

        return rows

    def twice(first: int) -> Callable[[Tensor, Probe], Tensor]:
        def rows(rows: Tensor, probe: Probe) -> Tensor:
            z1, z2, queue = torch.split(
                normalize(rows, dim=1), [len(probe.z1), len(probe.z2), len(probe.queue)]
            )
            return torch.cat([(z1, z2)[first]] * 2 + [queue])

        return rows

    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "normalised over the batch: use normalize(z, dim=1), each row on its own": lambda z: (
            normalize(z, dim=0)
        ),
        "normalised as a whole: the matrix is divided by one norm, each row needs its own": (
            lambda z: z / z.norm()
        ),
        "rows divided by their sum of absolute values: normalise with p=2": lambda z: normalize(
            z, p=1, dim=1
        ),
        "softmax of the embeddings before the similarity": lambda z: z.softmax(1),
        "features centred over the batch": lambda z: normalize(z - z.mean(0), dim=1),
        "features standardised over the batch": lambda z: (z - z.mean(0)) / z.std(0),
        "features standardised over the batch before rows are normalised": lambda z: normalize(
            (z - z.mean(0)) / z.std(0), dim=1
        ),
        "layer norm in place of unit length: cosines are multiplied by d": lambda z: (
            torch.nn.functional.layer_norm(z, z.shape[1:])
        ),
        "rows centred before they are normalised": lambda z: normalize(
            z - z.mean(1, keepdim=True), dim=1
        ),
    }
    changes = {
        "one view twice: z2 is never used, z1 is contrasted with itself": [twice(0)],
        "one view twice: z1 is never used, z2 is contrasted with itself": [twice(1)],
    }
    for text, change in kinds.items():
        changes[text] = [views(change)]
        if "over the batch" in text or "as a whole" in text:  # of each view, or of both together
            changes[text].append(together(change))
        if form.queue != "none":
            changes[text].append(keys_alone(change))
    for text, options in changes.items():
        for option in options:
            yield Departure(part="rows", text=text, change=turned(rows=option))


def positives(form: Form, world: int) -> Iterator[Departure]:
    """Which key is taken for the positive."""

    def other(t: Terms, sample: Tensor) -> Tensor:
        """Row of the other view of a sample."""
        total = len(t.probe.z1)
        return sample % total + (t.anchors < total) * total

    def sample(t: Terms) -> Tensor:
        return t.anchors % len(t.probe.z1)

    def by_order(t: Terms, order: Tensor, partner: Callable[[Tensor], Tensor]) -> Tensor:
        """The row at the partner's place, where rows stand in another order than was thought."""
        place = torch.argsort(order)
        return order[partner(place[t.anchors]) % len(order)]

    def interleaved(t: Terms) -> Tensor:
        total = len(t.probe.z1)
        return torch.stack([torch.arange(total), torch.arange(total) + total], 1).flatten()

    def blocks(p: Probe) -> Tensor:
        """Rows as a gather of cat([z1, z2]) returns them: per process, then per view."""
        both = 2 * len(p.z1)
        return torch.argsort(p.rank[:both] * 2 + p.side[:both], stable=True)

    shift = "wrong positive (labels or mask): "
    kinds: dict[str, Callable[[Terms], Tensor]] = {
        "the anchor itself is its positive": lambda t: t.anchors,
        "labels shifted by one, the next sample's key": lambda t: other(t, sample(t) + 1),
        "labels shifted by one, the previous sample's key": lambda t: other(t, sample(t) - 1),
        "always key 0 (labels are zeros)": lambda t: other(t, 0 * sample(t)),
        "views misaligned by one sample": lambda t: other(
            t, sample(t) + torch.where(t.anchors < len(t.probe.z1), 1, -1)
        ),
        "views misaligned by one sample, the other way": lambda t: other(
            t, sample(t) - torch.where(t.anchors < len(t.probe.z1), 1, -1)
        ),
        "keys in reversed order": lambda t: other(t, -1 - sample(t)),
    }
    if form.queue != "none":
        kinds["label i in place of 0: the positive is the first column of every row"] = lambda t: (
            torch.where(
                sample(t) == 0, t.positive, (t.probe.side == 2).nonzero()[0] + sample(t) - 1
            )
        )
        kinds["the first negative (label 0 where the positive is not the first column)"] = (
            lambda t: (t.probe.side == 2).nonzero()[0].expand_as(t.anchors)
        )
    if form.negatives == "all":
        both = "views are stacked as [z1; z2] but labels are for interleaved views, "
        kinds |= {
            "views are interleaved but labels are for views stacked as [z1; z2]": lambda t: (
                by_order(t, interleaved(t), lambda place: place + len(t.probe.z1))
            ),
            both + "rows 2i and 2i + 1 are taken for a pair": lambda t: t.anchors ^ 1,
            "a neighbouring row of the stack": lambda t: (t.anchors + 1) % (2 * len(t.probe.z1)),
            "labels shifted by one in the stack [z1; z2]": lambda t: (
                (t.anchors + len(t.probe.z1) + 1) % (2 * len(t.probe.z1))
            ),
            "labels shifted by one in the stack [z1; z2], the other way": lambda t: (
                (t.anchors + len(t.probe.z1) - 1) % (2 * len(t.probe.z1))
            ),
            "next sample of the same view": lambda t: (
                (sample(t) + 1) % len(t.probe.z1) + (t.anchors >= len(t.probe.z1)) * len(t.probe.z1)
            ),
        }
    if world > 1:
        missing = "local offset of the labels is missing: they point at the keys of rank 0, "
        kinds |= {
            missing + "add rank * n": lambda t: other(t, sample(t) % t.probe.pairs),
            "labels are shifted by rank, add rank * n": lambda t: other(
                t, sample(t) % t.probe.pairs + t.process
            ),
            "labels are shifted by 2 * rank * n, add rank * n": lambda t: other(
                t, sample(t) % t.probe.pairs + 2 * t.process * t.probe.pairs
            ),
            "labels point at the last rank's keys": lambda t: other(
                t, sample(t) % t.probe.pairs - t.probe.pairs
            ),
            "labels point at the next rank's keys": lambda t: other(t, sample(t) + t.probe.pairs),
            "labels point at the previous rank's keys": lambda t: other(
                t, sample(t) - t.probe.pairs
            ),
            "ranks in reversed order": lambda t: other(
                t, sample(t) % t.probe.pairs + (world - 1 - t.process) * t.probe.pairs
            ),
        }
        order = "order of the gathered rows: "
        if form.queue != "none":
            kinds[order + "keys and negatives alternate by rank, labels count keys first"] = (
                lambda t: torch.argsort(
                    torch.where(t.probe.side == 0, world * 9, t.probe.rank * 2 + t.probe.side),
                    stable=True,
                )[sample(t)]
            )
        else:
            kinds |= {
                order + "each rank's [z1; z2] follow each other, positives are taken for all z1, "
                "then all z2": lambda t: by_order(
                    t, blocks(t.probe), lambda place: place + len(t.probe.z1)
                ),
                order + "all z1 come before all z2, positives are taken for [z1; z2] per rank": (
                    lambda t: by_order(
                        t,
                        torch.arange(2 * len(t.probe.z1)),
                        lambda place: (
                            place // (2 * t.probe.pairs) * 2 * t.probe.pairs
                            + (place + t.probe.pairs) % (2 * t.probe.pairs)
                        ),
                    )
                ),
                order + "all z1 come before all z2, labels count within [z1; z2] of one rank": (
                    lambda t: (
                        (sample(t) % t.probe.pairs + (t.anchors < len(t.probe.z1)) * t.probe.pairs)
                        + t.process * 2 * t.probe.pairs
                    )
                    % (2 * len(t.probe.z1))
                ),
                order + "each rank's [z1; z2] follow each other, keys are counted as if all were "
                "of one view": lambda t: blocks(t.probe)[sample(t)],
                order + "rows of all ranks are interleaved, labels count them rank by rank": (
                    lambda t: other(
                        t, sample(t) % world * t.probe.pairs + sample(t) // world
                    )
                ),
                order + "rows of all ranks are interleaved, labels count them in rank order": (
                    lambda t: other(
                        t, sample(t) % t.probe.pairs * world + t.process
                    )
                ),
            }  # fmt: skip
    for text, positive in kinds.items():

        def change(t: Terms, positive: Callable[[Terms], Tensor] = positive) -> Terms:
            index = positive(t)
            candidates = t.candidates.scatter(1, index[:, None], True)
            return t.but(positive=index, candidates=candidates)

        yield Departure(part="positive", text=shift + text, change=change)
    if form.negatives == "all":
        for text, masked in (
            ("in the denominator too", False),
            ("masked in the denominator", True),
        ):

            def also_itself(t: Terms, masked: bool = masked) -> Terms:
                first = t.but(
                    positive=t.anchors,
                    candidates=t.candidates if masked else t.candidates | t.itself,
                )
                second = t if masked else t.but(candidates=t.candidates | t.itself)
                return joined(first, second)

            yield Departure(
                part="positive", change=also_itself,
                text=f"the anchor itself is a second positive ({text}): take the diagonal out of "
                "the mask of positives",
            )  # fmt: skip


def joined(a: Terms, b: Terms) -> Terms:
    """The mean of two lists of terms."""
    pairs = {
        name: torch.cat([getattr(a, name), getattr(b, name)])
        for name in ("anchors", "positive", "candidates")
    }
    return a.but(weight=torch.cat([a.weight, b.weight]) / 2, **pairs)


def candidates(form: Form, world: int) -> Iterator[Departure]:
    """Which keys stand in the denominator."""

    def same_side(t: Terms) -> Tensor:
        return t.probe.side == t.probe.side[t.anchors][:, None]

    def average(t: Terms) -> Terms:
        negatives = t.candidates & ~t.own
        return t.but(added=torch.where(t.own, 0.0, -negatives.sum(1, keepdim=True).log()))

    def masked_elsewhere(t: Terms) -> Terms:
        total = len(t.probe.z1)
        place = t.anchors % total % t.probe.pairs + (t.anchors >= total) * total
        return t.but(candidates=(t.candidates | t.itself).scatter(1, place[:, None], False))

    yield Departure(
        part="candidates", mistake=False,
        text="decoupled: the positive is not in the denominator (DCL); right only if meant",
        change=lambda t: t.but(candidates=t.candidates & ~t.own),
    )  # fmt: skip

    def without(t: Terms, place: int) -> Terms:
        """One key less: the first or the last candidate of all anchors."""
        keys = t.candidates.any(0).nonzero()[:, 0]
        missing = torch.arange(t.candidates.shape[1]) == keys[place]
        return t.but(candidates=t.candidates & ~missing)

    kinds: dict[str, Callable[[Terms], Terms]] = {
        "the last key is missing in the denominator": lambda t: without(t, -1),
        "the first key is missing in the denominator": lambda t: without(t, 0),
        "positive twice in the denominator: it is also counted among the negatives": lambda t: (
            t.but(added=t.own * math.log(2))
        ),
        "negatives twice in the denominator": lambda t: t.but(added=~t.own * math.log(2)),
        "negatives averaged in the denominator: sum them": average,
    }
    if form.negatives == "all":
        kinds |= {
            "no self-mask: every anchor is its own negative, fill the diagonal of the logits with "
            "-inf": lambda t: t.but(candidates=t.candidates | t.itself),
            "self-mask of 0: the anchor's own logit is 0 and adds exp(0) = 1, fill the diagonal "
            "with -inf (is it 1e-9 for 1e9, or a product with the mask?)": lambda t: t.but(
                candidates=t.candidates | t.itself, self_logit=0.0
            ),
            "self-mask on the positive: the positive is masked and the anchor itself is not": (
                lambda t: t.but(candidates=(t.candidates | t.itself) & ~t.own)
            ),
            "negatives of the anchor's own view only": lambda t: t.but(
                candidates=t.candidates & (same_side(t) | t.own)
            ),
            "negatives of the anchor's own view only, and the anchor itself": lambda t: t.but(
                candidates=t.candidates & (same_side(t) | t.own) | t.itself
            ),
        }
    elif form.queue == "none":

        def same_view(t: Terms) -> Terms:
            return t.but(positive=t.anchors, candidates=same_side(t))

        kinds |= {
            "one view twice: rows are contrasted with their own view": same_view,
            "negatives of the anchor's own view only, and the anchor itself": lambda t: t.but(
                candidates=same_side(t) | t.own
            ),
            "own view added without a self-mask": lambda t: t.but(
                candidates=t.candidates | same_side(t)
            ),
        }
    if form.queue != "none":
        kinds["negatives are compared with the keys, not with the queries"] = lambda t: t.but(
            asking=t.positive, shared=True
        )
        kinds["queue never used"] = lambda t: t.but(candidates=t.candidates & (t.probe.side < 2))
    if world > 1:
        kinds["own rows twice among the gathered keys"] = lambda t: t.but(
            added=(t.probe.rank == t.process) * math.log(2)
        )
        kinds["negatives of this rank only: gather the rows of all processes"] = lambda t: t.but(
            candidates=t.candidates & (t.probe.rank == t.probe.rank[t.anchors][:, None]),
        )
        if form.negatives == "all":
            kinds[
                "self-mask without the rank's offset: it masks a row of rank 0, not the anchor"
            ] = masked_elsewhere
    for text, change in kinds.items():
        yield Departure(part="candidates", text=text, change=change)


def halves(one: Departure) -> Iterator[Departure]:
    """The same departure for the anchors of one view only."""
    for side in (0, 1):

        def change(t: Terms, side: int = side) -> Terms:
            return one.change(t.of_view(side)).but(other=t.of_view(1 - side))

        yield replace(one, text=f"{one.text} (anchors of z{side + 1} only)", change=change)


# --- Reductions ---


def log_of_mean(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """-log of the mean probability."""
    return -(t.weight * (num - den.logsumexp(1)).exp()).sum().log()


def probability(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The mean of -p."""
    return -(t.weight * (num - den.logsumexp(1)).exp()).sum()


def softmax_twice(num: Tensor, den: Tensor, t: Terms, columns: Tensor | None = None) -> Tensor:
    """Cross-entropy of probabilities: -log softmax(p) at the positive."""
    p = den.softmax(1).masked_fill(~(t.candidates if columns is None else columns), -torch.inf)
    return (t.weight * (p.logsumexp(1) - (num - den.logsumexp(1)).exp())).sum()


def softmax_twice_masked(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The same, where the masked anchor keeps its column with probability 0."""
    return softmax_twice(num, den, t, t.candidates | t.itself)


def one_softmax(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """One softmax over all anchors and keys together."""
    return den.flatten().logsumexp(0) - (t.weight * num).sum()


def one_fraction(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """-log(sum of all positives / sum of all candidates)."""
    return den.flatten().logsumexp(0) - num.logsumexp(0)


def first_only(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The first anchor's loss alone."""
    return den[0].logsumexp(0) - num[0]


def without_maximum(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The largest logit subtracted in the denominator only."""
    return (t.weight * (den.logsumexp(1) - den.detach().amax(1) - num)).sum()


def labels_reversed(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """A sigmoid loss with -1 for positives and 1 for negatives."""
    negatives = torch.nn.functional.softplus(-den.masked_fill(~t.candidates | t.own, torch.inf))
    return (t.weight * (negatives.sum(1) + torch.nn.functional.softplus(num))).sum()


def largest(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The largest loss of an anchor."""
    return (den.logsumexp(1) - num).max()


def complement(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The mean of -log(1 - p)."""
    return -(t.weight * (-(num - den.logsumexp(1)).exp()).log1p()).sum()


def of_negatives(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The mean of -log p over the negatives."""
    negatives = t.candidates & ~t.own
    average = den.masked_fill(~negatives, 0.0).sum(1) / negatives.sum(1)
    return (t.weight * (den.logsumexp(1) - average)).sum()


def of_all_keys(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """The mean of -log p over all keys."""
    average = den.masked_fill(~t.candidates, 0.0).sum(1) / t.candidates.sum(1)
    return (t.weight * (den.logsumexp(1) - average)).sum()


def labels_of_zero(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """A sigmoid loss whose negatives have label 0: each is log 2, whatever its logit."""
    negatives = (t.candidates & ~t.own).sum(1) * math.log(2)
    return (t.weight * (negatives + torch.nn.functional.softplus(-num))).sum()


def all_pairs_positive(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """A sigmoid loss with label 1 everywhere."""
    return (
        t.weight * torch.nn.functional.softplus(-den.masked_fill(~t.candidates, torch.inf)).sum(1)
    ).sum()


def over_batch(num: Tensor, den: Tensor, t: Terms) -> Tensor:
    """A softmax of the positives' logits over the batch."""
    return num.logsumexp(0) - (t.weight * num).sum()


def reductions(form: Form) -> Iterator[Departure]:
    """How terms become one number, other than by their mean."""
    kinds: dict[str, list[Callable[[Tensor, Tensor, Terms], Tensor]]] = {
        "-log of the mean: average the losses, not the probabilities": [log_of_mean],
        "no logarithm: the loss is the mean of -p": [probability],
        "softmax twice: the cross-entropy is given probabilities, give it logits": [
            softmax_twice, softmax_twice_masked,
        ],
        "one softmax over the whole matrix: each anchor needs its own": [one_softmax],
        "one fraction: sums over the batch are divided before the logarithm": [one_fraction],
        "maximum subtracted in the denominator only: subtract it from all logits": [
            without_maximum
        ],
        "only the first anchor has a loss": [first_only],
        "only the largest loss of the batch counts, in place of the mean": [largest],
        "-log(1 - p): the positive is taken for a negative": [complement],
        "the negatives are taken for positives: -log p is averaged over them": [of_negatives],
        "no label: -log p is averaged over all keys, the positive is not picked": [of_all_keys],
        "softmax over the batch: it must run over the keys of an anchor (dim=1)": [over_batch],
    }  # fmt: skip
    if form.pairwise:
        kinds = {
            "labels 0 in place of -1: negatives have no gradient": [labels_of_zero],
            "labels reversed: positives have -1 and negatives 1": [labels_reversed],
            "label 1 everywhere: negatives are pulled together too": [all_pairs_positive],
        }
    for text, options in kinds.items():
        for option in options:
            yield Departure(
                part="reduction", text=text,
                change=turned(reduce=option),
            )  # fmt: skip


def factors(world: int) -> Iterator[Departure]:
    """Factors that depend on the size of the batch, and a reversed sign."""
    kinds: dict[str, Callable[[Probe], float]] = {
        "sum over the anchors in place of the mean: the gradient grows with the batch": lambda p: (
            p.pairs
        ),
        "sum over both views' anchors in place of the mean: the gradient grows with the batch": (
            lambda p: 2 * p.pairs
        ),
        "mean taken twice: the loss is divided by the number of pairs once more": lambda p: (
            1 / p.pairs
        ),
        "mean taken twice: the loss is divided by the number of rows once more": lambda p: (
            0.5 / p.pairs
        ),
        "sum divided by the number of negatives, not of anchors": lambda p: p.pairs / (p.pairs - 1),
        "mean taken twice: the loss is divided by the number of negatives once more": lambda p: (
            1 / (p.pairs - 1)
        ),
        "mean taken twice: the loss is divided by 2n - 1 once more": lambda p: (
            1 / (2 * p.pairs - 1)
        ),
        "mean taken twice: the loss is divided by the 2n - 2 negatives once more": lambda p: (
            0.5 / (p.pairs - 1)
        ),
        "divided by log(n), the loss of chance": lambda p: 1 / math.log(p.pairs),
        "mean over 2n - 1 in place of 2n anchors": lambda p: 2 * p.pairs / (2 * p.pairs - 1),
        "divided by the square of the batch": lambda p: 1 / p.pairs**2,
        "sum multiplied by the number of rows": lambda p: 4 * p.pairs**2,
        "sign of the loss reversed: training would push positives apart": lambda p: -1.0,
    }
    if world > 1:
        yield replace(
            _factor(TIMES_WORLD, lambda p: p.world), mistake=False
        )  # right where the gradient is taken once
        everywhere = "sum over the {} of all processes in place of the mean"
        kinds["divided by world: DDP divides by the number of processes again"] = lambda p: (
            1 / p.world
        )
        kinds[everywhere.format("anchors")] = lambda p: len(p.z1)
        kinds[everywhere.format("rows")] = lambda p: 2 * len(p.z1)
    for text, factor in kinds.items():
        yield _factor(text, factor)


TIMES_WORLD = "multiplied by world: the value is multiplied by the number of processes"


def _factor(text: str, factor: Callable[[Probe], float]) -> Departure:
    change = turned(outer=partial(_times, factor))
    return Departure(part="factor", text=text, change=change, factor=factor)


def _times(factor: Callable[[Probe], float], value: Tensor, probe: Probe) -> Tensor:
    return value * factor(probe)


def departures(form: Form, tau: float, dim: int, world: int) -> list[Departure]:
    """All of a form."""
    both = [
        *scales(tau, dim), *positives(form, world), *candidates(form, world), *similarities(),
        *reductions(form),
    ]  # fmt: skip
    split = len(form.sides) == 2
    apart = [half for one in both for half in halves(one)] if split else []
    return [*both, *row_changes(form), *factors(world), *apart]
