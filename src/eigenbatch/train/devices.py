"""Where a run computes: one process on the CPU, or whatever Lightning's Fabric sets up.

Importing Fabric costs seconds. A run in float32 on the CPU needs nothing of it, so such a run does
not import it; results are the same bit by bit.
"""

import atexit
import gc
import os
import random
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


class Devices(Protocol):
    """The part of Fabric that the trainer uses."""

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        ...

    @property
    def global_rank(self) -> int:
        """Which process this is."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        ...

    def launch(self) -> Any:
        """Start the other processes, if there are any."""
        ...

    def setup(self, module: nn.Module, optimizer: Optimizer, /) -> Any:
        """Put both on the device; returns them, perhaps wrapped."""
        ...

    def backward(self, tensor: Tensor, /) -> None:
        """Compute gradients."""
        ...

    def all_reduce(self, data: Tensor, /) -> Any:
        """The mean over all processes."""
        ...


class SingleCPU:
    """One process on the CPU in float32."""

    device = torch.device("cpu")
    global_rank = 0
    world_size = 1

    def launch(self) -> None:
        """There is nothing to start."""

    def setup(self, module: nn.Module, optimizer: Optimizer, /) -> tuple[nn.Module, Optimizer]:
        """Both as they are."""
        return module, optimizer

    def backward(self, tensor: Tensor, /) -> None:
        """Compute gradients."""
        tensor.backward()  # type: ignore[no-untyped-call]

    def all_reduce(self, data: Tensor, /) -> Tensor:
        """The value itself."""
        return data


def open_devices(accelerator: str, devices: int | str, precision: Precision) -> Devices:
    """The devices that a run asks for; under torchrun its processes, whatever `devices` says."""
    nodes, several = 1, devices not in ("auto", 1)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        several = nodes * devices > 1
    if not several and precision == "32-true" and _is_cpu(accelerator):
        return SingleCPU()
    from lightning.fabric import Fabric

    if several:
        atexit.register(_leave_group)
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if several else "auto",
        precision=precision,
    )


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch, for a whole run of our trainer.

    Augmentations and users' encoders draw from them. Nothing below the trainer does.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The state of every generator that `seed_everything` seeds, in this process."""
    numpy_state: Any = np.random.get_state()  # noqa: NPY002
    _, keys, *place = numpy_state
    return {
        "python": random.getstate(),
        "numpy": [torch.from_numpy(keys.astype(np.int64)), *place],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continue from `random_state`; what it lacks, as of a run on the CPU, stays as it is."""
    if "python" in state:
        random.setstate(state["python"])
        keys, *place = state["numpy"]
        np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *place))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state.get("cuda") is not None:
        torch.cuda.set_rng_state(state["cuda"])


def loss_scaler(devices: Devices) -> Any:
    """What scales the loss in 16-mixed, with a state of its own; None on a single CPU."""
    return getattr(getattr(devices, "strategy", None), "precision", None)


def _leave_group() -> None:
    """End the process group while Python still runs; Fabric does so for NCCL alone.

    Gloo's threads let go of tensors a moment after a collective has returned. A process that ends
    within this moment dies with "terminate called without an active exception", and torchrun
    reports a finished run as failed.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # a model in a reference cycle would keep the group, and its threads, alive
        torch.distributed.destroy_process_group()


def _is_cpu(accelerator: str) -> bool:
    """Whether this means the CPU on this machine."""
    if accelerator == "cpu":
        return True
    return (
        accelerator == "auto"
        and not torch.cuda.is_available()
        and not torch.backends.mps.is_available()
        and "XRT_TPU_CONFIG" not in os.environ
        and "TPU_NAME" not in os.environ
    )
