"""Every training run at scale "paper" has the settings that the paper prints."""

from pathlib import Path

import pytest

from eigenbatch.runs import flat
from eigenbatch.train import to_plain
from eigenbatch_paper.claim import Place
from eigenbatch_paper.printed import PRINTED, markdown
from eigenbatch_paper.registry import NAMES, claim
from eigenbatch_paper.training_chunks import data_sets, run_of

COLUMNS = {
    "encoder": "encoder", "k": "batches.pool_size", "policies": "batches.selector",
}  # fmt: skip
SINGLE = {
    "n": "batches.batch_size", "tau": "method.tau", "optimizer": "optimizer", "rate": "schedule",
    "weight_decay": "optimizer.weight_decay", "epochs": "budget.epochs",
}  # fmt: skip


def settings(name):
    """Flat settings of every paper run of a claim; a component under its own name is its kind."""
    runs = [flat(to_plain(run_of(c, Place(Path())))) for c in claim(name).chunks("paper")]
    kinds = [{k.removesuffix(".kind"): v for k, v in run.items() if k.endswith(".kind")}
             for run in runs]  # fmt: skip
    return [run | kind for run, kind in zip(runs, kinds, strict=True)]


@pytest.mark.parametrize("name", PRINTED)
def test_paper_runs_have_the_printed_settings(name):
    printed, runs = PRINTED[name], settings(name)
    for field, setting in SINGLE.items():
        assert {run[setting] for run in runs} == {getattr(printed, field)}, setting
    for field, setting in COLUMNS.items():
        assert {run[setting] for run in runs} == set(getattr(printed, field)), setting
    for setting, values in printed.details.items():
        assert {run[setting] for run in runs if setting in run} == set(values), setting
    assert len({run["seed"] for run in runs}) == printed.seeds
    assert {data_sets(c)[0] for c in claim(name).chunks("paper")} == {printed.data}


def test_every_claim_that_trains_as_printed_is_in_the_table():
    beyond = {"similar-batches", "redundant-data", "coverage-modes", "plateau-time",
              "hard-batches", "guarded-batches", "caption-batches",
              "finetuned-batches", "miss-law"}  # fmt: skip
    training = {name for name in NAMES if claim(name).needs("paper")}
    assert training - beyond - set(PRINTED) == set()


def test_the_table_is_whole_markdown():
    lines = markdown().splitlines()
    assert len(lines) == len(PRINTED) + 2
    assert len({line.count("|") for line in lines}) == 1


def test_every_run_of_the_small_scale_can_be_made(tmp_path):
    place = Place(tmp_path, {"": tmp_path})
    for name in NAMES:
        for chunk in claim(name).chunks("small"):
            if "recipe" in chunk.settings:
                run = run_of(chunk, place)
                assert run.data.directory == tmp_path
                assert run.batches.fill_cache
