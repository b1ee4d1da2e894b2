"""`eigenbatch plan`: an epoch from embeddings in files."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from eigenbatch.cli import app

pytestmark = pytest.mark.slow


@pytest.fixture
def files(tmp_path):
    """Pairs in clusters: neighbours are much harder than random ones."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(40, 16))
    first = centres[draw.integers(40, size=1010)] + 0.5 * draw.normal(size=(1010, 16))
    second = first + 0.3 * draw.normal(size=first.shape)
    for name, rows in (("first", first), ("second", second)):
        np.save(tmp_path / f"{name}.npy", rows.astype("float32"))
    return tmp_path


def plan(folder, *words):
    paths = (str(folder / word) if str(word).endswith(".npy") else str(word) for word in words)
    return CliRunner().invoke(app, list(paths))


def test_every_sample_stands_in_the_plan_once_and_batches_are_harder(files):
    words = ["plan", "first.npy", "second.npy", "--batch-size", 20, "--out", "plan.npy"]
    result = plan(files, "--json", *words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    batches = np.load(files / "plan.npy")
    assert batches.shape == (50, 20) == (told["batches"], told["batch_size"])
    assert len(np.unique(batches)) == 1000
    assert told["left_out"] == 10
    assert told["planned"] > 2 * told["random"]
    assert (files / "plan.png").stat().st_size > 5_000
    again = plan(files, *words)
    assert again.exit_code == 2
    assert "exists already" in " ".join(again.stderr.split())


def test_parts_and_groups(files):
    groups = np.arange(1010) // 2
    np.save(files / "groups.npy", groups)
    words = ["--groups", "groups.npy", "--horizon", 250, "--batch-size", 10, "--out", "plan.npy"]
    result = plan(files, "plan", "first.npy", *words)
    assert result.exit_code == 0, result.output
    batches = np.load(files / "plan.npy")
    assert len(np.unique(batches)) == batches.size == 1010
    assert all(len(np.unique(groups[batch])) == 10 for batch in batches)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["first.npy", "short.npy", "--out", "plan.npy"], "short.npy"),
        (["nan.npy", "--batch-size", 10, "--out", "plan.npy"], "nan.npy"),
        (["first.npy", "--batch-size", 2000, "--out", "plan.npy"], "2000"),
        (["first.npy", "--out", "plan.txt"], "must end with .npy"),
        (["absent.npy", "--out", "plan.npy"], "no such file"),
        (["first.npy", "--groups", "short.npy", "--out", "plan.npy"], "one integer per sample"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(files, words, reason):
    np.save(files / "short.npy", np.ones((3, 16), "float32"))
    bad = np.load(files / "first.npy")
    bad[7] = np.nan
    np.save(files / "nan.npy", bad)
    before = sorted(files.iterdir())
    result = plan(files, "plan", *words)
    assert result.exit_code == 2, result.output
    assert reason in " ".join(result.stderr.split())
    assert sorted(files.iterdir()) == before
