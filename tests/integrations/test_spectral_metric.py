"""A real torchmetrics Metric, alone and on two processes."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchmetrics import MetricCollection

from eigenbatch.core.spectrum import participation_ratio, spectrum
from eigenbatch.errors import ShapeError
from eigenbatch.integrations.torchmetrics import SpectralMetric

ROWS = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))


def updated(*batches):
    metric = SpectralMetric(6)
    for batch in batches:
        metric.update(batch)
    return metric


def test_batches_accumulate_to_the_spectrum_of_all_rows() -> None:
    values = updated(ROWS[:20], ROWS[20:]).compute()
    cloud = spectrum(ROWS)
    assert values["spectral/sigma_hat"] == pytest.approx(cloud.top)
    assert values["spectral/entropy_rank"] == pytest.approx(cloud.entropy_rank)
    unbiased = participation_ratio(ROWS, unbiased=True)
    assert values["spectral/participation_ratio_unbiased"] == pytest.approx(unbiased)


def test_reset_forgets_and_forward_gives_the_batch_alone() -> None:
    metric = updated(ROWS)
    metric.reset()
    batch_value = metric(ROWS[:10])["spectral/sigma_hat"]
    assert batch_value == pytest.approx(spectrum(ROWS[:10]).top)
    assert metric.compute()["spectral/sigma_hat"] == pytest.approx(batch_value.item())


def test_it_joins_a_metric_collection() -> None:
    collection = MetricCollection({"embeddings": SpectralMetric(6)})
    collection.update(ROWS)
    assert any(name.endswith("spectral/sigma_hat") for name in collection.compute())


def test_the_state_does_not_grow_with_the_rows() -> None:
    metric = updated(*ROWS.split(5))
    numbers = metric.count.numel() + metric.sum.numel() + metric.second.numel()
    assert numbers == 1 + 6 + 36


def test_another_dimension_is_refused() -> None:
    with pytest.raises(ShapeError, match="dimension 5 but the metric 6"):
        SpectralMetric(6).update(ROWS[:, :5])


def work(rank, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
    values = updated(ROWS[rank::2]).compute()
    torch.save(values, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_compute_what_one_computes(tmp_path) -> None:
    mp.spawn(work, (tmp_path,), nprocs=2)
    alone = updated(ROWS).compute()
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone)
