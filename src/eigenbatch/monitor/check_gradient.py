"""What gradient, lengths of rows and equal labels say about a loss whose value is explained.

With L_s the matched loss of process s, its part G(role, view) is the gradient of sum_s L_s through
rows of that view in one role: anchor or key, in the numerator or the denominator, of the process's
own loss or of others'. A right loss has the gradient sum G: DDP divides it by W, which gives the
gradient of mean_s L_s. A detached view, a gather without gradient, or a gather whose backward is
not summed leave out or scale some of the parts.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenbatch.monitor.check_departures import TIMES_WORLD, Departure, turned
from eigenbatch.monitor.check_explain import SIDES, Match, Measured, Search
from eigenbatch.monitor.check_forms import Probe, Terms

# --- Rows that are not of length 1 ---


def lengths(match: Match, tau: float, measured: Measured, tolerance: float) -> tuple[Match, str]:
    """What the loss does with the lengths of its rows, and a remark or mistake about it.

    On unit rows several losses are one: those that normalise every row, no row, or one view.
    """

    def views(*powers: float) -> Callable[[Tensor, Probe], Tensor]:
        def rows(rows: Tensor, probe: Probe) -> Tensor:
            power = torch.tensor(powers, dtype=rows.dtype)[probe.side]
            scaled: Tensor = rows / torch.linalg.vector_norm(rows, dim=1).pow(power)[:, None]
            return scaled

        return rows

    options = {
        "": (1, 1, 1),
        "stored": (1, 1, 0),  # a queue of unit rows, as in MoCo
        "not normalised inside: right only if it is given unit rows": (0, 0, 0),
        "z1 is not normalised": (0, 1, 1),
        "z2 is not normalised": (1, 0, 1),
        "only z1 is normalised": (1, 0, 0),
        "only z2 is normalised": (0, 1, 0),
        "rows divided by their squared length": (2, 2, 2),
    }
    plain = Search(tau, [measured], tolerance)
    if plain.explains(match):
        return match, ""
    for text, powers in options.items():
        change = Departure(part="rows", text=text, change=turned(rows=views(*powers)))
        scaled = Match(match.form, (*match.changes, change))
        if text and plain.explains(scaled):
            return scaled, text
    return match, "unknown"


# --- The gradient ---


Weights = Callable[[str, str], float]
"""(role, view) -> how much of that part of the gradient there is; roles are those of `_parts`."""


def _parts(match: Match, tau: float, probe: Probe) -> dict[tuple[str, str], Tensor]:
    """G(role, view), (2N d,) each: the gradient of sum_s L_s through one role of one view."""
    rank = probe.rank
    same = rank[:, None] == rank  # (M, M)
    kinds = ("anchor", "own key", "other key")
    roles = [*(f"{kind}+" for kind in kinds), *(f"{kind}-" for kind in kinds)]
    roles += ["own positive-", "other positive-"]  # the positive in the denominator
    leaves = {role: probe.rows.requires_grad_() for role in roles}
    total = torch.zeros((), dtype=probe.z1.dtype)
    for process in range(probe.world):
        terms = match.terms(probe, process, tau)
        rows = {role: terms.rows(leaf, probe) for role, leaf in leaves.items()}
        positive = torch.zeros_like(same)
        positive[terms.anchors, terms.positive] = True

        def cosines(anchor: str, key: str, rows: dict[str, Tensor] = rows) -> Tensor:
            own, other = (rows[anchor] @ rows[f"{of} {key}"].T for of in ("own", "other"))
            return torch.where(same, own, other)

        numerator = cosines("anchor+", "key+")
        denominator = torch.where(
            positive, cosines("anchor-", "positive-"), cosines("anchor-", "key-")
        )
        total = total + terms.value(numerator, denominator)
    both = 2 * len(probe.z1)
    view = probe.side[:both]
    parts = {}
    found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    for role, gradient in zip(roles, found, strict=True):
        for side in (0, 1):
            part = gradient[:both] * (view == side)[:, None]
            if part.abs().max() > 1e-13:
                parts[role, SIDES[side]] = part.flatten()
    return parts


def gradient_faults(
    match: Match, tau: float, measured: Measured, tolerance: float
) -> list[tuple[bool, str]]:
    """What the gradient has other than the gradient of the matched loss: (mistake, text)."""
    probe = measured.probe
    told = torch.cat(
        [torch.cat([one[side] for one in measured.gradients]) for side in (0, 1)]
    ).flatten()  # (2N d,)
    with torch.enable_grad():
        parts = _parts(match, tau, probe)
    if told.abs().max() == 0:
        text = "the loss has no gradient: is it detached, or rows gathered without gradient?"
        return [(True, text)] if parts else []
    columns = torch.stack(list(parts.values()), 1)  # (2N d, parts)

    def factor(weights: Weights) -> float | None:
        """The c of told = c * weighted parts, else None."""
        weight = torch.tensor([weights(role, view) for role, view in parts], dtype=told.dtype)
        expected = columns @ weight
        c = float(expected @ told / expected.square().sum().clamp(min=1e-300))
        left = (told - c * expected).norm()
        return c if left <= tolerance * told.norm() and c else None

    world, queued = probe.world, match.form.queue != "none"
    if queued and factor(lambda role, view: float(view == "z1")) is not None:
        parts = {key: part for key, part in parts.items() if key[1] == "z1"}
        columns = torch.stack(list(parts.values()), 1)
    for weights, mistake, text in _gradient_patterns(match, world):
        if (c := factor(weights)) is not None:
            return [(mistake, text)] if text else _size(c, match, probe, world, measured)
    flat = probe.rows[: 2 * len(probe.z1)]
    radial = normalize(flat, dim=1)

    def across(z: Tensor) -> Tensor:
        """The part of (2N d,) gradients that is at right angles to the rows."""
        z = z.view_as(flat)
        return (z - (z * radial).sum(1, keepdim=True) * radial).flatten()

    c = float(across(told) @ columns.sum(1) / columns.sum(1).square().sum())
    if (across(told) - c * columns.sum(1)).norm() <= tolerance * told.norm():
        text = (
            "the length of the rows is detached in the normalisation: the gradient also changes "
            "lengths, which the loss does not depend on"
        )
        return [(True, text)]
    if (told @ columns).abs().max() == 0:
        return [(True, "the gradient is unrelated to the loss")]
    fitted = torch.linalg.lstsq(columns, told[:, None]).solution[:, 0]
    left = float((told - columns @ fitted).norm() / told.norm())
    detail = ", ".join(
        f"{weight:.2g} of {view} as {role}"
        for (role, view), weight in zip(parts, fitted, strict=True)
    )
    why = f": it has {detail}" if left <= tolerance else " (a custom backward, or a part detached?)"
    return [(True, f"the gradient is not that of the value{why}")]


def _size(
    c: float, match: Match, probe: Probe, world: int, measured: Measured
) -> list[tuple[bool, str]]:
    """The gradient is c times that of sum_s L_s: is that what DDP's average needs?"""

    def near(value: float) -> bool:
        return math.isclose(c, value, rel_tol=1e-3)

    times_world = any(one.text == TIMES_WORLD for one in match.changes)
    if near(1) and times_world:
        text = "gradient multiplied by world: the value is, and the gather's backward sums as well"
        return [(True, text)]
    if near(1) or (times_world and near(1 / world)):  # once, and DDP's average is cancelled
        return []
    alike = max(measured.values) - min(measured.values) < 1e-9
    if world > 1 and near(1 / world):
        once = (
            f"gradient of the global loss once, 1 / {world} of what DDP's average needs: right "
            "only if gradients are summed over processes"
        )
        averaged = (
            f"gradient divided by world: it is 1 / {world} of the loss's, and DDP divides by the "
            "number of processes again (sum in the gather's backward)"
        )
        return [(False, once)] if alike else [(True, averaged)]
    if world > 1 and near(world):
        text = f"gradient multiplied by world: it is {world} times the loss's"
        return [(True, text)]
    return [(True, f"the gradient is {c:.4g} times that of the value (a custom backward?)")]


def _all_but(left_out: str, role: str, view: str) -> float:
    return float(view != left_out)


def _gradient_patterns(match: Match, world: int) -> Iterator[tuple[Weights, bool, str]]:
    """Weights of the parts, and what they mean; the first that fits is named."""
    one_way = len(match.form.sides) == 1
    or_gathered = " or gathered without gradient" if world > 1 else ""
    yield lambda role, view: 1.0, True, ""
    for view, other in (("z1", "z2"), ("z2", "z1")):
        is_key = one_way and SIDES[match.form.sides[0]] != view
        text = f"no gradient reaches {view}: it is detached{or_gathered}" + (
            " (a momentum encoder, or a stop-gradient): right only if meant" if is_key else
            f", and with it half of the gradient is lost ({other} alone is trained)"
        )  # fmt: skip
        yield partial(_all_but, view), not is_key, text
    gathered = "rows are gathered without gradient: " if world > 1 else ""
    for views in (("z1", "z2"), ("z1",), ("z2",)):
        of = "" if len(views) == 2 else f" of {views[0]}"

        def weights(
            own: float, other: float, views: tuple[str, ...] = views
        ) -> Callable[[str, str], float]:
            return lambda role, view: (
                1.0 if view not in views else own if role.startswith("own")
                else other if role.startswith("other") else 1.0
            )  # fmt: skip

        yield weights(0.0, 0.0), True, (
            f"{gathered}no gradient reaches the keys{of} (detached), only the anchors"
        )  # fmt: skip
        if world > 1:
            yield weights(1.0, 0.0), True, (
                f"backward of the gather is not summed: rows{of} miss the gradient of the other "
                "processes' losses (no gradient through gathered rows; all-reduce the gradient "
                "in the gather's backward)"
            )  # fmt: skip
            for share in (1 / world, 1.0):
                yield weights(share, 1 / world), True, (
                    f"backward of the gather is averaged: keys{of} have 1 / {world} of their "
                    "gradient, divided by world (sum it, do not average)"
                )  # fmt: skip
            yield weights(float(world), float(world)), True, (
                f"backward of the gather is multiplied by world: keys{of} have {world} times "
                "their gradient"
            )  # fmt: skip
    yield lambda role, view: float("+" in role), True, (
        "the denominator is detached: nothing pushes negatives apart"
    )  # fmt: skip
    yield lambda role, view: float("-" in role), True, (
        "the numerator is detached: nothing pulls positives together"
    )  # fmt: skip
    yield lambda role, view: 0.0 if role.endswith("key-") else 1.0, True, (
        "negatives are detached: keys in the denominator have no gradient"
    )  # fmt: skip
    yield lambda role, view: 0.0 if role.endswith(("key+", "positive-")) else 1.0, True, (
        "positives are detached: the positive key has no gradient"
    )  # fmt: skip
    yield lambda role, view: 0.0 if role.startswith("anchor") else 1.0, True, (
        "anchors are detached: only the keys have a gradient"
    )  # fmt: skip


# --- Equal labels ---


def label_treatments() -> dict[str, tuple[bool, Callable[[Terms], Terms]]]:
    """What a loss may do with samples of one label: (mistake, terms)."""

    def same(t: Terms) -> Tensor:
        """(T, M) candidates with the anchor's label."""
        labels = torch.cat([t.probe.labels, t.probe.labels, -1 - torch.arange(len(t.probe.queue))])
        return t.candidates & (labels == labels[t.anchors][:, None])

    def each(t: Terms, weight: Callable[[Tensor], Tensor], split: bool, own: bool = False) -> Terms:
        """One term for every (anchor, positive) pair; split: other positives leave the softmax."""
        positives = same(t) | (t.itself if own else False)
        index, positive = positives.nonzero().T
        rows = t.candidates[index]
        if split:
            rows = rows & ~positives[index]
            rows = rows.scatter(1, positive[:, None], True)
        count = positives.sum(1)[index].to(t.weight.dtype)
        return t.but(anchors=t.anchors[index], positive=positive, candidates=rows,
            weight=weight(count) / (1 if weight is _per_pair else len(t.anchors)),
        )  # fmt: skip

    def summed_inside(num: Tensor, den: Tensor, t: Terms) -> Tensor:
        top = den.masked_fill(~same(t), -torch.inf).logsumexp(1)
        return (t.weight * (den.logsumexp(1) - top)).sum()

    def inside(num: Tensor, den: Tensor, t: Terms) -> Tensor:
        return summed_inside(num, den, t) + (t.weight * same(t).sum(1).log()).sum()

    return {
        "SupCon": (False, lambda t: each(t, lambda n: 1 / n, False)),
        "labelled pairs (pytorch-metric-learning)": (False, lambda t: each(t, _per_pair, True)),
        "labelled pairs, one softmax per anchor": (False, lambda t: each(t, _per_pair, False)),
        "labelled pairs, averaged per anchor": (False, lambda t: each(t, lambda n: 1 / n, True)),
        "equal labels are no negatives": (
            False,
            lambda t: t.but(candidates=t.candidates & (~same(t) | t.own)),
        ),
        "SupCon with the positives summed inside the logarithm (MIL-NCE)": (
            False, lambda t: t.but(reduce=summed_inside),
        ),
        "labelled positives are divided by their number and the anchor: divide by the positives": (
            True, lambda t: each(t, lambda n: 2 / (n + 1), False),
        ),
        "SupCon with the mean inside the logarithm (L_in)": (
            False, lambda t: t.but(reduce=inside),
        ),
        "labels change nothing: samples of one class are negatives of each other": (
            False, lambda t: t,
        ),
        "positives of an anchor are summed, not averaged: divide by their number": (
            True, lambda t: each(t, torch.ones_like, False),
        ),
        "the anchor itself is among its positives: take the diagonal out of the mask": (
            True, lambda t: each(t, lambda n: 1 / n, False, own=True),
        ),
    }  # fmt: skip


def _per_pair(count: Tensor) -> Tensor:
    return torch.full_like(count, 1 / len(count))


def labelled(match: Match, tau: float, measured: Measured, tolerance: float) -> tuple[bool, str]:
    """What the loss does with equal labels; an empty text if it is none of the known ones."""
    if match.form.pairwise:
        return False, ""
    for text, (mistake, change) in label_treatments().items():
        first = Departure(part="labels", text=text, change=change)
        if Search(tau, [measured], tolerance).explains(Match(match.form, (first, *match.changes))):
            return mistake, text
    return False, ""
