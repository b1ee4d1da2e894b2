"""Calls of a loss on small random rows, in one process or several: values, gradients, precision.

The probes are batches of a few unit rows whose cosines are spread by about tau around a common
mean, so that every temperature, mask and label shows in the value; one nearly orthonormal batch,
where a self-mask of 0 adds exp(0) to every denominator; and rows of other lengths.
"""

import copy
import inspect
import math
import pickle
import random
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenbatch.checks import described
from eigenbatch.errors import LossError
from eigenbatch.monitor.check_forms import Measured, Probe
from eigenbatch.processes import initialized, rank_and_world

PAIRS, DIM, QUEUE = 7, 32, 11
SECONDS = 60
"""After which a process that does not answer has hung."""

PATIENCE = 10
"""Seconds that a process waits for the others inside a collective of the loss."""

GIVEN_UP = re.compile("timed? ?out|connection (closed|reset)", re.IGNORECASE)
"""What processes say that have waited for another one."""

NAMES = {
    "tau": ("tau", "temperature", "temp", "t", "softmax_temperature"),
    "logit_scale": ("logit_scale", "scale"),
    "logit_bias": ("logit_bias", "bias"),
    "labels": ("labels", "label", "targets", "target", "y", "ids", "classes"),
    "queue": ("queue", "memory", "bank", "memory_bank", "neg", "negs", "negatives",
              "negative_keys", "negative", "hard_negatives", "n"),
    "views": ("views",),
}  # fmt: skip


# --- The probes ---


def make_probes(
    tau: float, world: int, pairs: int | None, dim: int, seed: int, *, queue: bool
) -> dict[str, Probe]:
    """Batches by name, the same in every process. The first four have unit rows."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    def unit(rows: int) -> Tensor:
        return normalize(noise(rows, dim), dim=1)

    def batch(z1: Tensor, z2: Tensor, stored: Tensor) -> Probe:
        labels = torch.arange(len(z1), device="cpu")
        return Probe(z1=z1, z2=z2, queue=stored, labels=labels, world=world)

    def probe(n: int) -> Probe:
        """Rows sqrt(1 - share) u + sqrt(share) v, cosines 1 - share + share <v, w>."""
        share = min(1.0, tau * dim**0.5)  # <v, w> is spread by 1 / sqrt(d)
        common, first = unit(1), unit(n * world)
        second = normalize(first + 0.8 * unit(n * world), dim=1)
        z1, z2, stored = (
            normalize(math.sqrt(1 - share) * common + math.sqrt(share) * v, dim=1)
            for v in (first, second, unit(QUEUE * world * queue))
        )
        return batch(z1, z2, stored)

    def orthonormal(n: int) -> Probe:
        """All rows nearly at right angles, as far as the dimension allows."""
        rows = noise(dim, 2 * n * world)
        rows = torch.linalg.qr(rows).Q if 2 * n * world <= dim else rows
        rows = rows.T + 0.3 * tau * noise(2 * n * world, dim) / dim**0.5
        z1, z2 = normalize(rows, dim=1).chunk(2)
        return batch(z1, z2, unit(QUEUE * world * queue))

    small, middle, large = (pairs,) * 3 if pairs else (PAIRS - 3, PAIRS, PAIRS + 2)
    probes = {"small": probe(small), "middle": probe(middle), "large": probe(large)}
    probes["orthonormal"] = orthonormal(small)
    raw = probe(middle)
    z1, z2, stored = (z * noise(len(z), 1).mul(0.4).exp() for z in (raw.z1, raw.z2, raw.queue))
    labels = torch.arange(middle * world) // 2 * 2  # two samples per label, one left over or none
    labels[0] = labels[-1] if middle * world > 4 else labels[0]
    probes["lengths"] = replace(raw, z1=z1, z2=z2, queue=stored)
    probes["labels"] = replace(probe(middle), labels=labels)
    return probes


# --- Calling the loss ---


SCALES = ("tau", "logit_scale", "logit_bias")
PAIRED = ["rows", "rows"]
KNOWN = (
    PAIRED, [*PAIRED, "labels"], [*PAIRED, "queue"], ["rows"], ["rows", "labels"], ["views"],
    ["views", "labels"],
)  # fmt: skip
SHORT = {"labels": ["z1", "z2", "labels"], "queue": ["q", "k", "queue"]}
"""Words that `form` may be in place of a list."""


def readings(loss: Callable[..., Any], form: str | None) -> list[tuple[str, ...]]:
    """What to pass, in order, likeliest first: "z1", "z2", "rows", "views", "labels", "queue".

    Temperatures are passed by their names, as "tau:temperature".
    """
    target = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        given = [
            (one.name, one.default is not one.empty)
            for one in inspect.signature(target).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            or (one.kind == one.KEYWORD_ONLY and one.default is one.empty)
        ]
    except (TypeError, ValueError):
        given = []
    names = [name for name, optional in given if not optional]
    names = names or [name for name, _ in given[:2]] or ["z1", "z2"]
    if form is not None:
        words = [word.strip().lower() for word in form.strip("() ").split(",") if word.strip()]
        names = SHORT.get(form, words) + [name for name in names if _role(name) in SCALES]
    roles = [_role(name) for name in names]
    if len(roles) == 2:  # an image i and a text t
        roles = ["rows" if role == "tau" else role for role in roles]
    scales = [f"{role}:{name}" for role, name in zip(roles, names, strict=True) if role in SCALES]
    roles = [role for role in roles if role not in SCALES]
    if roles == ["rows"] * 3:
        roles[2] = "queue"
    found = [roles]
    if form is None and roles == ["rows"]:
        single = [["rows"], ["views"]]
        found = single[::-1] if names[0].lower() == "features" else single
        if len(given) > 1 and _role(given[1][0]) == "labels":
            found = [["rows", "labels"], ["views", "labels"], *found]
    elif form is None and roles == ["rows", "labels"]:
        xy = [name.lower() for name in names[:2]] == ["x", "y"]
        found = [PAIRED] if xy else [roles, ["views", "labels"], PAIRED]
    if found[0] not in KNOWN:
        raise LossError(
            f"cannot tell what to pass to a loss of ({', '.join(names)}): name the parts by "
            'form="z1, z2", "z1, z2, labels", "q, k, queue", "embeddings, labels" or "z"'
        )
    return [(*(["z1", "z2", *one[2:]] if one[:2] == PAIRED else one), *scales) for one in found]


def _role(name: str) -> str:
    return next((role for role, names in NAMES.items() if name.lower() in names), "rows")


class Call:
    """One call of a fresh copy of the loss on the rows of one process."""

    def __init__(self, loss: Callable[..., Any], tau: float, roles: tuple[str, ...]) -> None:
        self.tau, self.roles = tau, roles
        self.original, self.loss = loss, _copied(loss)
        weights = () if (module := _module_of(self.loss)) is None else module.parameters()
        self.device = next((one.device for one in weights), torch.device("cpu"))
        if initialized() and self.device.type == "cpu" and "nccl" in dist.get_backend():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.configure(torch.float64, transposed=False)

    @property
    def queued(self) -> bool:
        """Whether the loss is given a queue."""
        return "queue" in self.roles

    @property
    def stacked(self) -> bool:
        """Whether the loss is given one matrix or tensor with both views."""
        return "z1" not in self.roles

    def configure(self, dtype: torch.dtype, transposed: bool) -> None:
        """Choose the dtype of rows and of the module's weights, and how the queue lies."""
        self.dtype, self.transposed = dtype, transposed
        self.loss = _copied(self.original)
        if (module := _module_of(self.loss)) is not None:
            module.to(dtype)

    def __call__(self, probe: Probe, process: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The loss and its gradient with respect to z1 and z2 of this process."""
        z1, z2, queue, labels = (
            z.chunk(probe.world)[process].to(self.device)
            for z in (probe.z1, probe.z2, probe.queue, probe.labels)
        )
        z1, z2 = (z.to(self.dtype).detach().clone().requires_grad_() for z in (z1, z2))
        queue = (queue.T if self.transposed else queue).to(self.dtype).contiguous()
        given: dict[str, Any] = {
            "z1": z1, "z2": z2, "queue": queue.clone(),
            "rows": torch.cat([z1, z2]), "views": torch.stack([z1, z2], 1),
            "labels": torch.cat([labels, labels]) if "rows" in self.roles else labels,
            "tau": self.tau, "logit_scale": torch.tensor(1 / self.tau, dtype=self.dtype),
            "logit_bias": torch.tensor(-10.0, dtype=self.dtype),
        }  # fmt: skip
        places = [given[role] for role in self.roles if ":" not in role]
        words = {r.partition(":")[2]: given[r.partition(":")[0]] for r in self.roles if ":" in r}
        with self.device:
            value = _copied(self.loss)(*places, **words)
        _check_value(value)
        if not torch.equal(given["queue"], queue):
            raise LossError(
                "the loss changes the queue that it is given: pass the part that computes the "
                "loss, and fill the queue outside"
            )
        leaves = [z1, z2]
        found = (
            torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
            if value.requires_grad else [torch.zeros_like(z) for z in leaves]
        )  # fmt: skip
        return value.detach().cpu(), (found[0].double().cpu(), found[1].double().cpu())


def _check_value(value: object) -> None:
    """Raise LossError unless a loss returned one number."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            fix = f"a number of {value.dtype}: return a floating-point one"
        elif value.ndim:
            fix = "squeeze()" if value.numel() == 1 else "mean()"
            fix = f"shape {tuple(value.shape)}: pass lambda z1, z2: loss(z1, z2).{fix}"
        else:
            return
    elif isinstance(value, dict | tuple | list):
        which = repr(next(iter(value))) if isinstance(value, dict) and value else "0"
        fix = f"a {type(value).__name__}: pass lambda z1, z2: loss(z1, z2)[{which}]"
    else:
        fix = f"{described(value)}: return the tensor itself, without .item()"
    raise LossError(f"the loss must return one number as a torch.Tensor, got {fix}")


def _module_of(loss: object) -> nn.Module | None:
    """The module that is called, if there is one."""
    owner = getattr(loss, "__self__", loss)
    return owner if isinstance(owner, nn.Module) else None


def _copied(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A copy that may change itself; what cannot be copied is used as it is."""
    try:
        return copy.deepcopy(loss)
    except Exception:
        return loss


# --- Measuring, in every process alike ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What every process has measured."""

    measured: dict[str, Measured]
    dtype: torch.dtype
    extremes: tuple[str, ...]  # where the loss is not finite in its own dtype


def evidence_of(call: Call, pairs: int | None, dim: int, seed: int) -> Evidence:
    """Call the loss on all probes; in a process group every rank does."""
    process, world = rank_and_world()
    probes = make_probes(call.tau, world, pairs, dim, seed, queue=call.queued)
    # A group of its own: the default one may be stuck in a collective of the loss.
    group = dist.new_group(backend="gloo") if initialized() else None
    agreed = partial(_agreed, group)
    try:
        with torch.enable_grad(), _undisturbed(call.device):
            _prepare(call, probes["small"], process, agreed)
            first, again = (agreed(lambda: call(probes["small"], process))[0] for _ in range(2))
            if not torch.equal(first, again) and not (first.isnan() and again.isnan()):
                raise LossError(
                    "the loss is random, two calls on the same rows differ: switch off dropout, "
                    "noise and sampled negatives, or pass the part behind them"
                )
            if "labels" not in call.roles:
                del probes["labels"]
            measured = {}
            for name, probe in probes.items():
                value, gradients = agreed(partial(call, probe, process))
                every = _of_all((float(value), gradients), group)
                values, found = zip(*every, strict=True)
                measured[name] = Measured(probe=probe, values=values, gradients=found)
            dtype = _precision(
                lambda probe: agreed(lambda: call(probe, process)), probes["orthonormal"]
            )
            dtypes = _of_all(dtype, group)
            extremes = _extremes(call, probes["middle"], process, agreed)
    finally:
        if group is not None:
            dist.destroy_process_group(group)
    return Evidence(
        measured=measured, dtype=min(dtypes, key=lambda one: one.itemsize), extremes=extremes
    )


def _undisturbed(device: torch.device) -> ExitStack:
    """Random states are restored, autocast is off."""
    stack = ExitStack()
    stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
    stack.enter_context(torch.autocast(device.type, enabled=False))
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    stack.callback(np.random.set_state, numpy_state)
    stack.callback(random.setstate, python_state)
    return stack


def _prepare(call: Call, probe: Probe, process: int, agreed: Callable[..., Any]) -> None:
    """Find the dtype, and the orientation of the queue, in which the loss can be called."""
    reason: Exception | None = None
    for transposed in (False, True) if call.queued else (False,):
        for dtype in (torch.float64, torch.float32):
            call.configure(dtype, transposed)
            try:
                agreed(lambda: call(probe, process))
            except LossError:
                raise
            except Exception as error:
                reason = reason or error
            else:
                return
    fix = own_state(call.loss) or (
        "name its arguments by form=, its batch size by pairs= if it is fixed, the length of its "
        "rows by dim="
    )
    shapes = f"{probe.pairs} pairs of {probe.z1.shape[1]} features"
    raise LossError(
        f"the loss raises on {shapes} ({type(reason).__name__}: {str(reason)[:200]}): {fix}"
    ) from reason


def own_state(loss: Callable[..., Any]) -> str:
    """What to pass in place of a module with a projection or a queue inside; else empty."""
    module = _module_of(loss)
    if module is not None and any(one.ndim == 2 for one in module.parameters()):
        return "it has weights of its own (a projection?): pass the part behind them, or dim="
    if module is not None and any(one.ndim == 2 for one in module.buffers()):
        return "it has a buffer of its own (a queue?): pass a function of (q, k, queue)"
    return ""


def _precision(call: Callable[[Probe], tuple[Tensor, Any]], probe: Probe) -> torch.dtype:
    """The dtype a loss computes in: how many values it has along a line of tiny steps.

    Eight steps that change the loss by a share of 1e-10 each give 8 values in float64 and one in
    float32; steps of 2e-6 give 8 in float32 and few in half precision.
    """

    def value(step: float) -> float:
        z1, z2 = (z + step * probe.z2.roll(k, 0) for k, z in ((1, probe.z1), (2, probe.z2)))
        return call(replace(probe, z1=z1, z2=z2))[0].item()

    slope = abs(value(0.01) - value(0)) / max(1.0, abs(value(0))) / 0.01

    def distinct(change: float) -> int:
        return len({value(k * change / slope) for k in range(8)})

    if slope == 0 or distinct(1e-10) > 5:
        return torch.float64
    return torch.float32 if distinct(2e-6) > 5 else torch.float16


def _extremes(
    call: Call, probe: Probe, process: int, agreed: Callable[..., Any]
) -> tuple[str, ...]:
    """Where the loss or its gradient is not finite in float32: equal or opposite positives."""
    call.configure(torch.float32, call.transposed)
    found = []
    for name, z2 in (("equal", probe.z1), ("opposite", -probe.z1)):
        try:
            value, gradients = agreed(lambda z2=z2: call(replace(probe, z2=z2.clone()), process))
        except Exception:  # the loss takes float64 only
            return ()
        if not (value.isfinite() and all(one.isfinite().all() for one in gradients)):
            found.append(name)
    return tuple(found)


# --- Several processes ---


def _of_all(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _agreed(group: dist.ProcessGroup | None, do: Callable[[], Any]) -> Any:
    """What `do` returns; an error in one process raises in all of them."""
    reason, result = None, None
    try:
        result = do()
    except Exception as error:
        reason = error
    texts = _of_all(None if reason is None else f"{type(reason).__name__}: {reason}", group)
    failed = {rank: text for rank, text in enumerate(texts) if text is not None}
    if not failed:
        return result
    first = [rank for rank, text in failed.items() if not GIVEN_UP.search(text)]
    if reason is not None and len(first) == len(texts):
        raise reason
    rank = (first or list(failed))[0]
    raise LossError(f"the loss raises in process {rank} of {len(texts)}: {failed[rank]}")


def spawned(call: Call, world: int, pairs: int | None, dim: int, seed: int) -> Evidence:
    """Start processes of a gloo group and return the evidence of the first.

    Forked, so that lambdas can be passed; spawned where a device is in use, which fork breaks.
    """
    method = "spawn" if torch.cuda.is_available() else "fork"
    context: Any = mp.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        ends, children = [], []
        for rank in range(world):
            here, there = context.Pipe(duplex=False)
            arguments = (there, rank, world, folder, call.original, call.tau, call.roles)
            child = context.Process(target=_child, args=(*arguments, pairs, dim, seed), daemon=True)
            try:
                child.start()
            except Exception as reason:  # pickle's errors have no common class
                raise LossError(
                    f"the loss cannot be sent to other processes ({reason}): define it at the top "
                    "of a module"
                ) from None
            there.close()
            ends.append(here)
            children.append(child)
        try:
            return _received(ends, children)
        finally:
            for child in children:
                child.kill()
                child.join()


def _received(ends: Sequence[Any], children: Sequence[Any]) -> Evidence:
    """The first answer: evidence, or the error of a process."""
    ready: list[Any] = list(wait(ends, timeout=SECONDS))
    for end in ready:
        try:
            answer = pickle.loads(end.recv_bytes())
        except EOFError:
            continue
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]
    if not ready:
        raise LossError(
            f"the processes have not answered in {SECONDS} s: does a rank wait for others?"
        )
    raise LossError("a process has died without an answer: does the loss work in one process?")


def _child(end: Any, rank: int, world: int, folder: str, *rest: Any) -> None:
    """One process: join the group, measure, answer."""
    loss, tau, roles, pairs, dim, seed = rest
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    warnings.simplefilter("ignore")
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world,
            timeout=timedelta(seconds=PATIENCE),
        )  # fmt: skip
        evidence = evidence_of(Call(loss, tau, roles), pairs, dim, seed)
        answer: Any = evidence
    except Exception as reason:
        answer = reason if isinstance(reason, LossError) else LossError(
            f"the loss raises in process {rank} of {world}: {type(reason).__name__}: {reason}"
        )  # fmt: skip
    if rank == 0 or isinstance(answer, Exception):
        end.send_bytes(pickle.dumps(answer))  # plain bytes: tensors would be shared, and vanish
    else:
        time.sleep(SECONDS)  # the first answers
