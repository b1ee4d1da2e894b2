"""`eigenbatch train` and `eigenbatch compare`, as a user types them."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from eigenbatch.cli import app
from eigenbatch.experiments.run_directory import RunDirectory

SMALL = ["--set", "epochs=1", "--set", "batch_size=240", "--set", "width=4", "--set", "dim=16"]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_train_writes_a_run_and_prints_its_accuracy(tmp_path):
    result = run("train", "--selector", "greedy-16", *SMALL, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "knn" in result.output
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["config"]["selector"] == "greedy-16"
    assert manifest["config"]["epochs"] == 1
    again = run("train", "--selector", "greedy-16", *SMALL, "--out", tmp_path / "run")
    assert again.exit_code == 2
    assert "already holds a run" in again.output


@pytest.mark.slow
def test_compare_prints_one_row_a_selector(tmp_path):
    result = run("compare", "--selectors", "random,p1", "--seeds", 2, *SMALL, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "random" in result.output
    assert "p1" in result.output
    assert "2 seeds, paired" in result.output
    assert "too few seeds for intervals" in result.output
    assert "±" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--recipe", "cifar99"], "unknown recipe"),
        (["train", "--selector", "best"], "unknown selector"),
        (["train", "--set", "data=folder", "--data-dir", "/nowhere"], "neither a folder nor a zip"),
        (["train", "--set", "learning=1"], "NAME=VALUE"),
        (["train", "--set", "epochs=many"], "cannot set"),
        (["train", "--set", "coverage=all"], "it is one of epoch, stream, free"),
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
    monkeypatch.setitem(sys.modules, "lightning.fabric", None)
    for name in [n for n in sys.modules if n.startswith("eigenbatch.experiments.training")]:
        monkeypatch.delitem(sys.modules, name)
    result = run("train", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "pip install 'eigenbatch[train]'" in " ".join(result.output.split())


def test_a_folder_of_pictures_can_be_trained_on(tmp_path):
    for split, name in [(s, n) for s in ("train", "val") for n in ("cat", "dog")]:
        (tmp_path / "pictures" / split / name).mkdir(parents=True)
        for i in range(8):
            picture = Image.new("RGB", (12, 9), (30 * i, 90, 200 if name == "cat" else 20))
            picture.save(tmp_path / "pictures" / split / name / f"{i}.png")
    settings = ["data=folder", "image_size=8", "batch_size=8", "epochs=1", "width=4", "dim=8"]
    words = [word for setting in settings for word in ("--set", setting)]
    place = ["--data-dir", tmp_path / "pictures", "--out", tmp_path / "run"]
    result = run("train", *words, *place)
    assert result.exit_code == 0, result.output
    assert "knn" in result.output


def test_recipes_are_listed():
    result = run("train", "--list-recipes")
    assert result.exit_code == 0
    assert "imagenet1k" in result.output


@pytest.mark.parametrize("command", ["train", "compare", "demo", "diagnose"])
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: eigenbatch {command}" in " ".join(result.output.split())


@pytest.mark.slow
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
    lines = RunDirectory(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5]
    assert lines[-1]["finished"] == 1
    read = [line["spectral/negatives"] for line in lines if "spectral/negatives" in line]
    assert set(read) == {2 * 240 - 2}  # the global batch, not one process's half
