"""`reproduce all --scale paper` starts: every kind of its training runs, at a reduced size."""

import hashlib
import json
import pickle
from typing import get_args

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from eigenbatch.errors import RunError
from eigenbatch.runs import flat
from eigenbatch.train import override, to_plain
from eigenbatch.train.data.sets import cifar
from eigenbatch_paper import reproduce, training_chunks
from eigenbatch_paper.claim import Place
from eigenbatch_paper.printed import PRINTED
from eigenbatch_paper.registry import NAMES, all_claims, claim
from eigenbatch_paper.training_chunks import run_of as printed_run
from eigenbatch_paper.verdict import Outcome

pytestmark = pytest.mark.slow
SMALLER = {
    "workers": "0", "size": "16", "width": "8", "batch_size": "8", "pool_size": "16",
    "queue_size": "16", "key_groups": "2", "epochs": "1", "train_size": "none", "dim": "8",
}  # fmt: skip
CHUNKS = {name: claim(name).chunks("paper") for name in NAMES}  # before runs are made smaller
VARYING = ("seed", "selector", "encoder", "lr", "pool_size", "queue_size", "strength")


def kind(chunk):
    """Seeds and policies do not change what must start."""
    rest = {k: v for k, v in chunk.settings.items() if k not in ("seed", "selector")}
    return json.dumps(rest, sort_keys=True)


def kinds():
    """One chunk of every kind."""
    for name in NAMES:
        found = {}
        for chunk in CHUNKS[name]:
            if "recipe" in chunk.settings:
                found.setdefault(kind(chunk), (name, chunk))
        yield from found.values()


def reduced(run):
    """The same components, small enough for a test."""
    changes = ["views.size=none"]
    for part in ("data", "encoder", "method", "batches", "budget"):
        known = vars(getattr(run, part))
        changes += [f"{part}.{name}={value}" for name, value in SMALLER.items() if name in known]
    if getattr(run.data, "copies", None) is not None:
        changes = [c.replace("train_size=none", "train_size=200") for c in changes]
    if getattr(run.method, "whiten_period", None) is not None:
        changes += ["method.whiten_period=1", "method.whiten_after=0"]
    return override(run, changes)


@pytest.fixture(scope="module")
def rows():
    """What was computed, by claim and kind."""
    return {}


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory):
    """Pictures in the layout of every data set of the paper."""
    root = tmp_path_factory.mktemp("paper")
    noise = np.random.default_rng(0)

    def picture(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(path)

    for i in range(10):
        for split, count in (("train", 20), ("val", 2)):
            for j in range(count):
                picture(root / "folder" / split / f"class{i}" / f"{j}.png")
    lists = {"trainval.txt": [], "test.txt": []}
    for i, breed in enumerate(("Abyssinian", "Bengal")):
        for j in range(6):
            picture(root / "pets" / "images" / f"{breed}_{j}.jpg")
            lists["test.txt" if j == 5 else "trainval.txt"].append(f"{breed}_{j} {i + 1} 1 1")
    for name, lines in lists.items():
        (root / "pets" / "annotations").mkdir(exist_ok=True)
        (root / "pets" / "annotations" / name).write_text("\n".join(lines))
    batches, sums = root / "cifar" / "cifar-10-batches-py", {}
    batches.mkdir(parents=True)
    for name in cifar._CIFAR10:
        content = {"label_names": [f"class{c}" for c in range(10)]}
        if name != "batches.meta":
            pixels = noise.integers(0, 256, (20, 3072), dtype=np.uint8)
            content = {"data": pixels.tolist(), "labels": [i % 10 for i in range(20)]}
        (batches / name).write_bytes(pickle.dumps(content, protocol=2))
        sums[name] = hashlib.md5((batches / name).read_bytes()).hexdigest()
    folders = {"imagenet100": root / "folder", "imagenet1k": root / "folder",
               "cifar10": root / "cifar", "pets": root / "pets"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar, "_CIFAR10", sums)
        patch.setattr(training_chunks, "run_of", lambda c, p: reduced(printed_run(c, p)))
        yield Place(root / "runs", folders)


@pytest.mark.parametrize(("name", "chunk"), [pytest.param(*k, id=f"{k[0]}-{i}")
                                             for i, k in enumerate(kinds())])  # fmt: skip
def test_a_run_of_the_paper_starts_and_ends(place, rows, name, chunk):
    (row,) = claim(name).compute(chunk, place)
    assert row.keys() == json.loads(json.dumps(row)).keys()
    rows[name, kind(chunk)] = row


POLICIES = {
    chunk.settings["selector"]: (name, chunk)
    for name in NAMES
    for chunk in CHUNKS[name]
    if "recipe" in chunk.settings and "selector" in chunk.settings
}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_of_the_paper_starts_and_ends(place, policy):
    name, chunk = POLICIES[policy]
    (row,) = claim(name).compute(chunk, place)
    assert row["selector"] == policy


def test_all_claims_of_the_paper_can_be_asked_for_at_once(place, tmp_path, monkeypatch):
    """The command checks data, opens a directory for every claim and lists what is to be done."""
    asked = []

    def results(work, jobs):
        asked.extend(chunk for _, chunk, _ in work.values())
        return iter(())

    monkeypatch.setattr(reproduce, "_results", results)
    folders = dict(place.data) | {"": tmp_path}
    assert list(reproduce.reproduce(all_claims(), "paper", tmp_path, data=folders)) == []
    wanted = {chunk.name for one in all_claims() for chunk in one.chunks("paper")}
    assert {chunk.name for chunk in asked} == wanted
    with pytest.raises(RunError, match="needs data"):
        list(reproduce.reproduce(all_claims(), "paper", tmp_path))


@pytest.mark.parametrize("name", sorted({*PRINTED} - {"whitening"}))  # its spans need 200 steps
def test_rows_of_the_paper_are_judged_drawn_and_tabled(place, rows, name):
    """With the row of its kind for every seed and policy, named as in the paper."""
    checked = claim(name)
    found = []
    for chunk in CHUNKS[name]:
        if (name, kind(chunk)) not in rows:
            (rows[name, kind(chunk)],) = checked.compute(chunk, place)
        settings = flat(to_plain(printed_run(chunk, place)))
        known = {short: settings.get(training_chunks.NAMES[short]) for short in VARYING}
        found.append(rows[name, kind(chunk)] | known)
    assert checked.judge(found).outcome in get_args(Outcome)
    checked.draw(found, Figure())
    if checked.table is not None:
        assert checked.table(found).markdown()


def test_every_training_claim_of_the_paper_is_started():
    assert {name for name, _ in kinds()} == {
        n
        for n in NAMES
        if claim(n).needs("paper")
        - {"multi30k", "flickr8k", "minilm", "stsb", "python", "messages", "packages"}
    }  # the others: test_pair_claims
