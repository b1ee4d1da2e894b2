"""Is my contrastive loss the one I think it is? A few calls on small random rows tell.

`check_calls` makes the rows, calls the loss and measures values and gradients; `check_forms` holds
the losses that it may be, and finds which one by value. Here lengths of rows, the gradient and
equal labels are compared with that loss, and a report is made. Nothing of the loss is changed:
modules are copied, random states restored.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenbatch.checks import check_callable, check_type, whole
from eigenbatch.core.contrast import positive_scalar
from eigenbatch.errors import LossError, ParameterError
from eigenbatch.monitor.check_calls import (
    DIM,
    Call,
    Evidence,
    evidence_of,
    own_state,
    readings,
    spawned,
)
from eigenbatch.monitor.check_forms import (
    LABELLED,
    TIMES_WORLD,
    Departure,
    Match,
    Measured,
    Probe,
    Search,
    Terms,
    forms,
)
from eigenbatch.processes import initialized

TOLERANCES = {torch.float64: (2e-6, 1e-5), torch.float32: (2e-5, 2e-3)}
"""Relative rounding of value and gradient. Never loosened until something matches."""

LARGEST_EXPONENT = math.log(torch.finfo(torch.float32).max)
"""88.7: exp(1 / tau) overflows in float32 if 1 / tau exceeds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """What a loss is, and what is wrong with it. Every finding begins with its name.

    Args:
        right: True, remarks allowed; False if there is a mistake; None if it cannot be decided.
        kind: the loss it is, or is closest to; "unknown" if it differs from all known forms.
        tau: the temperature that it was checked at.
        mistakes: what is wrong and how to fix it.
        remarks: what is right only if it is meant, and what cannot be told.

    Examples:
        >>> from eigenbatch import check_loss
        >>> report = check_loss(lambda z1, z2: ((z1 - z2) ** 2).sum(), tau=0.1)
        >>> report.right, report.kind
        (None, 'unknown')
    """

    right: bool | None
    kind: str
    tau: float
    mistakes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def raise_if_wrong(self) -> None:
        """Raise LossError if `right` is False; None and True pass."""
        if self.right is False:
            raise LossError(str(self))

    def __str__(self) -> str:
        verdict = {True: "right", False: "wrong", None: "not decided"}[self.right]
        lines = [f"{verdict}: {self.kind} at tau = {self.tau:g}"]
        lines += [f"  mistake: {text}" for text in self.mistakes]
        lines += [f"  remark: {text}" for text in self.remarks]
        return "\n".join(lines)


def check_loss(
    loss: Callable[..., Any],
    tau: float,
    *,
    form: str | None = None,
    pairs: int | None = None,
    dim: int = DIM,
    processes: int | None = None,
    seed: int = 0,
) -> LossReport:
    """Say which contrastive loss a function is, and which mistakes it has. Needs no data.

    Args:
        loss: a function or module that returns one number: loss(z1, z2), (z1, z2, labels),
            (q, k, queue), (embeddings, labels) or (z), views stacked as [z1; z2].
        tau: the temperature that the loss should have; passed if the loss has a parameter without
            default called tau, temperature or logit_scale (1 / tau).
        form: the parameters of the loss, such as "z1, z2, labels", if its own names do not say.
            "views, labels" is one tensor (n, 2, d).
        pairs: the number of pairs if the loss takes no other.
        dim: d of the rows.
        processes: how many processes to start, each with rows of its own; a loss that gathers
            needs 3. In a process group (torchrun) all ranks call `check_loss` and leave it None.
        seed: of the rows.

    Returns:
        A report: print it, or call `raise_if_wrong()` in a test.

    Raises:
        LossError: the loss raises, is random, NaN, or returns something other than one number.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy, normalize
        >>> from eigenbatch import check_loss
        >>> def info_nce(z1, z2):
        ...     logits = normalize(z1, dim=1) @ normalize(z2, dim=1).T * 0.1
        ...     labels = torch.arange(len(z1))
        ...     return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2
        >>> print(check_loss(info_nce, tau=0.1))
        wrong: symmetric InfoNCE (CLIP) at tau = 0.1
          mistake: temperature multiplied: the logits are multiplied by tau, divide by tau
    """
    check_callable(loss, "loss", "eigenbatch.check_loss(my_loss, tau=0.1)")
    tau = positive_scalar(tau, "tau")
    check_type(form, (str, type(None)), "form")
    whole(dim, "dim", least=2), whole(seed, "seed", least=0)
    if pairs is not None:
        whole(pairs, "pairs", least=3)
    if processes is not None and whole(processes, "processes", least=1) > 1 and initialized():
        raise ParameterError("processes= starts processes, and this is one of a group: omit it")
    reports, failures = [], []
    for reading in readings(loss, form):
        call = Call(loss, tau, reading)
        try:
            if processes is not None and processes > 1:
                evidence = spawned(call, processes, pairs, dim, seed)
            else:
                evidence = evidence_of(call, pairs, dim, seed)
            reports.append(_report(evidence, call, tau))
        except LossError as reason:
            failures.append(reason)
            continue
        if reports[-1].kind != "unknown":
            return reports[-1]
    if not reports:
        raise failures[0]
    return reports[0]


UNITS = ("small", "middle", "large", "orthonormal")
"""Probes of unit rows."""


def _undecided(evidence: Evidence, tau: float) -> LossReport | None:
    """What needs no search: values that are not finite, coarse, huge, 0 or only attract."""
    measured, report = evidence.measured, partial(LossReport, tau=tau, kind="unknown")
    bad = [name for name, one in measured.items() if not all(map(math.isfinite, one.values))]
    if bad:
        text = f"the loss is NaN or infinite on unit rows ({bad[0]}) in float64"
        if 1 / tau > LARGEST_EXPONENT:
            return report(right=False, mistakes=(f"overflow: {text}",))
        raise LossError(f"{text}: is a row masked completely, or a logarithm taken of 0?")
    if evidence.dtype.itemsize < 4:
        text = "half precision: the loss computes in it, too coarse to tell; ask for float32"
        return report(right=None, remarks=(text,))
    if len(every := {value for one in measured.values() for value in one.values}) == 1:
        raise LossError(
            f"the loss is {every.pop():g} whatever its rows are: is it computed of them?"
        )
    units = [measured[name] for name in UNITS]
    values = [value for one in units for value in one.values]
    if min(values) > 1e3 and max(values) - min(values) < 1e-6 * max(values):
        text = f"the loss is {values[0]:.2g} whatever its rows are: the positive is masked"
        fix = "labels or a mask are wrong (is the anchor itself among its positives?)"
        return report(right=False, mistakes=(f"{text}, {fix}",))
    if max(map(abs, values)) < 1e-6:
        text = "the loss is nearly 0 on random rows: the positive outweighs all keys"
        fix = "are positives summed over the batch, or negatives missing?"
        return report(right=False, mistakes=(f"{text}, {fix}",))
    if _attracts_only(units, TOLERANCES[evidence.dtype][0]):
        text = "no denominator: positives are pulled and nothing is pushed (BYOL, SimSiam)"
        return report(right=None, remarks=(f"differs from InfoNCE: {text}",))
    return None


def _report(evidence: Evidence, call: Call, tau: float) -> LossReport:
    """Explain the evidence and put it into words."""
    if undecided := _undecided(evidence, tau):
        return undecided
    measured, report = evidence.measured, partial(LossReport, tau=tau)
    tolerance, gradient_tolerance = TOLERANCES[evidence.dtype]
    units = [measured[name] for name in UNITS]
    world, dim = units[0].probe.world, units[0].probe.z1.shape[1]
    with torch.inference_mode():
        search = Search(tau, units, tolerance)
        matches = search.best(forms(call.queued, world), dim)
        unused = call.queued and not matches
        if unused:
            matches = search.exact(forms(False, world))
    if not matches:
        return _unknown(measured["orthonormal"], call, report)
    by_length = [(_lengths(one, tau, measured["lengths"], tolerance), one) for one in matches]
    by_length.sort(key=lambda found: found[0][1] == UNKNOWN)  # stable: the others keep their order
    (scaled, length), match = by_length[0]
    kind, mistakes, remarks = match.form.kind, [], []
    if unused:
        mistakes.append("queue never used: the negatives are the other rows of the batch")
    elif match.form.remark:
        remarks.append(match.form.remark)
    for one in match.changes:
        (mistakes if one.mistake else remarks).append(one.text)
    others = [" and ".join(one.text for one in other.changes) for _, other in by_length[1:]]
    if others:
        remarks.append(f"the same values come from: {'; or '.join(others[:2])}")
    if call.stacked and mistakes and "interleaved views" in mistakes[0]:
        remarks.append("the matrix must hold interleaved views: z1[0], z2[0], z1[1], z2[1], ...")
        mistakes = mistakes[1:]
    if length:
        (mistakes if length.startswith("z") else remarks).append(length)
    probe = measured["middle" if length == UNKNOWN else "lengths"]
    for mistake, fault in _gradient_faults(scaled, tau, probe, gradient_tolerance):
        (mistakes if mistake else remarks).append(fault)
    if "labels" in measured and not mistakes:
        mistake, text = _labelled(match, tau, measured["labels"], tolerance)
        if text.startswith(("SupCon", "labelled")) and not mistake:
            kind = text
        else:
            (mistakes if mistake else remarks).append(text)
    if evidence.extremes:
        text = f"not finite in float32 where positives are {' and '.join(evidence.extremes)}"
        if 1 / tau > LARGEST_EXPONENT:
            fix = "exp(1 / tau) is too large: use cross_entropy or logsumexp"
            mistakes.append(f"overflow: {text}, {fix}")
        else:
            remarks.append(text)
    if world == 2:
        remarks.append("two processes cannot tell a factor 2 from their number: use three")
    right: bool | None = not mistakes
    if tau == 1 and right:
        right = None
        remarks.append("tau = 1 hides what is done with tau: check at another temperature")
    return report(right=right, kind=kind, mistakes=tuple(mistakes), remarks=tuple(remarks))


def _attracts_only(units: Sequence[Measured], tolerance: float) -> bool:
    """Whether the loss is a + b (mean cosine of positives)."""
    cosine = torch.cat([(one.probe.z1 * one.probe.z2).sum(1).view(one.probe.world, -1).mean(1)
                        for one in units])  # fmt: skip
    told = torch.tensor([one.values for one in units], dtype=cosine.dtype).flatten()
    line = torch.stack([torch.ones_like(cosine), cosine], 1)
    left = told - line @ torch.linalg.lstsq(line, told[:, None]).solution[:, 0]
    return bool(left.abs().max() <= tolerance * told.abs().max())


def _unknown(measured: Measured, call: Call, report: Callable[..., LossReport]) -> LossReport:
    """No form explains the values: what the gradient does with nearly orthonormal rows.

    A step against the gradient moves anchor i by -g_i; <-g_i, z_j> > 0 pulls it towards row j.
    """
    differs = "differs from InfoNCE: no known form and no two departures give its values"
    if fix := own_state(call.loss):
        return report(right=None, kind="unknown", remarks=(f"{differs}; {fix}",))
    probe = measured.probe
    pulls = torch.cat([-first for first, _ in measured.gradients]) @ probe.rows.T  # (N, M)
    total = len(pulls)
    own, itself = pulls[:, total : 2 * total].diagonal(), pulls[:, :total].diagonal()
    count = total * (total - 1)
    groups = {
        "its own key": float(own.mean()),
        "other keys": float((pulls[:, total : 2 * total].sum() - own.sum()) / count),
        "its view's rows": float((pulls[:, :total].sum() - itself.sum()) / count),
    }
    size = max(map(abs, groups.values())) or 1.0
    facts = ", ".join(
        f"{name} {'pulled' if pull > 0 else 'pushed'} {abs(pull) / size:.2f}"
        for name, pull in groups.items()
    )
    text = f"{differs}; on orthonormal rows an anchor is, relative to the strongest: {facts}"
    elsewhere = pulls.clone()
    elsewhere[:, total : 2 * total].fill_diagonal_(-torch.inf)
    most, row = elsewhere.fill_diagonal_(-torch.inf).max(1)
    if most.mean() > own.mean() or own.mean() <= 0:
        i = int((most - own).argmax())
        place = f"{('z1', 'z2', 'queue')[int(probe.side[row[i]])]}[{int(row[i]) % total}]"
        text += f"; wrong positive (labels, mask or sign): z1[{i}] is pulled most towards {place}"
        return report(right=False, kind="unknown", mistakes=(text,))
    return report(right=None, kind="unknown", remarks=(text,))


# --- Rows that are not of length 1, and equal labels ---

UNKNOWN = "right on unit rows only: other lengths of rows change it in another way"
LENGTHS = (  # the powers of the lengths that z1, z2 and queue are divided by
    ("", (1, 1, 0)),  # a queue of unit rows is stored, as in MoCo
    ("not normalised inside: right only if it is given unit rows", (0, 0, 0)),
    ("z1 is not normalised", (0, 1, 1)), ("z1 is not normalised", (0, 1, 0)),
    ("z2 is not normalised", (1, 0, 1)), ("z2 is not normalised", (1, 0, 0)),
)  # fmt: skip


def _lengths(match: Match, tau: float, measured: Measured, tolerance: float) -> tuple[Match, str]:
    """What the loss does with the lengths of its rows, and a remark or mistake about it.

    On unit rows several losses are one: those that normalise every row, no row, or one view.
    """
    search = Search(tau, [measured], tolerance)
    if search.explains(match):
        return match, ""
    for text, powers in LENGTHS:

        def rows(rows: Tensor, probe: Probe, powers: tuple[int, ...] = powers) -> Tensor:
            power = torch.tensor(powers, dtype=rows.dtype)[probe.side]
            scaled: Tensor = rows / torch.linalg.vector_norm(rows, dim=1).pow(power)[:, None]
            return scaled

        change = Departure(part="rows", text=text, change=partial(Terms.but, rows=rows))
        if search.explains(match.but(change)):
            return match.but(change), text
    return match, UNKNOWN


def _labelled(match: Match, tau: float, measured: Measured, tolerance: float) -> tuple[bool, str]:
    """What the loss does with equal labels: (mistake, text)."""
    search = Search(tau, [measured], tolerance)
    for mistake, text, change in () if match.form.pairwise else LABELLED:
        first = Departure(part="labels", text=text, change=change)
        if search.explains(replace(match, changes=(first, *match.changes))):
            return mistake, text
    return False, "samples with equal labels are treated in an unknown way"


# --- The gradient ---
#
# With L_s the matched loss of process s, its part G(role, view) is the gradient of sum_s L_s
# through rows of that view in one role: anchor or key, of the numerator (+), of a negative (-) or
# of the positive in the denominator (=), of the process's own loss or of another's. A right loss
# has the gradient sum G: DDP divides it by W, which gives the gradient of mean_s L_s. A detached
# view, or a gather without gradient or sum in its backward, leave out or scale some of the parts.

Kernel = Callable[[Tensor, Tensor], Tensor]
Weights = Callable[[str, str], float]
"""(role, view) -> how much of that part of the gradient there is."""

ROLES = [f"{who}{sign}" for sign in "+-=" for who in ("anchor", "own key", "other key")]


def _parts(match: Match, tau: float, probe: Probe) -> dict[tuple[str, str], Tensor]:
    """G(role, view), (2N d,) each."""
    same = probe.rank[:, None] == probe.rank  # (M, M)
    leaves = {role: probe.rows.requires_grad_() for role in ROLES}
    total = torch.zeros((), dtype=probe.z1.dtype)
    for process in range(probe.world):
        terms = match.terms(probe, process, tau)
        rows = {role: terms.rows(leaf, probe) for role, leaf in leaves.items()}
        positive = torch.zeros_like(same)
        for half in (terms, terms.other or terms):
            positive[half.anchors, half.positive] = True

        def cosines(
            sign: str, rows: dict[str, Tensor] = rows, kernel: Kernel = terms.kernel
        ) -> Tensor:
            own, other = (kernel(rows[f"anchor{sign}"], rows[f"{of} key{sign}"])
                          for of in ("own", "other"))  # fmt: skip
            return torch.where(same, own, other)

        total = total + terms.value(cosines("+"), torch.where(positive, cosines("="), cosines("-")))
    found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    both, parts = 2 * len(probe.z1), {}
    for role, gradient in zip(ROLES, found, strict=True):
        for side, view in enumerate(("z1", "z2")):
            part = gradient[:both] * (probe.side[:both] == side)[:, None]
            if part.abs().max() > 1e-13:
                parts[role, view] = part.flatten()
    return parts


def _gradient_faults(
    match: Match, tau: float, measured: Measured, tolerance: float
) -> list[tuple[bool, str]]:
    """What the gradient has other than the gradient of the matched loss: (mistake, text)."""
    probe, world = measured.probe, measured.probe.world
    told = torch.cat([torch.cat([one[side] for one in measured.gradients]) for side in (0, 1)])
    flat, told = probe.rows[: len(told)], told.flatten()  # (2N d,)
    with torch.enable_grad():
        parts = _parts(match, tau, probe)
    if not parts:
        return []
    columns = torch.stack(list(parts.values()), 1)  # (2N d, parts)
    if told.abs().max() == 0:
        text = "the loss has no gradient: is it detached, or rows gathered without gradient?"
        return [(True, text)] if columns.sum(1).abs().max() > 1e-13 else []

    if max(told.norm(), columns.sum(1).norm()) < 1e-6:  # a loss of nearly 0
        return []
    close = tolerance * max(1e-3, float(told.norm()))

    def factor(weights: Weights) -> float | None:
        """The c of told = c * weighted parts, else None."""
        weight = torch.tensor([weights(role, view) for role, view in parts], dtype=told.dtype)
        return _multiple(told, columns @ weight, close)

    if match.form.queue != "none" and factor(lambda role, view: float(view == "z1")) is not None:
        parts = {key: part for key, part in parts.items() if key[1] == "z1"}
        columns = torch.stack(list(parts.values()), 1)
    for weights, mistake, text in _patterns(match, world):
        if (c := factor(weights)) is not None:
            return [(mistake, text)] if text else _size(c, match, world, measured)
    radial = normalize(flat, dim=1)
    across, whole = (  # the parts at right angles to the rows
        (z.view_as(flat) - (z.view_as(flat) * radial).sum(1, keepdim=True) * radial).flatten()
        for z in (told, columns.sum(1))
    )
    if _multiple(across, whole, close) is not None:
        text = (
            "the length of the rows is detached in the normalisation: the gradient also changes "
            "lengths, which the loss does not depend on"
        )
        return [(True, text)]
    if (told @ columns).abs().max() == 0:
        return [(True, "the gradient is unrelated to the loss")]
    fitted = torch.linalg.lstsq(columns, told[:, None]).solution[:, 0]
    detail = ", ".join(
        f"{weight:.2g} of {view} as {role}"
        for (role, view), weight in zip(parts, fitted, strict=True)
    )
    explained = (told - columns @ fitted).norm() <= tolerance * told.norm()
    why = f": it has {detail}" if explained else " (a custom backward, or a part detached?)"
    return [(True, f"the gradient is not that of the value{why}")]


def _multiple(told: Tensor, expected: Tensor, tolerance: float) -> float | None:
    """The c of told = c * expected, else None."""
    c = float(expected @ told / expected.square().sum().clamp(min=1e-300))
    return c if (told - c * expected).norm() <= tolerance and c else None


def _size(c: float, match: Match, world: int, measured: Measured) -> list[tuple[bool, str]]:
    """The gradient is c times that of sum_s L_s: is that what DDP's average needs?"""
    near = partial(math.isclose, c, rel_tol=1e-3)
    times_world = any(one.text == TIMES_WORLD for one in match.changes)
    if near(1) and times_world:
        text = "gradient multiplied by world: the value is, and the gather's backward sums as well"
        return [(True, text)]
    if near(1) or (times_world and near(1 / world)):  # once, and DDP's average is cancelled
        return []
    if world > 1 and near(1 / world):
        if max(measured.values) - min(measured.values) < 1e-9:
            text = f"gradient of the global loss once, 1 / {world} of what DDP's average needs"
            return [(False, f"{text}: right only if gradients are summed over processes")]
        text = (
            f"gradient divided by world: it is 1 / {world} of the loss's, and DDP divides by the "
            "number of processes again (sum in the gather's backward)"
        )
        return [(True, text)]
    if world > 1 and near(world):
        return [(True, f"gradient multiplied by world: it is {world} times the loss's")]
    return [(True, f"the gradient is {c:.4g} times that of the value (a custom backward?)")]


def _patterns(match: Match, world: int) -> Iterator[tuple[Weights, bool, str]]:
    """Weights of the parts, and what they mean; the first that fits is named."""
    yield lambda role, view: 1.0, True, ""
    gathered = " or gathered without gradient" if world > 1 else ""
    for i, (view, other) in enumerate((("z1", "z2"), ("z2", "z1"))):
        is_key = match.form.sides == (1 - i,)
        yield partial(_left_out, views=(view,)), not is_key, (
            f"no gradient reaches {view}: it is detached{gathered}"
            + (" (a momentum encoder, or a stop-gradient): right only if meant" if is_key
               else f", and with it half of the gradient is lost ({other} alone is trained)")
        )  # fmt: skip
    gathered = "rows are gathered without gradient: " if world > 1 else ""
    for views in (("z1", "z2"), ("z1",), ("z2",)):
        of = "" if len(views) == 2 else f" of {views[0]}"
        keys = partial(_keys, views=views)
        yield partial(keys, own=0.0, other=0.0), True, (
            f"{gathered}no gradient reaches the keys{of} (detached), only the anchors"
        )  # fmt: skip
        if world > 1:
            yield partial(keys, own=1.0, other=0.0), True, (
                f"backward of the gather is not summed: rows{of} miss the gradient of the other "
                "processes' losses (no gradient through gathered rows; all-reduce the gradient "
                "in the gather's backward)"
            )  # fmt: skip
            for share in (1 / world, 1.0):
                yield partial(keys, own=share, other=1 / world), True, (
                    f"backward of the gather is averaged: keys{of} have 1 / {world} of their "
                    "gradient, divided by world (sum it, do not average)"
                )  # fmt: skip
            yield partial(keys, own=world, other=world), True, (
                f"backward of the gather is multiplied by world: keys{of} have {world} times "
                "their gradient"
            )  # fmt: skip
    for ends, text in (
        (("-", "="), "the denominator is detached: nothing pushes negatives apart"),
        ("+", "the numerator is detached: nothing pulls positives together"),
        ("key-", "negatives are detached: keys in the denominator have no gradient"),
        ("-", "negatives are detached: only positives have a gradient"),
        (("key+", "key="), "positives are detached: the positive key has no gradient"),
        (("+", "="), "positives are detached: their logits have no gradient"),
        (("anchor+", "anchor-", "anchor="), "anchors are detached: only keys have a gradient"),
    ):
        yield partial(_left_out, ends=ends), True, text


def _left_out(
    role: str, view: str, views: Sequence[str] = ("z1", "z2"), ends: str | tuple[str, ...] = ""
) -> float:
    return float(view not in views or not role.endswith(ends))


def _keys(role: str, view: str, views: Sequence[str], own: float, other: float) -> float:
    if view not in views or role.startswith("anchor"):
        return 1.0
    return own if role.startswith("own") else other
