"""Whole runs on digits: resumed ones equal uninterrupted ones bit for bit."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import rich.style  # noqa: F401  its import draws a number from Python's generator
import torch
from PIL import Image
from torch import nn

from eigenbatch.errors import RowError, RunError
from eigenbatch.runs import RunDirectory, read_run
from eigenbatch.train import loop
from eigenbatch.train.assembly import assemble
from eigenbatch.train.checkpoint import Checkpoint
from eigenbatch.train.checkpoint_file import load_checkpoint, save_checkpoint
from eigenbatch.train.devices import SingleCPU
from eigenbatch.train.loop import Observer, Training
from eigenbatch.train.observers import FillCache
from eigenbatch.train.recipes import RECIPES, recipe
from eigenbatch.train.run import Run
from eigenbatch.train.settings import override
from small_runs import SMALL, StopAfter, facts, lines, small, start

pytestmark = pytest.mark.slow


def saved(directory):
    return load_checkpoint(directory.checkpoint, print)


class Crash(Observer):
    """An error in the middle of a step."""

    def on_step(self, training, step):
        if training.step == 7:
            raise ZeroDivisionError


class CtrlC(Observer):
    """Ctrl-C in the middle of a step or of what follows an epoch."""

    def __init__(self, step=None, epoch=None):
        self.step, self.epoch = step, epoch

    def on_start(self, training):
        if self.step == 0 and not training.resumed:
            signal.raise_signal(signal.SIGINT)

    def on_step(self, training, step):
        if training.step == self.step:
            signal.raise_signal(signal.SIGINT)

    def on_epoch(self, training):
        if training.epoch == self.epoch:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        ["method=simclr", "batches.selector=recipe"],
        ["method=moco", "method.queue_size=500", "batches.replace=true"],
        ["method=supcon", "batches.selector=p1-p3", "method.whiten_period=2"],
        ["batches.selector=neighbours", "batches.fill_cache=yes", "batches.fill_step=2"],
    ],
    ids=["recipe", "replace", "supcon", "filled"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, options, workers):
    run = small(f"data.workers={workers}", *options)
    whole = start(run, tmp_path / "whole")
    start(run, tmp_path / "cut", observers=[StopAfter(3)])
    start(run, tmp_path / "cut", resume=True, observers=[StopAfter(7)])
    cut = start(run, tmp_path / "cut", resume=True)
    assert read_run(cut.path).finished
    states = [saved(d) for d in (whole, cut)]
    for name in ("method", "step", "epoch", "generators"):
        flat = [torch.utils._pytree.tree_leaves(state[name]) for state in states]
        for a, b in zip(*flat, strict=True):
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert same, name
    assert facts(whole) == facts(cut)


class Draws(Observer):
    """What an encoder or an augmentation of a user's own would draw."""

    def __init__(self):
        self.drawn = {}

    def on_step(self, training, step):
        numbers = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
        self.drawn[training.step] = numbers


def test_every_global_generator_goes_on_where_it_was(tmp_path):
    whole, first, second = Draws(), Draws(), Draws()
    start(SMALL, tmp_path / "whole", observers=[whole])
    start(SMALL, tmp_path / "cut", observers=[first, StopAfter(3)])
    start(SMALL, tmp_path / "cut", observers=[second], resume=True)
    assert first.drawn | second.drawn == whole.drawn
    assert next(iter(second.drawn)) == 4


def test_a_checkpoint_from_before_other_generators_were_saved_is_resumed(tmp_path):
    directory = start(SMALL, tmp_path, observers=[StopAfter(3)])
    state = load_checkpoint(directory.checkpoint, print)
    states = [one["torch"] for one in state["generators"]]
    older = {"generators": states, "cuda_generators": []}
    save_checkpoint(state | older, directory.checkpoint)
    assert read_run(start(SMALL, tmp_path, resume=True).path).finished


def test_a_run_learns_and_writes_what_it_did(tmp_path):
    run = override(Run(), ["budget.epochs=3", "batches.selector=greedy-16"])
    directory = start(run, tmp_path / "run")
    manifest = json.loads(directory.manifest.read_text())
    assert manifest["config"]["batches"]["selector"] == "greedy-16"
    assert manifest["versions"]["torch"] == torch.__version__
    metrics = lines(directory)
    losses = [line["loss"] for line in metrics if "loss" in line]
    assert len(losses) == 33
    assert losses[-1] < losses[0] - 0.5
    assert {"knn", "linear", "linear_5_labels", "rankme", "finished"} <= set(metrics[-1])
    assert any("spectral/sigma_hat" in line for line in metrics)
    assert any("sampler/participation_ratio" in line for line in metrics)


@pytest.mark.parametrize(
    ("end", "error", "step"),
    [
        (CtrlC(step=0), KeyboardInterrupt, 0),
        (CtrlC(step=7), KeyboardInterrupt, 7),
        (CtrlC(epoch=1), KeyboardInterrupt, 5),
        (CtrlC(epoch=2), KeyboardInterrupt, 10),
        (Crash(), ZeroDivisionError, 5),  # back to the end of the epoch before
    ],
    ids=["start", "step", "epoch", "last epoch", "error"],
)
def test_however_a_run_ends_the_resumed_one_misses_nothing(tmp_path, end, error, step):
    run = small("evaluation.every=1", "batches.fill_cache=yes", "batches.fill_step=0")
    whole = start(run, tmp_path / "whole")
    with pytest.raises(error):
        start(run, tmp_path / "run", observers=[end])
    assert saved(RunDirectory(tmp_path / "run"))["step"] == step
    resumed = start(run, tmp_path / "run", resume=True)
    assert facts(resumed) == facts(whole)


def test_a_request_to_stop_during_the_exchange_is_not_lost(monkeypatch):
    training = Training(SingleCPU(), nn.Linear(2, 2), None, None, loader=[], epochs=1)
    monkeypatch.setattr(SingleCPU, "world_size", 2)

    def during(wanted, operation):
        training.stop = True

    monkeypatch.setattr(loop.dist, "all_reduce", during)
    assert not loop._stopped(training)  # the other processes do not know of it yet
    monkeypatch.setattr(loop.dist, "all_reduce", lambda wanted, operation: None)
    assert loop._stopped(training)


ONE_STOPS = """
import sys
from pathlib import Path

from eigenbatch.train import Observer, Run, override, train


class StopInOneProcess(Observer):
    def on_step(self, training, step):
        if training.fabric.global_rank == 1 and training.step == 3:
            training.stop = True


run = override(Run(), ["budget.epochs=2", "batches.batch_size=240", "encoder.width=4"])
train(run, Path(sys.argv[1]), accelerator="cpu", observers=[StopInOneProcess()])
"""


def test_when_one_process_stops_all_do_at_the_same_step(tmp_path):
    (tmp_path / "script.py").write_text(ONE_STOPS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", tmp_path / "script.py", tmp_path / "run"],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=240,
    )  # fmt: skip
    assert max(line["step"] for line in lines(RunDirectory(tmp_path / "run"))) == 3
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path):
    whole = start(SMALL, tmp_path / "whole")
    start(SMALL, tmp_path / "run", observers=[StopAfter(3)])
    (tmp_path / "run" / "checkpoint.pt").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert facts(start(SMALL, tmp_path / "run", resume=True)) == facts(whole)


def test_a_run_in_use_is_left_alone(tmp_path):
    directory = start(SMALL, tmp_path, observers=[StopAfter(1)])
    with directory.metrics.open("a") as file:
        file.write('{"step": 2}\n')  # its owner is past the checkpoint
    before = directory.metrics.read_text()
    with directory.locked(), pytest.raises(RunError, match="in use by another process"):
        start(SMALL, tmp_path, resume=True)
    assert directory.metrics.read_text() == before


def test_another_run_is_never_overwritten(tmp_path):
    start(SMALL, tmp_path / "run", observers=[StopAfter(1)])
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match="already holds a run"):
        start(SMALL, tmp_path / "run")
    with pytest.raises(RunError, match=r"method.tau: 0\.2 -> 0\.5"):
        start(small("method.tau=0.5"), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="nothing to resume"):
        start(SMALL, tmp_path / "other", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_files_that_are_no_run_are_left_alone(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"foo": 1}\n5\n')
    with pytest.raises(RunError, match="exists already"):
        start(SMALL, tmp_path)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("mine")
        with pytest.raises(RunError, match=f"{name} exists already"):
            start(SMALL, tmp_path / name)
        assert (tmp_path / name / name).read_text() == "mine"
    for content in ("{", "{}", '{"config": 3}'):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(RunError, match=r"manifest\.json"):
            start(SMALL, tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"foo": 1}\n5\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sharpness": 9}, "no setting 'sharpness'"),
        ({"seed": "zero"}, "seed must be a whole number"),
        ({"method": {"kind": "byol"}}, "method must be one of"),
        ({"method": 5}, "method must be a JSON object"),
        ({"budget": {"epochs": True}}, "budget.epochs must be a whole number"),
    ],
)
def test_a_manifest_that_does_not_fit_this_version_is_not_resumed(tmp_path, change, message):
    directory = start(SMALL, tmp_path, observers=[StopAfter(1)])
    manifest = json.loads(directory.manifest.read_text())
    manifest["config"] |= change
    directory.manifest.write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=message):
        start(SMALL, tmp_path, resume=True)


def test_a_run_of_the_first_version_is_not_resumed_and_says_so(tmp_path):
    (tmp_path / "manifest.json").write_text('{"config": {"data": "digits", "tau": 0.2}}')
    with pytest.raises(RunError, match="older version"):
        start(SMALL, tmp_path, resume=True)


def test_a_finished_run_can_be_extended_but_not_shortened(tmp_path):
    start(small("schedule=fixed"), tmp_path)
    longer = small("schedule=fixed", "budget.epochs=3")
    start(longer, tmp_path, resume=True)
    assert read_run(tmp_path).finished
    assert [line["step"] for line in lines(RunDirectory(tmp_path)) if "loss" in line] == [
        *range(1, 16)
    ]
    whole = start(longer, tmp_path.with_name("whole"))
    assert saved(whole)["step"] == 15
    assert [f for f in facts(whole) if "loss" in f] == [
        f for f in facts(RunDirectory(tmp_path)) if "loss" in f
    ]
    with pytest.raises(RunError, match="may only be raised"):
        start(small("schedule=fixed", "budget.epochs=1"), tmp_path, resume=True)


class Ended(Observer):
    def __init__(self, *, in_start=False, in_end=False):
        self.in_start, self.in_end, self.ended = in_start, in_end, 0

    def on_start(self, training):
        if self.in_start:
            raise KeyError("start")

    def on_end(self, training):
        self.ended += 1
        if self.in_end:
            raise KeyError("end")


@pytest.mark.parametrize(("place", "finished"), [("in_start", False), ("in_end", True)])
def test_every_observer_is_ended_once_whichever_fails(tmp_path, place, finished):
    watching = [Ended(), Ended(**{place: True}), Ended()]
    with pytest.raises(KeyError, match=place[3:]):
        start(SMALL, tmp_path, observers=watching)
    assert [one.ended for one in watching] == [1, 1, 1]
    assert read_run(tmp_path).finished is finished


def test_a_run_whose_last_checkpoint_fails_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoint, "on_end", lambda self, training: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(SMALL, tmp_path)
    assert not read_run(tmp_path).finished


class Fail(Observer):
    def __init__(self, reason):
        self.reason = reason

    def on_step(self, training, step):
        raise self.reason


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (RowError("row 0 of z holds NaN"), "run: row 0 of z holds NaN"),
        (OSError(28, "No space left on device"), "run: .*No space left"),
    ],
)
def test_errors_in_training_name_the_run(tmp_path, reason, message):
    with pytest.raises(RunError, match=message):
        start(SMALL, tmp_path / "run", observers=[Fail(reason)])
    run = RunDirectory(tmp_path / "run")
    assert type(reason).__name__ in lines(run)[-1]["stopped"]
    start(SMALL, run.path, resume=True)
    assert not any("stopped" in line for line in lines(run))
    assert read_run(run.path).finished


def test_a_finished_run_is_not_run_again(tmp_path):
    start(SMALL, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    start(SMALL, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("supported", [True, False])
def test_half_precision_is_used_only_where_the_processor_has_it(monkeypatch, supported):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    expected = "bf16-mixed" if supported else "32-true"
    assert recipe("cifar10-cpu").budget.resolved_precision() == expected


def test_the_papers_settings_are_recipes():
    assert recipe("imagenet100").batches.batch_size == 512
    assert recipe("imagenet100").optimizer.kind == "lars"
    assert recipe("cifar10").budget.epochs == 400
    assert recipe("moco-imagenet100").method.queue_size == 65_536
    assert recipe("imagenet1k").encoder.kind == "resnet50"


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"pairs-cpu"}))
def test_every_recipe_takes_a_few_steps_at_reduced_size(tmp_path, name):
    settings = [
        "data=digits", "data.workers=0", "views.size=32", "encoder.width=8", "method.dim=16",
        "batches.batch_size=16", "batches.pool_size=64", "budget.epochs=1",
        "budget.precision=32-true",
    ]  # fmt: skip
    settings += ["method.queue_size=64"] if "moco" in name else []
    directory = start(override(recipe(name), settings), tmp_path / "run", observers=[StopAfter(3)])
    assert len([line for line in lines(directory) if "loss" in line]) == 3


def test_readings_events_and_the_untrained_encoder_are_on_record(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = small("evaluation.read_every=2", "evaluation.every=1")
    directory = start(run, tmp_path, observers=[StopAfter(3)])
    start(run, tmp_path, resume=True)
    found = lines(directory)
    assert [line["step"] for line in found if "rankme" in line] == [0, 5, 10, 10]
    readings = [line for line in found if "eigenvalues" in line]
    assert [line["step"] for line in readings] == [1, 3, 5, 7, 9]
    for line in readings:
        assert line["eigenvalues"] == sorted(line["eigenvalues"], reverse=True)
        assert all({"name", "severity", "evidence", "advice"} == set(d) for d in line["findings"])
    events = EventAccumulator(str(tmp_path)).Reload()
    written = {scalar.step: scalar.value for scalar in events.Scalars("loss")}
    assert written == pytest.approx({li["step"]: li["loss"] for li in found if "loss" in li})
    assert "spectral/gradient" in events.Tags()["scalars"]


def test_an_interrupted_run_leaves_no_writer_behind(tmp_path):
    start(SMALL, tmp_path, observers=[StopAfter(3)])
    assert not [one for one in threading.enumerate() if "Writer" in type(one).__name__]


def test_frozen_features_are_probed_on_another_data_set(tmp_path):
    run = small(
        "budget.epochs=1", "data.train_size=300", "data.test_size=100", "batches.batch_size=100",
        "evaluation.transfer=digits", "evaluation.transfer.train_size=200",
    )  # fmt: skip
    last = lines(start(run, tmp_path))[-1]
    assert 0.1 < last["transfer_linear"] <= 1
    assert 0.1 < last["transfer_knn"] <= 1
    assert 0.1 < last["linear_sgd"] <= 1


def test_the_same_seed_sees_long_tailed_data_of_the_size_asked_for(tmp_path):
    run = small("budget.epochs=1", "data.train_size=300", "data.copies=3", "batches.batch_size=50")
    steps = [line["step"] for line in lines(start(run, tmp_path)) if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_evaluation_does_not_count_as_training_time(tmp_path, monkeypatch):
    from eigenbatch.train.data.source import ImageSource

    evaluate = ImageSource.evaluate

    def slow(self, method, *, final):
        import time

        time.sleep(0.5)
        return evaluate(self, method, final=final)

    monkeypatch.setattr(ImageSource, "evaluate", slow)
    found = lines(start(small("evaluation.every=1"), tmp_path))
    steps = sum(line["step_seconds"] + line["waited_seconds"] for line in found if "loss" in line)
    assert found[-1]["seconds"] < steps + 1.0 < steps + 2.0  # four evaluations took two seconds


def test_settings_too_large_for_the_memory_are_explained(tmp_path):
    with pytest.raises(RunError, match="not enough memory"):
        start(small("method=moco", "method.queue_size=16777216", "method.dim=4096"), tmp_path)


def test_whether_a_run_is_finished_is_asked_under_the_lock(tmp_path, monkeypatch):
    import eigenbatch.train.trainer as trainer

    start(SMALL, tmp_path)
    asked = []

    def under_lock(run, directory):
        with pytest.raises(RunError, match="in use"), directory.locked():
            pass
        asked.append(directory)
        return check(run, directory)

    check = trainer.check_resumable
    monkeypatch.setattr(trainer, "check_resumable", under_lock)
    start(SMALL, tmp_path, resume=True)
    assert len(asked) == 1
    assert (tmp_path / "metrics.jsonl").read_text().count('"finished"') == 1


@pytest.mark.parametrize("method", ["simclr", "moco"])
def test_to_fill_the_cache_leaves_training_as_it_was(method):
    assembled = assemble(small(f"method={method}"), SingleCPU())
    training, cache = assembled.training, assembled.cache
    state = {name: value.clone() for name, value in training.method.state_dict().items()}
    random_state = torch.get_rng_state()
    FillCache(cache, assembled.method, assembled.loader, None, after=0).on_start(training)
    assert (cache.fills, bool(cache.filled.all())) == (1, True)
    assert torch.equal(torch.get_rng_state(), random_state)
    after = training.method.state_dict()
    assert all(torch.equal(after[name], value) for name, value in state.items())


def planned(run):
    """For each step, whether its plan knew samples."""
    return ["sampler/mean_age" in line for line in lines(run) if "loss" in line]


def test_a_cache_filled_before_the_first_step_plans_the_first_batch(tmp_path, monkeypatch):
    fill = FillCache._fill

    def slow(self, training):
        time.sleep(5)
        fill(self, training)

    monkeypatch.setattr(FillCache, "_fill", slow)
    run = start(small("batches.fill_cache=yes", "batches.fill_step=0"), tmp_path / "run")
    assert planned(run) == [True] * 10
    first = next(line for line in lines(run) if "loss" in line)
    assert first["sampler/mean_age"] == 0
    assert first["seconds"] < 5  # the clock of the run stands still meanwhile


def test_a_filled_cache_has_both_towers(tmp_path):
    side = tmp_path / "side.txt"
    side.write_text("\n".join(f"word{i}" for i in range(200)))
    settings = [f"data.first={side}", f"data.second={side}", "batches.batch_size=20"]
    run = override(recipe("pairs-cpu"), [*settings, "data.held_out=20", "budget.epochs=1"])
    assembled = assemble(run, SingleCPU())
    fill = FillCache(assembled.cache, assembled.method, assembled.loader, None, after=0)
    fill.on_start(assembled.training)
    source = assembled.source.train
    for side, sentences in enumerate((source.first, source.second)):
        expected = nn.functional.normalize(assembled.method.embed(sentences, side))
        torch.testing.assert_close(assembled.cache.get(range(160), side), expected,
                                   atol=2e-3, rtol=0)  # fmt: skip


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_filled_after_some_steps_plans_the_first_epoch_and_resumes(tmp_path, workers):
    run = small(
        "batches.selector=neighbours", "batches.fill_cache=yes", "batches.fill_step=2",
        f"data.workers={workers}", "data.train_size=960", "batches.batch_size=80",
    )  # fmt: skip
    whole = start(run, tmp_path / "whole")
    drawn = 2 if workers == 0 else 2 + 2 * workers  # each worker draws two batches ahead
    assert planned(whole)[drawn:] == [True] * (24 - drawn)
    for step in (1, 2, 4):
        name = f"cut after {step}"
        start(run, tmp_path / name, observers=[StopAfter(step)])
        assert facts(start(run, tmp_path / name, resume=True)) == facts(whole)


@pytest.mark.parametrize(("size", "batch_size"), [(70, 69), (130, 43), (130, 2)])
def test_a_single_sample_is_no_batch_for_batch_norms(tmp_path, size, batch_size):
    """After a batch of 69 samples the 70th would be alone, as the 130th after 3 x 43."""
    run = small(f"data.train_size={size}", f"batches.batch_size={batch_size}", "budget.epochs=1",
                "batches.selector=greedy-8", "batches.fill_cache=yes",
                "batches.fill_step=0")  # fmt: skip
    assert read_run(start(run, tmp_path / "run").path).finished


@pytest.mark.parametrize(
    ("settings", "never", "filled"),
    [
        (["batches.selector=p1"], 1, 0),
        (["batches.selector=p1", "batches.fill_cache=no", "batches.fill_step=1"], 1, 0),
        (["batches.selector=p1", "batches.fill_cache=yes", "batches.fill_step=4"], 0, 1),
        (["batches.selector=p1", "batches.fill_cache=yes", "batches.fill_step=5"], 1, 0),
        (["batches.selector=p1", "budget.epochs=2"], 0, 0),
        (["batches.selector=random", "batches.fill_cache=yes"], 0, 0),
    ],
)
def test_a_run_says_whether_its_first_epoch_is_planned(tmp_path, caplog, settings, never, filled):
    start(small("budget.epochs=1", *settings), tmp_path / "run")
    assert caplog.text.count("all batches of p1 will be random") == never
    assert caplog.text.count("samples are embedded once after") == filled


def test_random_batches_need_no_filled_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(FillCache, "on_step", None)  # would raise
    run = small("batches.selector=random", "batches.fill_cache=yes", "batches.fill_step=1")
    assert read_run(start(run, tmp_path / "run").path).finished


@pytest.mark.parametrize("replace", ["true", "false"])
def test_p2_on_a_loss_plateau_is_told_the_losses_and_resumes(tmp_path, replace):
    run = small("batches.selector=p2-flat", f"batches.replace={replace}")
    whole = start(run, tmp_path / "whole")
    start(run, tmp_path / "cut", observers=[StopAfter(7)])
    cut = start(run, tmp_path / "cut", resume=True)
    assert facts(cut) == facts(whole)
    losses = [line["loss"] for line in lines(whole) if "loss" in line]
    assert saved(whole)["sampler"]["planner"]["losses"] == pytest.approx(losses, rel=1e-6)


def test_features_are_probed_on_other_images(tmp_path):
    from eigenbatch.train import probe_run
    from eigenbatch.train.data.sets.digits import DigitsConfig

    directory = start(small(), tmp_path / "run")
    accuracy = probe_run(directory.path, DigitsConfig(train_size=500, test_size=200))
    assert 0.3 < accuracy < 1


def write_pictures(folder, count=60, seed=0):
    noise = np.random.default_rng(seed)
    for split in ("train", "val"):
        for i in range(count):
            path = folder / split / f"class{i % 3}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise.integers(0, 256, (20, 28, 3), dtype=np.uint8)).save(path)


def test_a_run_goes_on_where_its_data_were_moved_to(tmp_path):
    def run(folder):
        return small(
            "data=folder", f"data.directory={tmp_path / folder}", "data.size=8",
            "batches.batch_size=16", "batches.selector=neighbours",
        )  # fmt: skip

    write_pictures(tmp_path / "pictures")
    whole = start(run("pictures"), tmp_path / "whole")
    start(run("pictures"), tmp_path / "cut", observers=[StopAfter(4)])
    (tmp_path / "pictures").rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="pictures does not exist"):
        start(run("pictures"), tmp_path / "cut", resume=True)
    cut = start(run("moved"), tmp_path / "cut", resume=True)
    assert facts(cut) == facts(whole)
    manifest = cut.read_manifest()
    assert manifest["config"]["data"]["directory"] == str(tmp_path / "moved")
    assert "extended_from" not in manifest
    write_pictures(tmp_path / "others", count=70)
    write_pictures(tmp_path / "as many", seed=1)
    start(run("moved"), tmp_path / "again", observers=[StopAfter(4)])
    with pytest.raises(RunError, match="was begun with other data"):
        start(run("as many"), tmp_path / "again", resume=True)
    with pytest.raises(RunError, match="was begun with other data"):
        start(run("others"), tmp_path / "again", resume=True)


def test_crops_of_whole_pictures_are_the_same_with_workers_and_after_a_resume(tmp_path):
    write_pictures(tmp_path / "pictures")

    def run(workers):
        return small(
            "data=folder", f"data.directory={tmp_path / 'pictures'}", "data.size=8",
            "data.whole_pictures=true", f"data.workers={workers}", "batches.batch_size=16",
        )  # fmt: skip

    whole = start(run(0), tmp_path / "whole")
    with_workers = start(run(2), tmp_path / "workers")
    start(run(2), tmp_path / "cut", observers=[StopAfter(2)])
    cut = start(run(2), tmp_path / "cut", resume=True)
    losses = [[line["loss"] for line in lines(d) if "loss" in line]
              for d in (whole, with_workers, cut)]  # fmt: skip
    assert losses[0] == losses[1] == losses[2]
