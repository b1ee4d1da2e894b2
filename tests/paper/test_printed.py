"""Every training run at scale "paper" has the settings that the paper prints."""

import inspect
from itertools import product
from pathlib import Path

import pytest

from eigenbatch.runs import flat
from eigenbatch.train import to_plain
from eigenbatch.train.probes import linear_probe_sgd
from eigenbatch_paper.claim import DATA_SETS, SCALES, Place
from eigenbatch_paper.printed import PRINTED, SGD_PROBE, markdown
from eigenbatch_paper.registry import NAMES, claim
from eigenbatch_paper.training_chunks import data_sets, run_of

VARYING = {
    "encoder": "encoder", "k": "batches.pool_size", "lr": "optimizer.lr",
    "policies": "batches.selector",
}  # fmt: skip
SINGLE = {
    "n": "batches.batch_size", "tau": "method.tau", "optimizer": "optimizer", "rate": "schedule",
    "warmup": "schedule.warmup_epochs", "weight_decay": "optimizer.weight_decay",
    "epochs": "budget.epochs",
}  # fmt: skip
OURS = ("data.workers", "data.directory", "method.whiten_after", "method.whiten_period", "seed")


def settings(name):
    """Flat settings of every paper run of a claim; a component under its own name is its kind."""
    runs = [flat(to_plain(run_of(c, Place(Path())))) for c in claim(name).chunks("paper")]
    kinds = [{k.removesuffix(".kind"): v for k, v in run.items() if k.endswith(".kind")}
             for run in runs]  # fmt: skip
    return [run | kind for run, kind in zip(runs, kinds, strict=True)]


@pytest.mark.parametrize("name", PRINTED)
def test_every_paper_run_has_the_printed_settings(name):
    printed, runs = PRINTED[name], settings(name)
    allowed = {setting: (getattr(printed, field),) for field, setting in SINGLE.items()}
    allowed |= {setting: tuple(getattr(printed, field)) for field, setting in VARYING.items()}
    allowed |= printed.details
    assert set(allowed) <= set().union(*runs)  # no setting is misspelt
    for run in runs:
        assert {s: run[s] for s in allowed if s in run and run[s] not in allowed[s]} == {}
    differing = [setting for setting in allowed if len(allowed[setting]) > 1]
    seeds = {}
    for run in runs:
        seeds.setdefault(tuple(run.get(s) for s in differing), []).append(run["seed"])
    arms = printed.arms or dict.fromkeys(product(*(allowed[s] for s in differing)), printed.seeds)
    assert seeds == {arm: list(range(count)) for arm, count in arms.items()}
    assert max(arms.values()) == printed.seeds
    assert {data_sets(c)[0] for c in claim(name).chunks("paper")} == {printed.data}


@pytest.mark.parametrize("name", PRINTED)
def test_runs_differ_in_nothing_but_what_the_table_says(name):
    printed, runs = PRINTED[name], settings(name)
    known = {*VARYING.values(), *printed.details, *OURS}
    shared = set.intersection(*(set(run) for run in runs)) - known
    assert {s for s in shared if len({run[s] for run in runs}) > 1} == set()


def test_the_printed_linear_probe_is_the_default_of_ours():
    options = inspect.signature(linear_probe_sgd).parameters
    epochs, rate = options["epochs"].default, options["lr"].default
    assert f"linear, SGD, {epochs} epochs at {rate:g}" == SGD_PROBE
    assert {name for name in PRINTED if PRINTED[name].probe == SGD_PROBE} == {
        "rank-accuracy", "transfer",
    }  # fmt: skip


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_the_size_that_a_claim_states_is_that_of_its_runs(scale):
    for name in NAMES:
        runs = [c for c in claim(name).chunks(scale) if "recipe" in c.settings]
        text = claim(name).size[scale].replace(",", "")
        for run in (flat(to_plain(run_of(c, Place(Path())))) for c in runs):
            if "tau=" in text:
                stated = text.partition("tau=")[2]
                assert f"{run['method.tau']:g}" in stated.partition(" epochs")[0], name
            if "k=" in text:
                assert f"{run['batches.pool_size']}" in text.partition("k=")[2], name


def test_claims_that_ask_for_the_same_run_share_it():
    names = {}
    for name in PRINTED:
        for chunk in claim(name).chunks("paper"):
            run = run_of(chunk, Place(Path()))
            extra = {
                k: str(v) for k, v in chunk.settings.items() if k in ("measure", "probed", "steps")
            }
            names.setdefault((run, *extra.items()), set()).add(chunk.name)
    assert [found for found in names.values() if len(found) > 1] == []


def test_every_claim_that_trains_as_printed_is_in_the_table():
    beyond = {"similar-batches", "redundant-data", "picture-batches", "planned-batches",
              "gap-rule", "planner-peers", "predicted-miss", "miss-law", "copied-pairs",
              "finetuned-batches"}  # fmt: skip
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


def test_every_data_set_that_a_claim_needs_can_be_named():
    needed = {name for one, scale in product(NAMES, SCALES) for name in claim(one).needs(scale)}
    assert needed == set(DATA_SETS)
