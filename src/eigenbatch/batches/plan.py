"""From the ids of a part of an epoch to its batches, and what is to be said of them.

Letters: N ids, K of them known (with an embedding), n ids of a batch, B batches.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenbatch.batches.neighbours import JUDGED, miss_of
from eigenbatch.batches.planner import Planner, Random
from eigenbatch.batches.pools import candidate_ranks
from eigenbatch.batches.separate import separate
from eigenbatch.checks import described, whole
from eigenbatch.errors import ArgumentTypeError, ParameterError, ShapeError

DESCRIBED = 16
"""Batches whose effective rank is computed to describe a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was planned, and what the cached embeddings say of it.

    Args:
        planner: its name.
        batches: how many were planned.
        known: samples with an embedding; the others are in random batches.
        epoch: the epoch it is about.
        first: the first batch of the epoch that was planned, from 0.
        predicted_miss: mean miss of the planned batches at the sampler's tau; None with one tower
            or while nothing is known.
        random_miss: the same of random batches of these samples.
        participation_ratio: mean effective rank of the planned batches; NaN while nothing is known.
        random_participation_ratio: the same of random batches.
        mean_age: of the known embeddings, in updates; NaN without any.
        together: samples that stand with one that they should be kept apart from.
        seconds: time it took.
        figures: what the planner decided by.

    Examples:
        >>> import torch
        >>> from eigenbatch import EmbeddingCache, Neighbours, SpectralBatchSampler
        >>> cache = EmbeddingCache(100, dim=8, towers=2)
        >>> cache.update(range(100), *torch.randn(2, 100, 8))
        >>> sampler = SpectralBatchSampler(cache, 20, Neighbours())
        >>> ids = next(iter(sampler))
        >>> sampler.plan.known, sampler.plan.predicted_miss > 0
        (100, True)
    """

    planner: str
    batches: int
    known: int
    epoch: int = 0
    first: int = 0
    predicted_miss: float | None = None
    random_miss: float | None = None
    participation_ratio: float = math.nan
    random_participation_ratio: float = math.nan
    mean_age: float = math.nan
    together: int = 0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def scalars(self, batch: int) -> dict[str, float]:
        """Numbers about a batch of the epoch, for a logger; those that are unknown are left out."""
        age = self.mean_age + whole(batch, "batch") - self.first
        numbers = {
            "predicted_miss": self.predicted_miss,
            "random_miss": self.random_miss,
            "participation_ratio": self.participation_ratio,
            "baseline_participation_ratio": self.random_participation_ratio,
            "mean_age": age,
            "seconds": self.seconds / max(1, self.batches),
        } | self.figures
        return {
            f"sampler/{name}": value
            for name, value in numbers.items()
            if value is not None and math.isfinite(value)
        }


class Rows(Protocol):
    """What a plan reads: an `EmbeddingCache`, or matrices in files."""

    def age(self, ids: Tensor, /) -> Tensor:
        """(n,) -1 where a sample has no embedding."""
        ...

    def rows(self, ids: Tensor, /) -> Tensor:
        """(n, towers, d) float32 unit rows."""
        ...


def arranged(
    ids: Tensor,
    batch_size: int,
    cache: Rows,
    planner: Planner,
    *,
    tau: float,
    groups: Tensor | None,
    replace: bool,
    generator: torch.Generator,
) -> tuple[Tensor, Plan]:
    """Arrange ids (N,), a multiple of the batch size, into (N // n, n), in random order.

    Known ids are planned; unknown ones share random batches, and one batch holds both. With
    `replace` an id may come several times. Batches of a schedule keep their order, the random
    ones come between them.
    """
    began, n = time.perf_counter(), batch_size
    ages = cache.age(ids).cpu()
    known, rest = ids[ages >= 0], ids[ages < 0]
    rows = torch.empty(0, 1, 0)
    if isinstance(planner, Random):  # it needs no embeddings
        known, rest, rows = ids, ids[:0], torch.empty(len(ids), 1, 0)
    elif len(known) >= n:
        rows = cache.rows(known)  # (K, towers, d)
    else:
        known, rest = ids[:0], ids
    batches = planner.plan(rows, n, generator=generator) if len(known) else known.view(0, n)
    _check(batches, planner, n, len(known), replace=replace)
    batches, together = separate(
        batches,
        rows,
        groups=None if groups is None else groups[known].to(rows.device),
        apart=planner.apart,
        generator=generator,
    )
    planned = known[batches.cpu()]
    figures = _described(planned, ids[ages >= 0], cache, tau, generator)
    unused = known[torch.isin(known, planned, invert=True)]
    rest = torch.cat([unused, rest[torch.randperm(len(rest), generator=generator)]])
    rest = rest[: len(ids) - planned.numel()].view(-1, n)
    if groups is not None and len(rest):
        places = torch.arange(rest.numel()).view_as(rest)
        places, left = separate(places, rows, groups=groups[rest.flatten()], generator=generator)
        rest, together = rest.flatten()[places], together + left
    order = torch.cat([planned, rest])
    plan = Plan(
        planner=planner.name,
        batches=len(order),
        known=int((ages >= 0).sum()),
        mean_age=ages[ages >= 0].double().mean().item(),
        together=together,
        seconds=time.perf_counter() - began,
        figures=planner.figures,
        **figures,
    )
    turns = torch.randperm(len(order), generator=generator)
    if planner.ordered:
        turns[turns < len(planned)] = torch.arange(len(planned))
    return order[turns], plan


def _check(batches: object, planner: Planner, n: int, count: int, *, replace: bool) -> None:
    """Raise unless a planner returned batches of distinct rows."""
    wanted = f"{planner.name} must plan {count // n} batches of {n} from {count} rows"
    if not isinstance(batches, Tensor) or batches.dtype != torch.int64:
        raise ArgumentTypeError(f"{wanted} as a LongTensor, got {described(batches)}")
    if batches.shape != (count // n, n):
        raise ShapeError(f"{wanted}, got shape {tuple(batches.shape)}")
    flat = batches.flatten().sort().values
    twice = not replace and bool((flat[1:] == flat[:-1]).any())
    if len(flat) and (flat[0] < 0 or flat[-1] >= count or twice):
        raise ParameterError(f"{wanted}, each row at most once: got {batches.tolist()!s:.200}")


def _described(
    batches: Tensor, known: Tensor, cache: Rows, tau: float, generator: torch.Generator
) -> dict[str, Any]:
    """Miss and effective rank of planned batches of ids, and of random ones of known ids."""
    n = batches.shape[1]
    batches = batches[(cache.age(batches.flatten()) >= 0).cpu().view_as(batches).all(1)]
    batches = batches[:: -(-len(batches) // max(DESCRIBED, JUDGED // n)) or 1]
    if not len(batches):
        return {}
    random = known[torch.randperm(len(known), generator=generator)[: batches.numel()]]
    found: dict[str, Any] = {}
    for prefix, ids in (("", batches), ("random_", random.view(-1, n))):
        rows = cache.rows(ids.flatten())
        places = torch.arange(len(rows), device=rows.device).view(-1, n)
        few = places[:: -(-len(places) // DESCRIBED)]
        found[f"{prefix}participation_ratio"] = candidate_ranks(rows[few][:, :, 0]).mean().item()
        found[f"{prefix or 'predicted_'}miss"] = miss_of(rows, places, tau)
    return found
