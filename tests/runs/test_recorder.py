"""A record written from any loop is the one our trainer writes, and is read back whole."""

import json
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from eigenbatch import Recorder, SpectralMonitor
from eigenbatch.errors import ArgumentTypeError, ParameterError, RunError
from eigenbatch.integrations.sinks import JsonLines
from eigenbatch.report.build import build
from eigenbatch.runs import RunDirectory, commit, find_runs, read_run, write_atomically
from small_runs import small, start


def readings(count=3):
    monitor = SpectralMonitor(0.2, every=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        z = torch.randn(32, 16, generator=generator)
        yield monitor(z + 0.3 * torch.randn(32, 16, generator=generator), z)


def test_three_lines_in_any_loop_make_a_finished_run(tmp_path):
    with Recorder(tmp_path / "mine", config={"lr": 0.1, "seed": 3}) as run:
        for step, reading in enumerate(readings(), start=1):
            run.log(step, loss=torch.tensor(1.0 / step), knn=np.float32(0.5), mine=step)
            run.reading(reading)
    record = read_run(tmp_path / "mine")
    assert record.finished
    assert not record.problems
    assert record.settings == {"lr": 0.1, "seed": 3}
    assert record.series["loss"].value.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert record.series["mine"].step.tolist() == [1, 2, 3]
    assert record.accuracy.value.tolist() == [0.5] * 3
    assert len(record.metrics.records["eigenvalues"]) == 3
    _, diagnoses = record.metrics.records["findings"][0]
    assert {"name", "severity", "evidence", "advice"} == set(diagnoses[0])


def test_the_names_are_those_of_our_trainer(tmp_path):
    ours = read_run(start(small("evaluation.read_every=1"), tmp_path / "ours").path)
    with Recorder(tmp_path / "theirs") as run:
        for reading in readings():
            run.reading(reading)
    theirs = read_run(tmp_path / "theirs")
    spectral = {name for name in ours.series if name.startswith("spectral/")}
    spectral -= {"spectral/movement"}  # needs 64 pairs
    assert spectral <= set(theirs.series)
    sink = JsonLines(tmp_path / "sink" / "metrics.jsonl")
    for reading in readings():
        sink(reading)
    lines = {}
    for name in ("theirs", "sink"):
        first = (tmp_path / name / "metrics.jsonl").read_text().splitlines()[0]
        lines[name] = {k: v for k, v in json.loads(first).items() if "seconds" not in k}
    assert lines["theirs"] == lines["sink"]


def test_a_run_without_a_manifest_is_a_run(tmp_path):
    sink = JsonLines(tmp_path / "metrics.jsonl")
    for reading in readings():
        sink(reading)
    record = read_run(tmp_path)
    assert record.config is None
    assert record.problems == ()
    assert not record.finished
    assert find_runs([tmp_path]) == find_runs([tmp_path / "metrics.jsonl"]) == [tmp_path.resolve()]


def test_an_error_leaves_the_run_unfinished_and_says_why(tmp_path):
    def train():
        with Recorder(tmp_path / "run") as run:
            run.log(1, loss=1.0)
            raise ZeroDivisionError("no batch")

    with pytest.raises(ZeroDivisionError):
        train()
    record = read_run(tmp_path / "run")
    assert not record.finished
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["stopped"] == "ZeroDivisionError: no batch"


def test_values_that_are_not_finite_are_left_out_and_a_loss_becomes_null(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(1, loss=math.nan, knn=math.inf, other=1.0)
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["loss"] is None
    assert "knn" not in line
    assert line["other"] == 1.0


def test_a_run_is_never_overwritten_but_can_be_resumed_with_its_clock(tmp_path):
    path = tmp_path / "run"
    recorder = Recorder(path)
    recorder.log(1, loss=2.0)
    first = read_run(path).metrics.end[2]
    with pytest.raises(RunError, match="already holds a run"):
        Recorder(path)
    with Recorder(path, resume=True) as run:
        run.log(2, loss=1.0)
    record = read_run(path)
    assert record.series["loss"].value.tolist() == [2.0, 1.0]
    assert record.metrics.end[2] > first
    with pytest.raises(RunError, match="finished"):
        Recorder(path, resume=True)


@pytest.mark.parametrize("path", ["", None, 3, "."])
def test_a_path_must_name_a_folder(path):
    with pytest.raises(ParameterError, match="path must name a folder"):
        Recorder(path)


@pytest.mark.parametrize("step", [-1, 1.5, "1", None, True])
def test_a_step_is_a_whole_number(tmp_path, step):
    with Recorder(tmp_path / "run") as run, pytest.raises(ParameterError, match="step must be"):
        run.log(step, loss=1.0)


def test_steps_of_numpy_and_torch_are_steps(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(np.int64(1), loss=1.0)
        run.log(torch.tensor(2), loss=1.0)
    assert read_run(tmp_path / "run").series["loss"].step.tolist() == [1, 2]


def test_steps_that_begin_anew_every_epoch_are_said_once(tmp_path, caplog):
    with Recorder(tmp_path / "run") as run:
        for step in (0, 1, 0, 1, 0):
            run.log(step, loss=1.0)
    assert [one.message for one in caplog.records if "over all epochs" in one.message] == [
        f"{tmp_path / 'run'}: step 0 was logged after step 1. Count steps over all epochs, or "
        "curves and final values are wrong"
    ]


@pytest.mark.parametrize("epoch", [-1, "1", math.nan, math.inf, True, torch.ones(2)])
def test_an_epoch_is_a_number(tmp_path, epoch):
    with Recorder(tmp_path / "run") as run, pytest.raises(ParameterError, match="epoch must be"):
        run.log(1, epoch=epoch, loss=1.0)


def test_epochs_of_numpy_and_torch_are_epochs(tmp_path):
    with Recorder(tmp_path / "run") as run:
        for step, epoch in enumerate([0, np.int64(1), torch.tensor(2), 2.5]):
            run.log(step, epoch=epoch, loss=1.0)
    assert read_run(tmp_path / "run").series["loss"].epoch.tolist() == [0, 1, 2, 2.5]


def test_percent_is_said_once(tmp_path, caplog):
    with Recorder(tmp_path / "run") as run:
        run.log(1, accuracy=0.9, loss=5.0)
        run.log(2, accuracy=81.5)
        run.log(3, accuracy=82.5)
    assert [one.message for one in caplog.records] == [
        f"{tmp_path / 'run'}: accuracy = 81.5 was logged. Log shares from 0 to 1, not percent: the "
        "report shows them as percent"
    ]


@pytest.mark.parametrize("name", ["step", "seconds", "cpu_seconds", "finished", "findings"])
def test_the_place_of_a_line_is_not_overwritten(tmp_path, name):
    with Recorder(tmp_path / "run") as run, pytest.raises(ParameterError, match=name):
        run.log(8, {name: 99})


def test_a_run_is_resumed_from_the_step_of_a_checkpoint(tmp_path):
    with Recorder(tmp_path / "run") as run:
        for step in range(1, 6):
            run.log(step, loss=step)
        run.stop("power cut")
    for end in (9, 12):  # the second time the run is finished already
        with Recorder(tmp_path / "run", resume=True, until=3) as run:
            for step in range(4, end):
                run.log(step, loss=10 * step)
        found = read_run(tmp_path / "run")
        assert found.finished
        assert found.series["loss"].step.tolist() == list(range(1, end))
        assert found.series["loss"].value[:4].tolist() == [1, 2, 3, 40]
    with Recorder(tmp_path / "epochs") as run:
        run.log(1, loss=1, epoch=1)
        run.stop("power cut")
    with Recorder(tmp_path / "epochs", resume=True, until=1) as run:
        run.log(2, loss=1)
    assert read_run(tmp_path / "epochs").series["loss"].epoch.tolist() == [1, 1]
    with Recorder(tmp_path / "damaged") as run:
        run.log(1, loss=1)
    record = tmp_path / "damaged" / "metrics.jsonl"
    record.write_text('{"step": 1, "loss": 1}\n[]\n{"step": "x"}\n{"loss": 2}\nx\n')
    with Recorder(tmp_path / "damaged", resume=True, until=1) as run:
        run.log(2, loss=1)
    assert len(record.read_text().splitlines()) == 7
    with Recorder(tmp_path / "new") as run:
        run.stop("at once")
    with Recorder(tmp_path / "new", resume=True, until=0) as run:
        run.log(0, loss=1)
    assert read_run(tmp_path / "new").finished


def test_a_run_that_was_stopped_stays_unfinished(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(1, loss=1.0)
        run.stop("collapsed")
    assert not read_run(tmp_path / "run").finished


def test_a_finished_run_takes_no_more_lines(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(1, loss=1.0)
    with pytest.raises(RunError, match="is finished"):
        run.log(2, loss=1.0)
    assert read_run(tmp_path / "run").finished


def test_an_error_after_the_end_is_the_callers_own(tmp_path):
    def train():
        with Recorder(tmp_path / "run") as run:
            run.log(1, loss=1.0)
            run.finish()
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert read_run(tmp_path / "run").finished


def test_where_there_is_no_run_nothing_is_resumed(tmp_path):
    with pytest.raises(RunError, match="nothing to resume"):
        Recorder(tmp_path / "run", resume=True)


def test_config_must_be_a_mapping_or_a_dataclass(tmp_path):
    with pytest.raises(RunError, match="mapping or a dataclass, got str"):
        Recorder(tmp_path / "run", config="lr=1")


def test_of_two_processes_one_makes_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "check_free", lambda self: None)  # both look, then both write
    Recorder(tmp_path, config={"rank": 0})
    with pytest.raises(RunError, match="only rank 0 may record"):
        Recorder(tmp_path, config={"rank": 1})
    assert RunDirectory(tmp_path).read_manifest()["config"] == {"rank": 0}


def test_the_commit_of_a_run_is_that_of_the_users_project(tmp_path, monkeypatch):
    for words in (["init", "-q"], ["-c", "user.name=u", "-c", "user.email=e", "commit", "-q",
                                   "--allow-empty", "-m", "first"]):  # fmt: skip
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    Recorder("run")
    manifest = RunDirectory(tmp_path / "run").read_manifest()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert manifest["commit"] == head[:12]
    assert manifest["eigenbatch_commit"] == commit() != manifest["commit"]


def test_a_folder_is_not_overwritten_by_a_file(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(RunError, match="is a folder"):
        write_atomically(tmp_path / "page.html", b"page")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]


def test_two_recorders_cannot_hold_one_lock(tmp_path):
    directory = RunDirectory(tmp_path)
    with directory.locked(), pytest.raises(RunError, match="in use"), directory.locked():
        pass
    with directory.locked():
        pass


def test_a_fifo_in_place_of_a_record_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    record = read_run(tmp_path)
    assert "not a regular file" in record.problems[0]
    with pytest.raises(RunError, match="not a regular file"):
        Recorder(tmp_path, resume=True)


def test_wrong_values_are_named(tmp_path):
    run = Recorder(tmp_path / "run")
    with pytest.raises(ParameterError, match=r"loss must be one number, got shape \(3,\)"):
        run.log(1, loss=torch.ones(3))
    with pytest.raises(ParameterError, match=r"note must be a number, got \{1\}"):
        run.log(1, note={1})
    with pytest.raises(ArgumentTypeError, match="reading must be a Reading"):
        run.reading({"loss": 1})
    with pytest.raises(ArgumentTypeError, match="reason must be a text"):
        run.stop(3)


HOLDS = """
import os, sys, time
from pathlib import Path
from eigenbatch.report.build import build
from eigenbatch.runs import RunDirectory

with RunDirectory(Path(sys.argv[1])).locked():
    if os.fork() == 0:  # a loader worker
        time.sleep(60)
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_killed_run_frees_its_lock_though_its_workers_live_on(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="in use"), RunDirectory(tmp_path).locked():
            pass
        process.kill()
        process.wait()
        with RunDirectory(tmp_path).locked():
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_deeply_nested_and_wrongly_typed_files_are_read_without_an_error(tmp_path):
    nested = 3
    for _ in range(480):
        nested = {"deeper": nested}
    manifest = {"config": nested | {"list": [[1], {}]}, "commit": [1]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    lines = [{"step": [], "loss": 1}, {"step": 1, "loss": {"a": 1}, "findings": 4, "knn": "x"}, 7]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = read_run(tmp_path)
    assert "nested too deeply" in record.settings.values()
    assert record.problems
    build([tmp_path], tmp_path / "page.html")


def test_lists_and_mappings_with_tensors_and_nan_end_no_training(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(1, hist=[1.0, math.nan, torch.tensor(2.0)], norms={"a": math.inf, 3: np.float32(4)})
        with pytest.raises(ParameterError, match=r"norms\.b must be a number, got <object"):
            run.log(2, norms={"b": object()})
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["hist"] == [1.0, None, 2.0]
    assert line["norms"] == {"a": None, "3": 4.0}


def test_settings_that_json_lacks_become_text_and_the_page_is_built(tmp_path):
    for name, clip in {"none": math.inf, "some": 1.0}.items():
        with Recorder(tmp_path / name, {"clip": clip, ("a", 1): 2}) as run:
            run.log(1, knn=0.5)
    assert read_run(tmp_path / "none").settings == {"clip": "Infinity", "('a', 1)": 2}
    old = tmp_path / "some" / "manifest.json"
    old.write_text(old.read_text().replace('"clip": 1.0', '"clip": NaN'))  # of an earlier version
    build([tmp_path], tmp_path / "page.html")


def test_a_reading_has_the_step_it_is_given(tmp_path):
    with Recorder(tmp_path / "run") as run:
        for step, reading in enumerate(readings(3)):
            run.reading(reading, 10 * step)
        run.log(40, knn=0.5)
    assert read_run(tmp_path / "run").series["spectral/gradient"].step.tolist() == [0, 10, 20]


def test_a_flipped_byte_of_a_finished_run_is_noticed_wherever_it_is(tmp_path):
    with Recorder(tmp_path / "run", config={"tau": 0.1, "epochs": 3}) as run:
        run.log(1, loss=2.5)
        run.log(2, knn=0.25)
    file = tmp_path / "run" / "metrics.jsonl"
    whole = file.read_bytes()
    assert read_run(tmp_path / "run").finished
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(bytes(damaged))
        record = read_run(tmp_path / "run")
        assert not record.finished or record.problems, bytes(damaged)


def test_edited_settings_of_a_finished_run_are_noticed_and_a_longer_budget_is_none(tmp_path):
    with Recorder(tmp_path / "run", config={"tau": 0.1, "budget": {"epochs": 3}}) as run:
        run.log(1, knn=0.25)
    manifest = tmp_path / "run" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"epochs": 3', '"epochs": 5'))
    assert read_run(tmp_path / "run").finished
    manifest.write_text(text.replace('"tau": 0.1', '"tau": 0.5'))
    record = read_run(tmp_path / "run")
    assert not record.finished
    assert record.problems


def test_edited_settings_are_not_resumed(tmp_path):
    run = Recorder(tmp_path / "run", config={"tau": 0.1})
    run.log(1, loss=2.0)
    mark = run.mark
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("0.1", "0.5"))
    with pytest.raises(RunError, match="beside it has other settings"):
        Recorder(tmp_path / "run", resume=True, until=mark)


def test_side_files_never_touch_what_is_not_ours(tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    (directory.path / "lock").symlink_to(precious)
    with pytest.raises(RunError, match="cannot be used as a lock"), directory.locked():
        pass
    (directory.path / "lock").unlink()
    os.mkfifo(directory.path / "lock")
    with pytest.raises(RunError, match="plain file"), directory.locked():
        pass
    (tmp_path / "note.txt.partial").symlink_to(precious)
    write_atomically(tmp_path / "note.txt", b"whole")
    assert (tmp_path / "note.txt").read_text() == "whole"
    assert precious.read_text() == "mine"
    assert not list(tmp_path.glob(".note*"))


def test_what_a_killed_run_left_of_a_checkpoint_is_removed_under_the_lock(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    left = directory.path / ".checkpoint.pt.123-abcd.partial"
    left.write_bytes(b"half")
    (directory.path / "mine.partial").write_bytes(b"mine")
    with directory.locked():
        assert not left.exists()
    assert (directory.path / "mine.partial").exists()
