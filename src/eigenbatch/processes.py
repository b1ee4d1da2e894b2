"""The processes of a distributed run: who this is, and rows of all of them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def initialized() -> bool:
    """Whether a default process group exists."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """Which process this is and how many there are; (0, 1) without torch.distributed."""
    return (dist.get_rank(), dist.get_world_size()) if initialized() else (0, 1)


def in_any_process(fact: bool) -> bool:
    """Whether it is so in at least one process; all of them must ask."""
    return bool(all_reduce(torch.tensor([int(fact)])).item()) if initialized() else fact


def of_all_processes(value: Any) -> list[Any]:
    """What each process gives, in rank order; any plain object."""
    if not initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sending_device(wanted: torch.device, group: dist.ProcessGroup | None = None) -> torch.device:
    """The device itself if the group can send from there; NCCL, for one, sends from GPUs only."""
    able = [one.partition(":")[0] for one in dist.get_backend_config(group).split(",")]
    return wanted if wanted.type in able else torch.device(able[0])


def all_gather(part: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """The tensors of all processes, in rank order; every process holds the same shape."""
    sent = part.to(sending_device(part.device, group)).contiguous()
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, sent, group=group)
    return [one.to(part.device) for one in parts]


def all_reduce(values: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The element-wise sum over all processes, a new tensor."""
    sent = values.to(sending_device(values.device, group), copy=True)
    dist.all_reduce(sent, group=group)
    return sent.to(values.device)
