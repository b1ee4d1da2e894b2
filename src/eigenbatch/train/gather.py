"""Rows of all processes with gradients, so that every loss covers the global batch."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.processes import all_gather, all_reduce, rank_and_world


def gather_rows(rows: Tensor) -> Tensor:
    """(b, ...) of each process -> (world * b, ...), in rank order, differentiable.

    Every process must hold as many rows. The gradient that reaches a process's rows is the sum over
    the losses of all processes; with DDP's averaging and losses that are means over a process's own
    anchors, parameters get the gradient of the mean over the global batch.
    """
    _, size = rank_and_world()
    if size == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.count = len(rows)
        return torch.cat(all_gather(rows))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = all_reduce(gradient.contiguous())
        start = dist.get_rank() * ctx.count
        return total[start : start + ctx.count]
