"""Run under torchrun: gradients of one global batch, averaged over the processes by DDP."""

import sys

import torch
import torch.distributed as dist
from test_methods import batch, linear
from torch.nn.parallel import DistributedDataParallel

from eigenbatch.train import methods


def main(name, path):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    options = {"queue_size": 64, "dim": 8} if name == "MoCo" else {}
    method = DistributedDataParallel(getattr(methods, name)(*linear(), **options).double())
    for seed in range(2):  # the second MoCo batch sees a queue filled by both processes
        views = [x.chunk(world)[rank] for x in batch(seed, b=16)]
        method.zero_grad()
        method(views[0].double(), views[1].double(), views[2]).loss.backward()
    if rank == 0:
        torch.save([p.grad for p in method.parameters() if p.grad is not None], path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
