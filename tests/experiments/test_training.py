"""Whole runs on digits: resumed ones equal uninterrupted ones bit for bit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from eigenbatch.errors import ParameterError, RowError
from eigenbatch.experiments.config import TrainConfig, recipes
from eigenbatch.experiments.run_directory import RunDirectory, RunError
from eigenbatch.experiments.training import train
from eigenbatch.train.checkpoint import CheckpointError, load_safely, save_atomically
from eigenbatch.train.loop import Observer

SMALL = TrainConfig(  # 5 batches an epoch
    epochs=2,
    batch_size=240,
    width=4,
    dim=16,
    selector="greedy-16",
    evaluate_every=2,
    queue_size=500,
)


class StopAfter(Observer):
    def __init__(self, step):
        self.step = step

    def on_step(self, training, step):
        training.stop = training.step == self.step


class Crash(Observer):
    """An error in the middle of a step."""

    def on_step(self, training, step):
        if training.step == 7:
            raise MemoryError


class CtrlC(Observer):
    """Ctrl-C in the middle of a step or of what follows an epoch."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def on_step(self, training, step):
        if training.step == self.step:
            signal.raise_signal(signal.SIGINT)

    def on_epoch(self, training):
        if training.epoch == self.epoch:
            signal.raise_signal(signal.SIGINT)


def run(config, path, **options):
    return train(config, path, accelerator="cpu", devices=1, **options)


def reproducible(line, workers):
    """Without times; with workers the sampler's figures are those of a batch drawn ahead."""
    hidden = ("sampler/",) if workers else ()
    return {k: v for k, v in line.items() if "seconds" not in k and not k.startswith(hidden)}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "simclr", "selector": "recipe"},
        {"method": "moco", "coverage": "free"},
        {"method": "supcon", "coverage": "stream", "whiten_period": 2},
    ],
    ids=lambda o: o["method"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, options, workers):
    config = dataclasses.replace(SMALL, workers=workers, **options)
    whole = run(config, tmp_path / "whole")
    run(config, tmp_path / "cut", observers=[StopAfter(3)])
    run(config, tmp_path / "cut", resume=True, observers=[StopAfter(7)])
    cut = run(config, tmp_path / "cut", resume=True)
    assert cut.finished
    states = [load_safely(d.checkpoint) for d in (whole, cut)]
    for name in ("method", "step", "epoch", "rng"):
        flat = [torch.utils._pytree.tree_leaves(state[name]) for state in states]
        for a, b in zip(*flat, strict=True):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name
    lines = [[reproducible(line, workers) for line in d.read_metrics()] for d in (whole, cut)]
    assert lines[0] == lines[1]


def test_a_run_learns_and_writes_what_it_did(tmp_path):
    directory = run(TrainConfig(epochs=3, selector="greedy-16"), tmp_path / "run")
    manifest = json.loads(directory.manifest.read_text())
    assert manifest["config"]["selector"] == "greedy-16"
    assert manifest["versions"]["torch"] == torch.__version__
    metrics = directory.read_metrics()
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert len(losses) == 33
    assert losses[-1] < losses[0] - 0.5
    assert {"knn", "linear", "linear_5_labels", "rankme", "finished"} <= set(metrics[-1])
    assert any("spectral/sigma_hat" in line for line in metrics)
    assert any("sampler/participation_ratio" in line for line in metrics)


def steps_and_facts(directory):
    return [reproducible(line, 0) for line in directory.read_metrics()]


@pytest.mark.parametrize(
    ("end", "error", "saved"),
    [
        (CtrlC(step=7), KeyboardInterrupt, 7),
        (CtrlC(epoch=1), KeyboardInterrupt, 5),
        (CtrlC(epoch=2), KeyboardInterrupt, 10),
        (Crash(), MemoryError, 5),  # back to the end of the epoch before
    ],
    ids=["step", "epoch", "last epoch", "error"],
)
def test_however_a_run_ends_the_resumed_one_misses_nothing(tmp_path, end, error, saved):
    config = dataclasses.replace(SMALL, evaluate_every=1)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(error):
        run(config, tmp_path / "run", observers=[end])
    assert load_safely(tmp_path / "run" / "checkpoint.pt")["step"] == saved
    resumed = run(config, tmp_path / "run", resume=True)
    assert steps_and_facts(resumed) == steps_and_facts(whole)


ONE_STOPS = """
import sys
from pathlib import Path

from eigenbatch.experiments.config import TrainConfig
from eigenbatch.experiments.training import train
from eigenbatch.train.loop import Observer


class StopInOneProcess(Observer):
    def on_step(self, training, step):
        if training.fabric.global_rank == 1 and training.step == 3:
            training.stop = True


config = TrainConfig(epochs=2, batch_size=240, width=4, dim=16)
train(config, Path(sys.argv[1]), accelerator="cpu", observers=[StopInOneProcess()])
"""


@pytest.mark.slow
def test_when_one_process_stops_all_do_at_the_same_step(tmp_path):
    (tmp_path / "script.py").write_text(ONE_STOPS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", tmp_path / "script.py", tmp_path / "run"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=240,
    )  # fmt: skip
    lines = RunDirectory(tmp_path / "run").read_metrics()
    assert max(line["step"] for line in lines) == 3
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    whole = run(SMALL, tmp_path / "whole")
    run(SMALL, tmp_path / "run", observers=[StopAfter(3)])
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert steps_and_facts(run(SMALL, tmp_path / "run", resume=True)) == steps_and_facts(whole)


def test_a_run_in_use_is_left_alone(tmp_path):
    directory = run(SMALL, tmp_path, observers=[StopAfter(1)])
    with directory.metrics.open("a") as file:
        file.write('{"step": 2}\n')  # its owner is past the checkpoint
    before = directory.metrics.read_text()
    with directory.locked(), pytest.raises(RunError, match="in use by another process"):
        run(SMALL, tmp_path, resume=True)
    assert directory.metrics.read_text() == before


def test_another_run_is_never_overwritten(tmp_path):
    run(SMALL, tmp_path / "run", observers=[StopAfter(1)])
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match="already holds a run"):
        run(SMALL, tmp_path / "run")
    with pytest.raises(RunError, match=r"tau: 0\.2 -> 0\.5"):
        run(dataclasses.replace(SMALL, tau=0.5), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="nothing to resume"):
        run(SMALL, tmp_path / "other", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_files_that_are_no_run_are_left_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"foo": 1}\n5\n')
    with pytest.raises(RunError, match="belongs to no run"):
        run(SMALL, tmp_path)
    for content in ("{", "{}", '{"config": 3}'):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(RunError, match=r"manifest\.json is damaged"):
            run(SMALL, tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"foo": 1}\n5\n'


def test_settings_that_this_version_does_not_know_are_not_resumed(tmp_path):
    directory = run(SMALL, tmp_path, observers=[StopAfter(1)])
    manifest = json.loads(directory.manifest.read_text())
    manifest["config"]["sharpness"] = 9
    directory.manifest.write_text(json.dumps(manifest))
    with pytest.raises(RunError, match="sharpness: 9 -> None"):
        run(SMALL, tmp_path, resume=True)


class Fail(Observer):
    def __init__(self, reason):
        self.reason = reason

    def on_step(self, training, step):
        raise self.reason


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (RowError("row 0 of z holds NaN"), "run, step 1: row 0 of z holds NaN"),
        (OSError(28, "No space left on device"), "run: .*No space left"),
    ],
)
def test_errors_in_training_name_the_run(tmp_path, reason, message):
    with pytest.raises(RunError, match=message):
        run(SMALL, tmp_path / "run", observers=[Fail(reason)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"negatives": "mixed"}, "set method=moco"),
        ({"method": "moco", "whiten_period": 5}, "whiten_period is for simclr"),
        ({"momentum": 2.0}, "momentum must be in"),
        ({"queue_size": 0}, "queue_size must be at least 1"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"test_images": -3}, "test_images must be at least 1"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings, message):
    with pytest.raises(ParameterError, match=message):
        TrainConfig(**settings)


def test_a_finished_run_is_not_run_again(tmp_path):
    run(SMALL, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert run(SMALL, tmp_path / "run", resume=True).finished
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.metrics.write_text('{"step": 1, "seconds": 2.0}\n{"step": 2, "sec')
    assert directory.read_metrics() == [{"step": 1, "seconds": 2.0}]
    directory.forget_after(0)
    assert directory.read_metrics() == []


def test_a_checkpoint_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.pt"
    save_atomically({"version": 1, "step": 1}, path)

    def fails(state, file):
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(OSError, match="disk full"):
        save_atomically({"version": 1, "step": 2}, path)
    assert load_safely(path)["step"] == 1


def test_an_unusable_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        load_safely(tmp_path / "absent.pt")
    (tmp_path / "bad.pt").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_safely(tmp_path / "bad.pt")
    save_atomically({"version": 99}, tmp_path / "new.pt")
    with pytest.raises(CheckpointError, match="version"):
        load_safely(tmp_path / "new.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "mnist"}, "data must be one of"),
        ({"method": "byol"}, "method must be one of"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"data": "cifar10"}, "--data-dir"),
        ({"encoder": "resnet18", "width": 4}, "multiple of 8"),
    ],
)
def test_bad_settings_raise_before_anything_is_written(options, message):
    with pytest.raises(ParameterError, match=message):
        TrainConfig(**options)


@pytest.mark.parametrize("supported", [True, False])
def test_half_precision_is_used_only_where_the_processor_has_it(monkeypatch, supported):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    expected = "bf16-mixed" if supported else "32-true"
    assert recipes()["cifar10-cpu"].config.precision == expected


def test_the_papers_settings_are_recipes():
    named = recipes()
    assert named["imagenet100"].config.batch_size == 512
    assert named["imagenet100"].config.optimizer == "lars"
    assert named["cifar10"].config.epochs == 400
    assert named["moco-imagenet100"].config.queue_size == 65_536
    assert named["imagenet1k"].config.encoder == "resnet50"


@pytest.mark.slow
@pytest.mark.parametrize("name", recipes())
def test_every_recipe_takes_a_few_steps_at_reduced_size(tmp_path, name):
    config = dataclasses.replace(
        recipes()[name].config, data="digits", data_dir=None, image_size=32, width=8, dim=16,
        batch_size=16, pool_size=64, queue_size=64, epochs=1, workers=0, precision="32-true",
    )  # fmt: skip
    directory = run(config, tmp_path / "run", observers=[StopAfter(3)])
    losses = [line["loss"] for line in directory.read_metrics() if "loss" in line]
    assert len(losses) == 3


def test_readings_events_and_the_untrained_encoder_are_on_record(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = dataclasses.replace(SMALL, read_every=2, evaluate_every=1)
    directory = run(config, tmp_path, observers=[StopAfter(3)])
    run(config, tmp_path, resume=True)
    lines = directory.read_metrics()
    assert [line["step"] for line in lines if "rankme" in line] == [0, 5, 10, 10]
    readings = [line for line in lines if "eigenvalues" in line]
    assert [line["step"] for line in readings] == [1, 3, 5, 7, 9]
    for line in readings:
        assert line["eigenvalues"] == sorted(line["eigenvalues"], reverse=True)
        assert all({"name", "severity", "evidence", "advice"} == set(d) for d in line["diagnoses"])
    events = EventAccumulator(str(tmp_path)).Reload()
    written = {scalar.step: scalar.value for scalar in events.Scalars("loss")}
    assert written == pytest.approx({li["step"]: li["loss"] for li in lines if "loss" in li})
    assert "spectral/gradient" in events.Tags()["scalars"]


def test_frozen_features_are_probed_on_another_data_set(tmp_path):
    config = dataclasses.replace(
        SMALL, epochs=1, train_images=300, test_images=100, batch_size=100, transfer="digits"
    )
    last = run(config, tmp_path).read_metrics()[-1]
    assert 0.1 < last["transfer_linear"] <= 1
    assert 0.1 < last["transfer_knn"] <= 1
    assert 0.1 < last["linear_sgd"] <= 1


def test_the_same_seed_sees_long_tailed_data_of_the_size_asked_for(tmp_path):
    config = dataclasses.replace(SMALL, epochs=1, train_images=300, copies=3, batch_size=50)
    steps = [line["step"] for line in run(config, tmp_path).read_metrics() if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]
