"""The processes of a distributed run: who this is, and rows of all of them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from eigenbatch.errors import ParameterError

T = TypeVar("T")


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


def check_alike(what: str, facts: Mapping[str, Any]) -> None:
    """Raise in all processes unless all of them give the same facts."""
    for rank, other in enumerate(of_all_processes(dict(facts))):
        differing = [name for name in facts if other.get(name) != facts[name]]
        if differing:
            name = differing[0]
            raise ParameterError(
                f"the {what}s of the processes differ: {name} is {facts[name]!r} here and "
                f"{other.get(name)!r} in process {rank}. All must be made and iterated alike"
            )


def in_all_processes(do: Callable[[], None]) -> None:
    """Do something everywhere; an error in one process raises in all of them."""
    error: Exception | None = None
    try:
        do()
    except Exception as reason:
        error = reason
    texts = of_all_processes(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise ParameterError(f"process {rank} has failed: {text}")


def in_first_process(make: Callable[[], T], *, everywhere: bool = False) -> T:
    """What `make` returns in the first process, in all; an error there raises in all of them.

    everywhere: all can make it themselves, with the same result.
    """
    rank, world = rank_and_world()
    if world == 1 or everywhere:
        return make()
    made: list[Any] = [None, None]
    error: Exception | None = None
    if rank == 0:
        try:
            made[0] = make()
        except Exception as reason:
            error, made[1] = reason, f"{type(reason).__name__}: {reason}"
    dist.broadcast_object_list(made, src=0)
    if error is not None:
        raise error
    if made[1] is not None:
        raise ParameterError(f"process 0 has failed: {made[1]}")
    result: T = made[0]
    return result
