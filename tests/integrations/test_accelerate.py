"""A loop with accelerate."""

import json
import logging

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from eigenbatch import (
    EmbeddingCache,
    IndexedDataset,
    Neighbours,
    SpectralBatchSampler,
    SpectralMonitor,
    StopOn,
)
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.accelerate import SpectralWatch
from eigenbatch.runs import read_run

pytestmark = pytest.mark.slow


class Kept(GeneralTracker):
    name, requires_logging_directory = "kept", False

    def __init__(self):
        super().__init__()
        self.logged = []

    @property
    def tracker(self):
        return self.logged

    @on_main_process
    def store_init_configuration(self, values):
        pass

    @on_main_process
    def log(self, values, step=None, **_):
        self.logged.append((step, values))


def accelerator(tmp_path, tracker=None):
    made = Accelerator(
        cpu=True,
        log_with=tracker,
        project_dir=tmp_path,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )
    if tracker is not None:
        made.init_trackers("test")
    return made


def views(seed=0, n=32):
    z = torch.randn(2, n, 8, generator=torch.Generator().manual_seed(seed))
    return z[0], z[0] + 0.5 * z[1]


def test_readings_are_logged_at_their_steps_and_recorded(tmp_path):
    tracker = Kept()
    monitor = SpectralMonitor(0.2, every=2, quiet=True)
    with SpectralWatch(accelerator(tmp_path, tracker), monitor, record=tmp_path / "run") as watch:
        readings = [watch(*views(seed), loss=2.0, knn=0.1 * seed) for seed in range(5)]
    steps = [step for step, reading in enumerate(readings, start=1) if reading is not None]
    assert [step for step, _ in tracker.logged] == steps
    assert all("spectral/miss" in values for _, values in tracker.logged)
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.series["knn"].value.tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert run.series["spectral/miss"].step.tolist() == steps
    assert run.series["loss"].value.tolist() == [2.0] * len(steps)


def test_a_finding_is_said_once_and_can_stop(tmp_path, caplog):
    same = torch.ones(32, 8) + 1e-4 * torch.randn(32, 8)
    watch = SpectralWatch(
        accelerator(tmp_path),
        SpectralMonitor(0.2, every=1),
        stop_on=StopOn("collapsing"),
        record=tmp_path / "run",
    )
    with caplog.at_level(logging.WARNING, "eigenbatch"), watch:
        while not watch.should_stop:
            watch(same, same)
    said = [record.message for record in caplog.records if "critical: collapsing" in record.message]
    assert len(said) == 1
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert "collapsing" in json.loads(last)["stopped"]


def trained(tmp_path, *, stop=None, resume=False):
    """Ids of all batches of two epochs; interrupted after `stop` batches, or resumed."""
    torch.manual_seed(0)
    made = accelerator(tmp_path)
    data = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    cache = EmbeddingCache(64, dim=4, towers=2)
    sampler = SpectralBatchSampler(cache, 16, Neighbours(), shard=False)
    model, loader = made.prepare(
        nn.Linear(8, 4), DataLoader(IndexedDataset(TensorDataset(data)), batch_sampler=sampler)
    )
    watch = SpectralWatch(made, SpectralMonitor(0.2, every=3, quiet=True), sampler=sampler)
    if resume:
        made.load_state(tmp_path / "saved")
        loader.iteration = watch.epoch
    seen = []
    for _ in range(watch.epoch, 2):
        for ids, (x,) in loader:
            with torch.no_grad():
                z = normalize(model(x))
            watch(z, z + 0.1, ids=ids)
            seen.append(ids.tolist())
            if len(seen) == stop:
                made.save_state(tmp_path / "saved")
                return seen
    return seen


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_a_resumed_loop_goes_on_with_the_same_batches(tmp_path, stop):
    whole = trained(tmp_path)
    assert trained(tmp_path, stop=stop) == whole[:stop]
    assert trained(tmp_path, resume=True) == whole[stop:]


def test_bad_use_is_explained(tmp_path):
    made = accelerator(tmp_path)
    with pytest.raises(TypeError, match="accelerator"):
        SpectralWatch(None, SpectralMonitor(0.2))
    watch = SpectralWatch(made, SpectralMonitor(0.2), cache=EmbeddingCache(64, dim=8))
    with pytest.raises(ParameterError, match="pass ids="):
        watch(*views())


def test_the_record_of_a_resumed_run_has_every_step_once(tmp_path, caplog):
    def run(first, last, *, resumed=False):
        made = accelerator(tmp_path)
        monitor = SpectralMonitor(0.2, every=1, quiet=True)
        with SpectralWatch(made, monitor, record=tmp_path / "run") as watch:
            if resumed:
                made.load_state(str(tmp_path / "saved"))
            for step in range(first, last + 1):
                watch(*views(step))
                if step == 3:
                    made.save_state(str(tmp_path / "saved"))

    run(1, 5)
    run(4, 8, resumed=True)
    found = read_run(tmp_path / "run")
    assert found.finished
    assert found.series["spectral/loss"].step.tolist() == list(range(1, 9))
    assert "was logged after step" not in caplog.text


def test_processes_that_take_turns_with_batches_cannot_resume_a_sampler(tmp_path, monkeypatch):
    turns = Accelerator(cpu=True)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    sampler = SpectralBatchSampler(EmbeddingCache(64, 8), 16, Neighbours(), shard=False)
    with pytest.raises(ParameterError, match="split_batches=True"):
        SpectralWatch(turns, SpectralMonitor(0.1), sampler=sampler)
    SpectralWatch(accelerator(tmp_path), SpectralMonitor(0.1), sampler=sampler)
