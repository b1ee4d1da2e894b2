"""Tensors travel on a device that the process group can send from."""

import pytest
import torch
import torch.distributed as dist

from eigenbatch.processes import sending_device


@pytest.mark.parametrize(
    ("backend", "sends"), [("gloo", "cpu"), ("cuda:gloo", "cuda"), ("cpu:gloo,cuda:gloo", "cpu")]
)
def test_rows_are_sent_from_where_the_group_can_send(tmp_path, backend, sends):
    """The second group sends from GPUs only, as NCCL does; caches hand over rows on the CPU."""
    meet = f"file://{tmp_path}/meet"
    dist.init_process_group(backend, init_method=meet, rank=0, world_size=1)
    try:
        assert sending_device(torch.device("cpu")).type == sends
        assert sending_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    finally:
        dist.destroy_process_group()
