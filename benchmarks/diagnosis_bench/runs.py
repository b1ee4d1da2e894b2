"""The training loops of the bench: plain torch, none of the library's trainer."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from benchmarks.diagnosis_bench.cases import Case
from benchmarks.diagnosis_bench.data import Pairs, Pictures
from benchmarks.diagnosis_bench.models import Encoder, Scale
from eigenbatch import Contrast, Neighbours, SpectralMonitor
from eigenbatch.monitor import Reading

EVERY = 25
MARKED = 32  # words that are replaced by a mark


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    readings: list[Reading]
    quality: float  # kNN accuracy of the backbone, or R@10 of held-out pairs
    std: float  # of the last embeddings, times sqrt(d)
    rankme: float  # of the last embeddings


class Loop:
    """Data, batches, optimiser and monitor of one run."""

    def __init__(self, case: Case, *, seed: int) -> None:
        self.case = case
        self.generator = torch.Generator().manual_seed(seed)
        self.fixed: Tensor | None = None
        self.table: Tensor | None = None  # the last embedding of every sample, for hard batches
        self.readings: list[Reading] = []
        self.last = torch.zeros(2, 2)

    def ids(self, count: int) -> Tensor:
        """Rows of the next batch."""
        case, size = self.case, self.case.batch
        if self.fixed is not None and case.same_batch:
            return self.fixed
        if self.table is not None and not (self.table == 0).all(1).any():  # all samples were seen
            return Neighbours(case.hard)(self.table, size, generator=self.generator)
        order = torch.randperm(count, generator=self.generator)
        if case.hard and self.table is not None:
            order = order[
                (self.table[order] != 0).any(1).int().argsort(stable=True)
            ]  # unseen first
        self.fixed = order[: size // 2].repeat(2) if case.twice else order[:size]
        return self.fixed

    def note(self, rows: Tensor, z: Tensor, count: int) -> None:
        """Store embeddings that hard batches are chosen by."""
        if self.case.hard:
            if self.table is None:
                self.table = torch.zeros(count, z.shape[1])
            self.table[rows] = normalize(z.detach())

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW, or SGD where the case asks for it."""
        case = self.case
        if case.sgd:
            return torch.optim.SGD(parameters, case.rate, momentum=0.9)
        return torch.optim.AdamW(parameters, case.rate, weight_decay=case.decay)

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, step: int) -> None:
        """One update; the rate is warmed up or lowered where the case asks for it."""
        case = self.case
        factor = min(1.0, (step + 1) / case.warmup) if case.warmup else 1.0
        factor *= case.tune if step >= case.before else 1.0
        for group in optimizer.param_groups:
            group["lr"] = case.rate * factor
        optimizer.zero_grad()
        (-loss if case.loss == "ascent" else loss).backward()
        optimizer.step()

    def view(self, x: Tensor, marks: Tensor | None) -> Tensor:
        """Crop, flip, colour and noise, drawn for each picture and view; a mark survives them."""
        strength = self.case.augment
        if strength:
            x = self._cropped(x, strength)
            colours = (len(x), x.shape[1], 1, 1)
            gain, light = torch.rand(2, *colours, generator=self.generator) - 0.5
            x = x * (1 + strength * gain) + 0.3 * strength * light
            x = x + 0.05 * strength * torch.randn(x.shape, generator=self.generator)
        if marks is None:
            return x
        if self.case.mark == "light":
            return x + 4 * marks[:, :1, None, None]
        x = x.clone()
        x[:, :, 0, :] = marks[:, None, : x.shape[3]]
        return x

    def _cropped(self, x: Tensor, strength: float) -> Tensor:
        colour = x.shape[1] == 3
        n, smallest = len(x), 1 - (0.5 if colour else 0.25) * strength
        draw = torch.rand(4, n, generator=self.generator)
        size = smallest + (1 - smallest) * draw[0]
        theta = torch.zeros(n, 2, 3)
        mirrored = torch.where((draw[1] < 0.5) & torch.tensor(colour), -1.0, 1.0)
        theta[:, 0, 0], theta[:, 1, 1] = size * mirrored, size
        theta[:, :, 2] = ((1 - size) * (2 * draw[2:] - 1)).T
        grid = affine_grid(theta, list(x.shape), align_corners=False)
        return grid_sample(x, grid, padding_mode="border", align_corners=False)

    def shuffled(self, z: Tensor) -> Tensor:
        """The second side with some pairs wrong."""
        wrong = int(self.case.wrong * len(z))
        return torch.cat([z[:wrong].roll(1, 0), z[wrong:]]) if wrong else z

    def keep(self, reading: Reading | None, z: Tensor) -> None:
        """Remember a reading and the embeddings behind it."""
        if reading is not None:
            self.readings.append(reading)
            self.last = z.detach()

    def outcome(self, quality: float) -> Outcome:
        """What the run ended with."""
        z = normalize(self.last.double())
        if not z.isfinite().all():
            return Outcome(self.readings, quality, float("nan"), float("nan"))
        values = torch.linalg.svdvals(z).square()
        shares = values / values.sum()
        rank = float(torch.special.entr(shares).sum().exp())
        std = float(z.std(0).mean()) * z.shape[1] ** 0.5
        return Outcome(self.readings, quality, std, rank)


def ntxent(z: Tensor, case: Case, scale: Tensor | float) -> Tensor:
    """NT-Xent, with the mistake that the case asks for."""
    rows = z if case.loss == "raw" else normalize(z)
    logits = rows @ rows.T * scale
    if case.loss != "unmasked":
        logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    reduction = "sum" if case.loss == "sum" else "mean"
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z) // 2), reduction=reduction)


def simclr(case: Case, data: Pictures, *, seed: int) -> Outcome:
    torch.manual_seed(seed)
    loop = Loop(case, seed=seed)
    images, marks, ids = _prepared(case, data, loop.generator)
    encoder = Encoder(case, tuple(images.shape[1:]))
    scale = Scale(case)
    optimizer = loop.optimizer([*encoder.parameters(), *scale.parameters()])
    monitor = SpectralMonitor(scale.told_tau, every=EVERY, quiet=True)
    for step in range(case.before + case.steps + 1):
        rows = loop.ids(len(images))
        shown = None if marks is None else marks[rows]
        views = [loop.view(images[rows], shown) for _ in range(2)]
        views[1] = loop.shuffled(views[1])
        z = encoder(torch.cat(views))
        if case.loss == "nan" and step >= 150:
            z = z * torch.nan
        loss = ntxent(z, case, scale())
        first, second = (z if case.loss == "raw" else normalize(z)).chunk(2)
        told = ids[rows] if case.ids else None
        if step >= case.before:
            loop.keep(monitor(first, second, loss=loss.detach(), ids=told), z)
        loop.note(rows, first, len(images))
        if case.loss == "nan" and step >= 150:
            continue
        loop.step(optimizer, loss, step)
    return loop.outcome(knn(encoder, data))


def _prepared(
    case: Case, data: Pictures, generator: torch.Generator
) -> tuple[Tensor, Tensor | None, Tensor]:
    images = data.train[: case.samples or None]
    ids = torch.arange(len(images)).repeat(case.repeats)
    images = images.repeat(case.repeats, 1, 1, 1)
    if case.blank:
        images = images.clone()
        images[torch.rand(len(images), generator=generator) < case.blank] = 0.0
        if case.augment:
            ids = torch.arange(len(images))
    marks = 2 * torch.rand(len(images), 32, generator=generator) if case.mark else None
    return images, marks, ids


def moco(case: Case, data: Pictures, *, seed: int) -> Outcome:
    torch.manual_seed(seed)
    loop = Loop(case, seed=seed)
    images, marks, _ = _prepared(case, data, loop.generator)
    encoder = Encoder(case, tuple(images.shape[1:]))
    slow = copy.deepcopy(encoder)
    optimizer = loop.optimizer(list(encoder.parameters()))
    queue = normalize(torch.randn(case.queue_size, case.dimension, generator=loop.generator))
    queue_ids = torch.full((case.queue_size,), -1)
    monitor = SpectralMonitor(case.tau, every=EVERY, quiet=True)
    for step in range(case.before + case.steps + 1):
        rows = loop.ids(len(images))
        shown = None if marks is None else marks[rows]
        query = normalize(encoder(loop.view(images[rows], shown)))
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), encoder.parameters(), strict=True):
                mine.lerp_(theirs, 1 - case.momentum)
            key = normalize(slow(loop.view(images[rows], shown)))
        logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1) / case.tau
        loss = cross_entropy(logits, torch.zeros(len(query), dtype=torch.long))
        told = queue_ids if case.ids and not case.queue else None
        if step >= case.before:
            contrast, value = Contrast.queued(query, key, queue), loss.detach()
            loop.keep(monitor(contrast=contrast, loss=value, ids=rows, queue_ids=told), query)
        loop.step(optimizer, loss, step)
        if case.queue == "random" or (case.queue == "stale" and step > 8 and step % 150):
            continue
        queue = torch.cat([key, queue])[: case.queue_size]
        queue_ids = torch.cat([rows, queue_ids])[: case.queue_size]
    return loop.outcome(knn(encoder, data))


def towers(case: Case, data: Pairs, *, seed: int) -> Outcome:
    torch.manual_seed(seed)
    loop = Loop(case, seed=seed)
    size = len(data.first) - data.held_out
    first, second, group = (
        side[:size][: case.samples or None].repeat(case.repeats, *([1] * (side.ndim - 1)))
        for side in (data.first, data.second, data.group)
    )
    sides = [Encoder(case, tuple(first.shape[1:])) for _ in range(2)]
    if case.label_free:
        second, sides[1] = first, sides[0]
    if case.mark:
        codes = torch.rand(len(first), MARKED, generator=loop.generator).round()
        first, second = (torch.cat([codes, side[:, MARKED:]], 1) for side in (first, second))
    kept = torch.arange(first.shape[1]) < MARKED * (case.mark == "row")  # words without dropout
    scale = Scale(case)
    learnt = {"first": sides[1:], "second": sides[:1]}.get(case.frozen, sides)
    optimizer = loop.optimizer(
        [*dict.fromkeys(one for side in learnt for one in side.parameters()), *scale.parameters()]
    )
    monitor = SpectralMonitor(scale.told_tau, every=EVERY, quiet=True)
    target = torch.arange(case.batch)
    for step in range(case.before + case.steps + 1):
        rows = loop.ids(len(first))
        drop = torch.rand(2, len(rows), first.shape[1], generator=loop.generator) > 0.1
        drop |= kept
        za = normalize(sides[0](first[rows] * drop[0]))
        zb = normalize(sides[1](loop.shuffled(second[rows] * drop[1])))
        logits = za @ zb.T * scale()
        loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
        loss = loss * (len(rows) if case.loss == "sum" else 1)
        told = group[rows] if case.ids else None
        if step >= case.before:
            loop.keep(monitor(za, zb, layout="cross", loss=loss.detach(), ids=told), za)
        loop.note(rows, za, len(first))
        loop.step(optimizer, loss, step)
    return loop.outcome(recall(sides, data))


@torch.no_grad()
def knn(encoder: Encoder, data: Pictures) -> float:
    """Nearest-neighbour accuracy of the backbone in percent."""
    encoder.eval()
    bank, query = (normalize(encoder.backbone(x)) for x in (data.train, data.test))
    if not torch.isfinite(bank).all():
        return 0.0
    votes = data.train_labels[(query @ bank.T).topk(5, 1).indices]  # (m, 5)
    return 100 * (votes.mode(1).values == data.test_labels).float().mean().item()


@torch.no_grad()
def recall(sides: list[Encoder], data: Pairs) -> float:
    """R@10 of held-out pairs in percent."""
    held = slice(-data.held_out, None)
    za, zb = (
        normalize(side.eval()(rows[held]))
        for side, rows in zip(sides, (data.first, data.second), strict=True)
    )
    best = (za @ zb.T).topk(10, 1).indices
    return 100 * (best == torch.arange(len(za))[:, None]).any(1).float().mean().item()


RUN = {"simclr": simclr, "moco": moco, "towers": towers}
