"""One of two processes: gradients of one global batch, averaged over both by DDP."""

import sys

import torch
import torch.distributed as dist
from test_methods import METHODS, gradients
from torch.nn.parallel import DistributedDataParallel

from eigenbatch.train.devices import _leave_group


def main(rank, store, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    found = {
        name: gradients(DistributedDataParallel(make()), rank=int(rank), world=2)
        for name, make in METHODS.items()
    }
    if rank == "0":
        torch.save(found, path)
    dist.barrier()
    _leave_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
