"""One process or several: how sums are made global.

Two things travel between processes. The spectrum needs only moments, which add: d^2 + d + 1
numbers in one all_reduce. The loss needs every key, exactly as the SimCLR loss itself does, so the
unit rows are gathered once; each process then looks at its own anchors only. Of two towers every
process reads the whole gathered batch.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.spectrum import Moments
from eigenbatch.errors import RowError, ShapeError
from eigenbatch.processes import all_gather, all_reduce


class Ranks(Protocol):
    """All processes that take part in a reading."""

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over processes."""

    def concatenated(self, values: Tensor) -> Tensor:
        """Rows of all processes, in rank order; every process holds equally many."""


HEADER = ("step", "layout", "method", "tau", "pairs", "dimension", "ids", "loss")
"""What must be the same in all processes."""


class SingleProcess:
    """A single process: nothing to exchange."""

    def sum(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def concatenated(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values


class ProcessGroup:
    """The processes of a group; every one of them must call at the same step."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group

    @property
    def rank(self) -> int:
        """The place of this process in the group."""
        return dist.get_rank(self._group)

    def sum(self, values: Tensor) -> Tensor:
        """All-reduced copy, on the device of `values`."""
        return all_reduce(values, self._group)

    def mean(self, value: float) -> float:
        """A number, averaged over processes."""
        total, processes = self.sum(torch.tensor([value, 1.0], dtype=torch.float64)).tolist()
        return float(total / processes)

    def concatenated(self, values: Tensor) -> Tensor:
        """All-gathered rows, on the device of `values`."""
        return torch.cat(all_gather(values, self._group))


def total_moments(local: Moments, ranks: Ranks) -> Moments:
    """Moments of all processes' rows."""
    count = local.sum.new_tensor([local.count])
    packed = ranks.sum(torch.cat([count, local.sum, local.second.flatten()]))
    d = len(local.sum)
    return Moments(
        count=int(packed[0]), sum=packed[1 : d + 1], second=packed[d + 1 :].view_as(local.second)
    )


def check_header(values: Mapping[str, float] | None, group: dist.ProcessGroup | None) -> None:
    """Raise in every process unless all call with the same kind of batch; None: cannot be read.

    One exchange of a fixed size, before any other: processes that differ would wait for each other
    for ever, or mix what does not belong together.
    """
    own = torch.full((1, len(HEADER)), torch.nan, dtype=torch.float64)
    if values is not None:
        own[0] = torch.tensor([values[name] for name in HEADER], dtype=torch.float64)
    told = ProcessGroup(group).concatenated(own)  # (world, entries)
    if values is None:
        return  # its own error is raised by the caller
    if told.isnan().any():
        raise RowError("another process holds a batch that cannot be read; its log says why")
    if differing := [name for i, name in enumerate(HEADER) if len(set(told[:, i].tolist())) > 1]:
        found = {name: told[:, HEADER.index(name)].tolist() for name in differing}
        texts = (f"{name} {', '.join(f'{v:g}' for v in each)}" for name, each in found.items())
        raise ShapeError(
            f"processes call the monitor differently, by rank: {'; '.join(texts)}. sync=True needs "
            "the same arguments, method, tau, step and number of pairs everywhere (drop_last=True)"
        )


def gathered_pairs(z1: Tensor, z2: Tensor, ranks: ProcessGroup) -> Contrast:
    """NT-Xent over all processes: this process's rows are the anchors, all rows are the keys."""
    anchors, first, second = _gathered_rows(z1, z2, ranks)
    pairs, everyone = len(anchors) // 2, len(first)
    mine = torch.arange(pairs, device=first.device) + ranks.rank * pairs  # (b,)
    itself = torch.cat([mine, mine + everyone])
    return Contrast(
        anchors=anchors,
        keys=torch.cat([first, second]),
        positive=torch.cat([mine + everyone, mine]),
        itself=itself,
    )


def gathered_towers(z1: Tensor, z2: Tensor, ranks: ProcessGroup) -> Contrast:
    """Two towers over all processes: every process holds the whole batch and reads all of it.

    Both directions, both clouds and the modality gap need all rows of both towers.
    """
    _, first, second = _gathered_rows(z1, z2, ranks)
    return Contrast(
        anchors=first, keys=second, positive=torch.arange(len(first), device=first.device)
    )


def _gathered_rows(z1: Tensor, z2: Tensor, ranks: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows: both views of this process (2b, d), then each view of all processes.

    Rows travel in the widest dtype that any process holds.
    """
    own = Contrast.paired(z1, z2).anchors  # (2b, d)
    wide = ranks.sum(torch.tensor(float(own.dtype == torch.float64)))
    own = own.to(torch.float64 if wide else torch.float32)
    first, second = (ranks.concatenated(view) for view in own.chunk(2))
    return own, first, second
