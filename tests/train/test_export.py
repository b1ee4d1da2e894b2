"""Life after training: the encoder loads, embeds folders and travels as safetensors."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from typer.testing import CliRunner

from eigenbatch import load_encoder
from eigenbatch.cli import app
from eigenbatch.errors import ParameterError, RunError
from eigenbatch.runs import read_run
from eigenbatch.train.export import Embedded, embed_pictures
from eigenbatch.train.recipes import recipe
from eigenbatch.train.settings import override
from small_runs import SMALL, StopAfter, lines, start

pytestmark = pytest.mark.slow
FOLDER = ["batches.batch_size=8", "budget.epochs=1", "encoder.width=8", "method.dim=8",
          "data.size=8", "budget.precision=32-true"]  # fmt: skip


def pictures(folder, count=20, *, classes=("cat", "dog")):
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 255, (10, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(name="trained", scope="module")
def _trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = pictures(folder / "data")
    run = override(recipe("folder-cpu", data), ["encoder=resnet18", *FOLDER])
    start(run, folder / "run")
    return folder / "run", data


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_loaded_encoder_gives_the_features_that_were_evaluated(tmp_path):
    directory = start(SMALL, tmp_path)
    encoder = load_encoder(tmp_path)
    assert not encoder.training
    from eigenbatch.train.data.sets.digits import DigitsConfig
    from eigenbatch.train.probes import extract, knn_accuracy

    train, test = (
        extract(encoder, DigitsConfig().load(s), encoder.preprocess) for s in ("train", "test")
    )
    assert knn_accuracy(train, test) == lines(directory)[-1]["knn"]


def test_a_folder_is_embedded_by_name_as_npy_and_safetensors(trained, tmp_path):
    run, data = trained
    result = call("embed", run, data, "--out", tmp_path / "z.npy")
    assert result.exit_code == 0, result.output
    assert "40 pictures, 64 features" in result.output
    rows = np.load(tmp_path / "z.npy")
    names = (tmp_path / "z.txt").read_text().splitlines()
    assert rows.shape == (40, 64)
    assert names[:2] == ["cat/0.png", "cat/1.png"]
    result = call("embed", run, data, "--out", tmp_path / "z.safetensors",
                  "--weights", tmp_path / "encoder.safetensors")  # fmt: skip
    assert result.exit_code == 0, result.output
    with safe_open(tmp_path / "z.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("embeddings"), rows)
        assert json.loads(file.metadata()["names"]) == names
    with safe_open(tmp_path / "encoder.safetensors", "pt") as file:
        assert file.metadata()["preprocess"] == "pixels / 255, minus 0.5, divided by 0.25"
        assert file.metadata()["input"] == "(b, 3, 8, 8)"
        own = load_encoder(run).state_dict()
        assert set(file.keys()) == set(own)
        assert torch.equal(file.get_tensor("layer1.0.conv1.weight"), own["layer1.0.conv1.weight"])


def test_odd_file_names_keep_one_line_each(tmp_path):
    odd = Embedded(
        torch.zeros(2, 3), ["two\nlines.png", b"caf\xe9.png".decode(errors="surrogateescape")]
    )
    odd.save(tmp_path / "z.npy")
    assert (tmp_path / "z.txt").read_bytes() == b"two\\nlines.png\ncaf\xe9.png\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "z.csv"], "must end with .npy or .safetensors"),
        (["--out", "nowhere/z.npy"], "is no folder"),
        (["--out", "there.npy"], "exists already"),
        (["--out", "names.npy"], "names.txt exists already"),
        (["--out", "e.safetensors", "--weights", "./e.safetensors"], "name two files"),
        (["--weights", "w.pt"], "--weights must end with .safetensors"),
    ],
)
def test_nothing_is_overwritten_and_bad_places_are_named(
    trained, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.npy").write_text("mine")
    (tmp_path / "names.txt").write_text("mine")
    result = call("embed", *trained, *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert (tmp_path / "there.npy").read_text() == "mine"
    assert (tmp_path / "names.txt").read_text() == "mine"


def test_what_is_no_run_or_no_pictures_is_said(trained, tmp_path):
    run, _ = trained
    with pytest.raises(RunError, match="holds no run"):
        load_encoder(tmp_path)
    with pytest.raises(ParameterError, match="run must be the path"):
        load_encoder(None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        embed_pictures(run, tmp_path / "empty")


def test_pictures_without_labels_are_trained_on_and_not_judged(tmp_path):
    flat = tmp_path / "data"
    flat.mkdir()
    for i in range(24):
        Image.new("RGB", (9, 9), (10 * i, 0, 0)).save(flat / f"{i}.png")
    labelled = override(recipe("folder-cpu", flat), FOLDER)
    with pytest.raises(ValueError, match=r"data\.labels=false"):
        start(labelled, tmp_path / "refused")
    start(override(labelled, ["data.labels=false"]), tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.finished
    assert record.accuracy is None
    assert record.final("rankme") > 0


def test_your_own_encoder_is_named_by_module_and_function(tmp_path, monkeypatch):
    (tmp_path / "my_encoders.py").write_text(
        "from torch import nn\n"
        "def small():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())\n"
        "def broken():\n"
        "    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_encoders", raising=False)
    run = override(SMALL, ["encoder=function", "encoder.function=my_encoders:small"])
    start(run, tmp_path / "run", observers=[StopAfter(2)])
    assert isinstance(load_encoder(tmp_path / "run"), nn.Sequential)
    for function, message in [
        ("my_encoders:broken", "must be a torch.nn.Module"),
        ("my_encoders:absent", "cannot be imported"),
    ]:
        bad = override(SMALL, ["encoder=function", f"encoder.function={function}"])
        with pytest.raises(ParameterError, match=message):
            start(bad, tmp_path / "bad")
    with pytest.raises(ParameterError, match=r"package\.module:function"):
        override(SMALL, ["encoder=function", "encoder.function=small"])
