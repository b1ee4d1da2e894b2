"""The demo's task and its story."""

from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eigenbatch import Neighbours, Random, Recorder, demo
from eigenbatch.cli import app
from eigenbatch.cli import demo as command
from eigenbatch.runs import RunRecord, read_run
from eigenbatch.runs.findings import worth_saying


@pytest.fixture(scope="module")
def letters() -> demo.Letters:
    return demo.load_letters()


def trained(letters: demo.Letters, path: Path, selector=None, **options) -> RunRecord:
    with Recorder(path) as recorder:
        demo.train(letters, selector or Random(), 0, recorder, say=lambda text: None, **options)
    return read_run(path)


def test_letters_are_drawn_differently_in_both_typefaces_and_are_told_apart(letters):
    count = letters.sans.shape[1]
    assert count > 1000
    assert letters.sans.shape == letters.serif.shape == (4, count, 16, 16)
    assert (letters.sans != letters.serif).flatten(2).any(2).all()
    assert len(letters.sans[0].flatten(1).unique(dim=0)) == count
    assert torch.equal(demo.load_letters().sans, letters.sans)


def test_retrieval_is_one_when_the_encoder_knows_both_typefaces(letters):
    few = demo.Letters(letters.sans[:, :40], letters.sans[:, :40].roll(0))
    same = demo.Letters(few.sans, few.sans[:1].expand(4, -1, -1, -1))
    assert demo.retrieval(torch.nn.Flatten(), same) == 1.0
    shuffled = demo.Letters(same.sans, same.serif.roll(1, 1))
    assert demo.retrieval(torch.nn.Flatten(), shuffled) < 0.5


def test_equal_seeds_give_equal_runs(letters, tmp_path):
    first = trained(letters, tmp_path / "1", epochs=1)
    second = trained(letters, tmp_path / "2", Random(), epochs=1)
    assert first.series["loss"].value.tolist() == second.series["loss"].value.tolist()


@pytest.mark.slow
def test_the_mistake_is_named_early_and_harms_and_the_remedy_and_hard_batches_help(
    letters, tmp_path
):
    said: list[str] = []
    with Recorder(tmp_path / "mistake") as recorder:
        demo.train(letters, Random(), 0, recorder, same_view=True, epochs=3, say=said.append)
    mistake = read_run(tmp_path / "mistake")
    assert "identical views" in said[0]
    step = int(said[0].split()[1].rstrip(","))
    assert step <= 50
    assert step == worth_saying(mistake.metrics.records["findings"])[0].first  # as on the page
    untrained = float(mistake.series["mrr"].value[0])
    random = trained(letters, tmp_path / "random").final("mrr")
    assert mistake.final("mrr") < untrained < random - 0.2
    assert trained(letters, tmp_path / "hard", Neighbours()).final("mrr") > random + 0.01


@pytest.mark.slow
def test_the_command_tells_the_story_in_its_runs_own_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "train", partial(demo.train, epochs=2))
    monkeypatch.setattr(command, "SEEDS", 3)
    words = ["demo", "--out", str(tmp_path / "demo")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "warning: identical views" in result.output
    mistake = read_run(tmp_path / "demo" / "mistake")
    assert f"{mistake.final('mrr'):.3f} after it" in result.output
    hard = read_run(tmp_path / "demo" / "compare" / "neighbours" / "seed-2")
    assert f" -> {hard.final('mrr'):.3f}" in result.output
    assert len(result.output.splitlines()) <= 13
    assert "logits * tau: wrong, temperature multiplied" in result.output
    assert "logits / tau: right, symmetric InfoNCE" in result.output
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "identical views" in page
    assert "points against random" in page

    monkeypatch.setattr(demo, "train", None)  # a second call trains nothing
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    assert "warning: identical views" in again.output
    assert again.output.splitlines()[-1] == result.output.splitlines()[-1]


def test_an_empty_folder_name_is_refused_at_once():
    result = CliRunner().invoke(app, ["demo", "--out", ""])
    assert result.exit_code == 2
    assert "--out must name a folder" in " ".join(result.stderr.split())
