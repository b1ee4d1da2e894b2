"""`eigenbatch train` and `eigenbatch compare`, as a user types them."""

import json
import os
import re
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from eigenbatch.cli import app
from eigenbatch.runs import RunDirectory
from small_runs import lines

pytestmark = pytest.mark.slow
SETTINGS = ["budget.epochs=1", "batches.batch_size=240", "encoder.width=4", "method.dim=16"]
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_train_writes_a_run_and_prints_its_accuracy(tmp_path):
    result = run("train", "--selector", "greedy-16", *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "knn" in result.output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["batches"]["selector"] == "greedy-16"
    assert manifest["config"]["budget"]["epochs"] == 1
    again = run("train", "--selector", "greedy-16", *SMALL, "--out", tmp_path / "run")
    assert again.exit_code == 2
    assert "already holds a run" in again.output


def test_compare_prints_one_row_a_selector(tmp_path):
    result = run("compare", "--selectors", "random,p1", "--seeds", 2, *SMALL, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "random" in result.output
    assert "p1" in result.output
    assert "2 seeds, paired" in result.output
    told = " ".join(result.output.split())
    assert "2 seeds: the gains show a direction; whether it is luck cannot be said" in told
    assert "significant" not in told
    assert "±" not in result.output
    assert told.startswith("compare: 2 selectors x 2 seeds of simclr on digits")
    assert f"runs in {tmp_path}" in result.output.replace("\n", "")


@pytest.mark.parametrize(
    ("place", "message"),
    [("./tiny.py:make", "without ./ and .py"), ("builtins:len", "needs no arguments"),
     ("sys:maxsize", "needs no arguments")],
)  # fmt: skip
def test_an_encoder_that_cannot_be_made_is_explained(tmp_path, place, message):
    result = run("train", "--encoder", place, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_comparison_has_one_place_for_selectors(tmp_path):
    result = run("compare", "--set", "batches.selector=p1", "--out", tmp_path / "runs")
    assert result.exit_code == 2
    assert "from --selectors" in " ".join(result.stderr.split())


def test_your_own_encoder_is_found_in_the_current_folder(tmp_path, monkeypatch):
    code = (
        "from torch import nn\n"
        "def tiny():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))\n"
    )
    (tmp_path / "my_tiny_encoder.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    small = [word for text in SETTINGS if "encoder" not in text for word in ("--set", text)]
    words = ["--seeds", 1, "--encoder", "my_tiny_encoder:tiny", *small]
    result = run("compare", "--selectors", "random,p1", *words, "--out", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "runs" / "p1" / "seed-0" / "manifest.json").read_text())
    assert manifest["config"]["encoder"]["function"] == "my_tiny_encoder:tiny"
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    monkeypatch.delitem(sys.modules, "my_tiny_encoder")  # as in another command
    longer = ("--resume", "--set", "budget.epochs=2", "--out", tmp_path / "runs" / "p1" / "seed-0")
    result = run("train", *longer)
    assert result.exit_code == 0, result.output


def test_pictures_without_labels_cannot_be_compared_and_pairs_are_by_rank(tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "one.png")
    folder = ["--data", tmp_path / "pictures", "--set", "data.labels=false"]
    result = run("compare", *folder, "--out", tmp_path / "none")
    assert result.exit_code == 2
    assert "data.labels=false has none" in " ".join(result.output.split())
    for name in ("first", "second"):
        lines = [f"{name}{i} word{i % 7}" for i in range(80)]
        (tmp_path / name).write_text("\n".join(lines))
    sides = [f"data.{name}={tmp_path / name}" for name in ("first", "second")]
    settings = ["data=pairs", "method=clip", "budget.epochs=1", "batches.batch_size=16", *sides]
    words = [word for text in settings for word in ("--set", text)]
    both = ["compare", "--selectors", "random,p1", "--seeds", 1]
    result = run(*both, *words, "--out", tmp_path / "pairs")
    assert result.exit_code == 0, result.output
    assert "random, seed 0: MRR 0." in result.output
    assert "kNN" not in result.output


def test_a_run_is_resumed_on_its_own_data_from_any_folder(tmp_path, monkeypatch):
    for place, classes in ((tmp_path / "here", "ab"), (tmp_path / "there", "xy")):
        for name in classes:
            (place / "pictures" / name).mkdir(parents=True)
            for i in range(10):
                Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(
                    place / "pictures" / name / f"{i}.png"
                )
    settings = ["budget.epochs=1", "batches.batch_size=8", "encoder.width=4", "data.size=8"]
    words = [word for text in settings for word in ("--set", text)]
    monkeypatch.chdir(tmp_path / "here")
    result = run("train", "--data", "pictures", *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    monkeypatch.chdir(tmp_path / "there")
    longer = run("train", "--resume", "--out", tmp_path / "run", "--set", "budget.epochs=2")
    assert longer.exit_code == 0, longer.output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["data"]["directory"] == str(tmp_path / "here" / "pictures")
    (tmp_path / "here").rename(tmp_path / "moved")
    words = ["--resume", "--out", tmp_path / "run", "--set", "budget.epochs=3"]
    lost = run("train", *words)
    assert lost.exit_code == 2
    assert "--data-dir" in lost.output
    found = run("train", *words, "--data-dir", tmp_path / "moved" / "pictures")
    assert found.exit_code == 0, found.output


def test_a_long_run_says_where_it_is_when_its_output_is_piped(tmp_path, monkeypatch):
    monkeypatch.setattr("eigenbatch.train.progress.EVERY_SECONDS", 0.0)
    result = run("train", *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("train: simclr on digits, encoder convnet, batches of")
    assert re.search(r"run: epoch 0 of 1, step 1 of \d+, loss \d", result.output)


@pytest.mark.parametrize("step", [0, 1])
def test_a_run_that_fills_its_cache_says_how_far_it_is(tmp_path, monkeypatch, step):
    monkeypatch.setattr("eigenbatch.train.progress.EVERY_SECONDS", 0.0)
    filled = ["batches.fill_cache=yes", f"batches.fill_step={step}", "batches.batch_size=50"]
    sizes = ["data.train_size=200", "data.test_size=100", "encoder.width=4", "budget.epochs=1"]
    words = [word for text in [*filled, *sizes] for word in ("--set", text)]
    result = run("train", "--selector", "p1", *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())  # lines are wrapped
    said = re.findall(r"step (\d) of 4, embedded (\d+) of (\d+) samples", output)
    assert said == [(str(step), str(done), "200") for done in (50, 100, 150, 200)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--recipe", "cifar99"], "unknown recipe"),
        (["train", "--selector", "best"], "unknown selector"),
        (["train", "--set", "data=folder", "--data-dir", "/nowhere"], "does not exist"),
        (["train", "--set", "learning=1"], "unknown name 'learning'"),
        (["train", "--set", "budget.epochs=many"], "cannot set"),
        (["train", "--set", "batches.fill_cache=all"], "one of auto, yes, no"),
        (["train", "--set", "optimizer.weight_decay=-1"], "weight_decay must be"),
        (["train", "--set", "data.workers=99999"], "workers must be"),
        (["train", "--resume"], "nothing to resume"),
        (["compare", "--target", "nan"], "target must be an accuracy"),
        (["compare", "--target", "2"], "target must be an accuracy"),
        (["train", "--recipe", "cifar10-cpu", "--data-dir", "/nowhere"], "--data-dir"),
        (["compare", "--selectors", "random"], "at least two"),
    ],
)
def test_bad_words_exit_with_two_and_say_what_is_wrong(tmp_path, arguments, message):
    result = run(*arguments, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "run").exists()


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "kornia", None)
    monkeypatch.delitem(sys.modules, "eigenbatch.train.augment", raising=False)
    result = run("train", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "pip install 'eigenbatch[train]'" in " ".join(result.output.split())


def test_a_run_on_the_cpu_does_not_import_lightning(tmp_path):
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from eigenbatch.cli import app\n"
        "done = CliRunner().invoke(app, sys.argv[1:])\n"
        "assert done.exit_code == 0, done.output\n"
        "import torch\n"
        "loaded = 'lightning' in sys.modules\n"
        "sys.exit(loaded and not torch.cuda.is_available())\n"
    )
    words = ["train", *map(str, SMALL), "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_folder_of_pictures_can_be_trained_on(tmp_path):
    for split, name in [(s, n) for s in ("train", "val") for n in ("cat", "dog")]:
        (tmp_path / "pictures" / split / name).mkdir(parents=True)
        for i in range(8):
            picture = Image.new("RGB", (12, 9), (30 * i, 90, 200 if name == "cat" else 20))
            picture.save(tmp_path / "pictures" / split / name / f"{i}.png")
    settings = [
        "data=folder", "data.size=8", "batches.batch_size=8", "budget.epochs=1",
        "encoder.width=4", "method.dim=8",
    ]  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    place = ["--data-dir", tmp_path / "pictures", "--out", tmp_path / "run"]
    result = run("train", *words, *place)
    assert result.exit_code == 0, result.output
    assert "knn" in result.output


def test_resume_needs_nothing_but_the_folder_and_may_extend_the_run(tmp_path):
    out = ["--out", tmp_path / "run"]
    assert run("train", "--selector", "greedy-16", *SMALL, *out).exit_code == 0
    finished = run("train", "--resume", *out)
    assert finished.exit_code == 0, finished.output
    longer = run("train", "--resume", *out, "--set", "budget.epochs=2")
    assert longer.exit_code == 0, longer.output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["budget"]["epochs"] == 2
    assert manifest["extended_from"] == [1]
    other = run("train", "--resume", *out, "--set", "method.tau=0.9")
    assert other.exit_code == 2
    assert "method.tau: 0.2 -> 0.9" in other.output


@pytest.mark.parametrize("command", ["train", "compare"])
def test_an_empty_out_is_refused(command):
    result = run(command, "--out", "")
    assert result.exit_code == 2
    assert "--out must name a folder" in result.output


def test_an_interrupt_before_anything_is_saved_says_so(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("eigenbatch.train.trainer.assemble", interrupted)
    result = run("train", *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert "stopped before anything was saved" in result.output


def test_recipes_are_listed():
    result = run("train", "--list-recipes")
    assert result.exit_code == 0
    assert "imagenet1k" in result.output


@pytest.mark.parametrize("command", ["train", "compare", "demo", "diagnose"])
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: eigenbatch {command}" in " ".join(result.output.split())


@pytest.mark.parametrize("launcher", ["devices", "torchrun"])
def test_two_processes_train_on_one_batch_and_one_of_them_speaks(tmp_path, launcher):
    words = ["train", "--selector", "greedy-16", *SMALL, "--out", str(tmp_path / "run")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = (
        [sys.executable, "-m", "eigenbatch", *words, "--devices", "2"]
        if launcher == "devices"
        else [*torchrun, "-m", "eigenbatch", *words]
    )
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: ") == 1
    found = lines(RunDirectory(tmp_path / "run"))
    assert [line["step"] for line in found if "loss" in line] == [1, 2, 3, 4, 5]
    assert found[-1]["finished"] == 1
    read = [line["spectral/negatives"] for line in found if "spectral/negatives" in line]
    assert set(read) == {2 * 240 - 2}  # the global batch, not one process's half


def test_common_settings_have_options_of_their_own(tmp_path):
    words = ["--epochs", 1, "--batch-size", 64, "--tau", 0.3, "--lr", 0.001, "--seed", 4]
    small = ["--set", "data.train_size=256", "--set", "encoder.width=4"]
    result = run("train", *words, *small, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert (config["budget"]["epochs"], config["batches"]["batch_size"]) == (1, 64)
    assert (config["method"]["tau"], config["optimizer"]["lr"], config["seed"]) == (0.3, 0.001, 4)
