"""The processes of a distributed run: who this is, and rows of all of them."""

import torch
import torch.distributed as dist
from torch import Tensor


def initialized() -> bool:
    """Whether a default process group exists."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """Which process this is and how many there are; (0, 1) without torch.distributed."""
    return (dist.get_rank(), dist.get_world_size()) if initialized() else (0, 1)


def all_gather(part: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """The tensors of all processes, in rank order; every process holds the same shape."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group=group)
    return parts
