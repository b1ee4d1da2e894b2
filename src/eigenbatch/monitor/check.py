"""Is my contrastive loss the one I think it is? A few calls on small random rows tell.

`check_calls` makes the rows, calls the loss and measures values and gradients; `check_forms` and
`check_departures` hold the losses that it may be; `check_explain` and `check_gradient` find which
one. Nothing of the loss is changed: modules are copied, random states restored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from eigenbatch.checks import check_callable, check_type, whole
from eigenbatch.core.precision import positive_scalar
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
from eigenbatch.monitor.check_explain import Measured, Search
from eigenbatch.monitor.check_forms import forms
from eigenbatch.monitor.check_gradient import gradient_faults, labelled, lengths
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


def _report(evidence: Evidence, call: Call, tau: float) -> LossReport:
    """Explain the evidence and put it into words."""
    measured = evidence.measured
    report = partial(LossReport, tau=tau)
    bad = [name for name, one in measured.items() if not all(map(math.isfinite, one.values))]
    if bad:
        text = f"the loss is NaN or infinite on unit rows ({bad[0]}) in float64"
        if 1 / tau > LARGEST_EXPONENT:
            return report(right=False, kind="unknown", mistakes=(f"overflow: {text}",))
        raise LossError(f"{text}: is a row masked completely, or a logarithm taken of 0?")
    if evidence.dtype.itemsize < 4:
        text = "half precision: the loss computes in it, too coarse to tell; ask for float32"
        return report(right=None, kind="unknown", remarks=(text,))
    every = [value for one in measured.values() for value in one.values]
    if max(every) == min(every):
        raise LossError(f"the loss is {every[0]:g} whatever its rows are: is it computed of them?")
    tolerance, gradient_tolerance = TOLERANCES[evidence.dtype]
    units = [measured[name] for name in ("small", "middle", "large", "orthonormal")]
    world, dim = units[0].probe.world, units[0].probe.z1.shape[1]
    known = forms(call.queued, world)
    with torch.inference_mode():
        matches = Search(tau, units, tolerance).best(known, dim)
        unused = call.queued and not matches
        if unused:
            matches = Search(tau, units, tolerance).exact(forms(False, world))
    if not matches:
        return _unknown(measured["orthonormal"], call, report)
    match, mistakes, remarks = matches[0], [], []
    kind = match.form.kind
    if unused:
        mistakes.append("queue never used: the negatives are the other rows of the batch")
    elif match.form.remark:
        remarks.append(match.form.remark)
    for one in match.changes:
        (mistakes if one.mistake else remarks).append(one.text)
    others = [" and ".join(one.text for one in other.changes) for other in matches[1:]]
    if others:
        remarks.append(f"the same values come from: {'; or '.join(others[:2])}")
    if call.stacked and mistakes and "interleaved views" in mistakes[0]:
        remarks.append("the matrix must hold interleaved views: z1[0], z2[0], z1[1], z2[1], ...")
        mistakes = mistakes[1:]
    scaled, text = lengths(match, tau, measured["lengths"], tolerance)
    if text == "unknown":
        remarks.append("right on unit rows only: other lengths of rows change it in another way")
    elif text and text != "stored":
        (remarks if "right only" in text else mistakes).append(text)
    probe = measured["middle"] if text == "unknown" else measured["lengths"]
    for mistake, fault in gradient_faults(scaled, tau, probe, gradient_tolerance):
        (mistakes if mistake else remarks).append(fault)
    if "labels" in measured and not mistakes:
        mistake, text = labelled(match, tau, measured["labels"], tolerance)
        kind = text if text.startswith(("SupCon", "labelled")) and not mistake else kind
        if not text:
            remarks.append("samples with equal labels are treated in an unknown way")
        elif text != kind:
            (mistakes if mistake else remarks).append(text)
    if evidence.extremes:
        where = " and ".join(evidence.extremes)
        if 1 / tau > LARGEST_EXPONENT:
            mistakes.append(
                f"overflow: not finite in float32 where positives are {where}, exp(1 / tau) is too "
                "large: use cross_entropy or logsumexp"
            )
        else:
            remarks.append(f"not finite in float32 where positives are {where}")
    if world == 2:
        remarks.append("two processes cannot tell a factor 2 from their number: use three")
    right: bool | None = not mistakes
    if tau == 1 and right:
        right = None
        remarks.append("tau = 1 hides what is done with tau: check at another temperature")
    return report(right=right, kind=kind, mistakes=tuple(mistakes), remarks=tuple(remarks))


def _unknown(measured: Measured, call: Call, report: Callable[..., LossReport]) -> LossReport:
    """No form explains the values: what the gradient does with nearly orthonormal rows.

    A step against the gradient moves anchor i by -g_i; <-g_i, z_j> > 0 pulls it towards row j.
    """
    differs = "differs from InfoNCE: no known form and no two departures give its values"
    if fix := own_state(call.loss):
        return report(right=None, kind="unknown", remarks=(f"{differs}; {fix}",))
    probe, n = measured.probe, measured.probe.pairs
    own, other, same = [], [], []
    for process, (gradient, _) in enumerate(measured.gradients):
        rows = torch.arange(process * n, (process + 1) * n)
        pulls = -gradient @ probe.z2.T  # (n, N)
        mine = torch.zeros_like(pulls, dtype=torch.bool)
        mine[torch.arange(n), rows] = True
        own.append(pulls[mine])
        other.append(pulls[~mine])
        same.append((-gradient @ probe.z1.T)[~mine])
    strength = [float(torch.cat(one).mean()) for one in (own, other, same)]
    size = max(map(abs, strength)) or 1.0
    facts = ", ".join(
        f"{name} {'pulled' if pull > 0 else 'pushed'} {abs(pull) / size:.2f}"
        for name, pull in zip(
            ("its own key", "other keys", "its view's rows"), strength, strict=True
        )
    )
    text = f"{differs}; on orthonormal rows an anchor is, relative to the strongest: {facts}"
    if strength[0] <= 0 or strength[0] < strength[1]:
        wrong = f"{text}; its own key must be pulled most: are labels or sign wrong?"
        return report(right=False, kind="unknown", mistakes=(wrong,))
    return report(right=None, kind="unknown", remarks=(text,))
