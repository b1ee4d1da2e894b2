"""Settings: parsed from texts, checked by type and range, stored and read back."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eigenbatch.errors import ParameterError
from eigenbatch.train.data import DataConfig
from eigenbatch.train.methods import MethodConfig
from eigenbatch.train.recipes import RECIPES, recipe
from eigenbatch.train.run import Run
from eigenbatch.train.settings import Config, from_plain, hints, override, to_plain


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_the_manifest(name, tmp_path):
    run = recipe(name, tmp_path)
    assert from_plain(Run, json.loads(json.dumps(to_plain(run)))) == run


def test_a_new_kind_keeps_the_settings_that_both_have():
    run = override(Run(), ["method.tau=0.3", "method.dim=16", "method=moco"])
    assert (run.method.kind, run.method.tau, run.method.dim) == ("moco", 0.3, 16)
    assert run.method.queue_size == 4096


def test_settings_that_fit_only_together_come_in_any_order():
    texts = ["batches.pool_size=64", "batches.batch_size=32"]
    assert override(Run(), texts) == override(Run(), texts[::-1])
    later = override(Run(), [*texts, "batches.pool_size=96"])
    assert later.batches.pool_size == 96
    with pytest.raises(ParameterError, match="pool_size must be at least batch_size, got 16 < 32"):
        override(Run(), ["batches.pool_size=16", "batches.batch_size=32"])


def test_texts_become_the_type_of_the_field():
    run = override(
        Run(),
        ["method=clip", "method.learn_tau=false", "batches.pool_size=300", "data=cifar10",
         "data.directory=some/where", "batches.pool_size=none", "evaluation.transfer=digits"],
    )  # fmt: skip
    assert run.method.learn_tau is False
    assert run.batches.pool_size is None
    assert str(run.data.directory) == "some/where"
    assert run.evaluation.transfer.kind == "digits"
    assert override(run, ["evaluation.transfer=none"]).evaluation.transfer is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("learning=1", "unknown name 'learning'. Known are data, data.workers"),
        ("method.tua=0.1", r"Known are method\.tau, method\.dim"),
        ("method.tau", "write NAME=VALUE"),
        ("method.tau=0", r"tau must be a number in \(0, 1e\+09\]"),
        ("method.tau=nan", "tau must be a number"),
        ("method.tau=cold", "method.tau is a number, got 'cold'"),
        ("budget.epochs=many", "budget.epochs is a whole number"),
        ("budget.epochs=0", "epochs must be a whole number in"),
        ("method=byol", "method must be one of simclr, supcon, moco, clip, got 'byol'"),
        ("data=mnist", "data must be one of cifar10, .*digits"),
        ("batches.fill_cache=all", "one of auto, yes, no"),
        ("batches.replace=maybe", "batches.replace is true or false"),
        ("batches.selector=best", "unknown selector 'best'"),
        ("batches.batch_size=1", "batch_size must be a whole number in"),
        ("batches.pool_size=2", "pool_size must be at least batch_size"),
        ("optimizer.weight_decay=-1", "weight_decay must be a number in"),
        ("data.workers=100000", "workers must be a whole number in"),
        ("encoder.width=9999999", "width must be a whole number in"),
        ("method.dim=9999999", "dim must be a whole number in"),
        ("data.copies=3", "copies=3 needs train_size"),
        ("seed.x=1", "seed has no settings of its own"),
    ],
)
def test_a_bad_setting_says_what_would_do(setting, message):
    with pytest.raises(ParameterError, match=message):
        override(Run(), [setting])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=moco", "method.momentum=2"], "momentum must be a number in"),
        (["method=moco", "method.queue_size=0"], "queue_size must be a whole number in"),
        (["encoder=resnet18", "encoder.width=4"], "multiple of 8"),
        (["data.test_size=-3"], "test_size must be"),
        (["method.negatives=mixed"], "unknown name 'method.negatives'"),
        (["method=moco", "method.whiten_period=5"], "unknown name 'method.whiten_period'"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings, message):
    with pytest.raises(ParameterError, match=message):
        override(Run(), settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data=cifar10"], "cifar10 needs --data-dir"),
        (["data=cifar10", "data.directory=/nowhere"], "/nowhere does not exist"),
        (["data=pairs"], "data.first and data.second"),
        (["batches.selector=auto"], "auto is for retrieval, but data digits is judged by classes"),
        (["method=clip"], "clip does not train on data digits: choose data from pairs"),
        (["method=moco", "method.key_groups=8", "batches.batch_size=8"], "8 parts of 8 images"),
        (
            ["data=folder", "data.directory=/", "data.labels=false", "method=supcon"],
            "supcon learns from labels",
        ),
        (["encoder=wordbag"], "does not read data digits: choose encoder from convnet, resnet18"),
    ],
)
def test_components_must_fit_together(settings, message):
    with pytest.raises(ParameterError, match=message):
        override(Run(), settings).validate()


@pytest.mark.parametrize(
    "content", [None, 3, [], {"method": []}, {"method": {"kind": 4}}, {"x": 1}]
)
def test_anything_else_than_settings_is_refused(content):
    with pytest.raises(ParameterError):
        from_plain(Run, content)


def test_kinds_are_found_without_a_list():
    assert {"simclr", "supcon", "moco", "clip"} <= set(MethodConfig.options())
    assert {"digits", "cifar10", "folder", "pets", "pairs"} <= set(DataConfig.options())


def test_every_data_set_names_a_recipe_that_fits_it():
    for kind in DataConfig.options().values():
        assert recipe(kind.recipe).data.pairs == kind.pairs


def test_settings_are_checked_without_torch():
    code = (
        "import sys\n"
        "from eigenbatch.train.recipes import recipe\n"
        "from eigenbatch.train.settings import override\n"
        "override(recipe('digits'), ['method.tau=0.1', 'batches.selector=greedy-64'])\n"
        "sys.exit(', '.join({'torch', 'lightning', 'kornia', 'scipy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_of_settings_holds_every_kind_and_every_setting():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page.partition("## Settings")[2], re.M))
    for name, kind in hints(Run).items():
        if not (isinstance(kind, type) and issubclass(kind, Config)):
            continue
        for option, settings in (kind.options() or {"": kind}).items():
            for one in filter(None, (option, *hints(settings))):
                assert f"`{one}`" in rows[name], f"docs/training.md: {name} lacks {one}"
