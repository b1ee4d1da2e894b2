"""Claims on pairs of texts: their data, and judges that can say yes and no."""

import gzip
import struct

import pytest
import torch

from eigenbatch.errors import DataError
from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper import pairs, peers
from eigenbatch_paper.claim import Place
from eigenbatch_paper.claims import (
    copied_pairs,
    finetuned_batches,
    gap_rule,
    miss_law,
    planned_batches,
    planner_peers,
    predicted_miss,
)
from eigenbatch_paper.pairs import pair_chunk, run_of

STEPS = [0.0, 300.0, 1000.0]


def row(policy, seed, *, final, middle=0.7, **settings):
    noise = 1e-4 * seed
    return {
        "selector": policy, "seed": seed, "steps": STEPS, "times": [0.0, 20.0 + seed, 40.0],
        "mrr": [0.0, middle + noise, final + noise], "miss": 0.03, **settings,
    }  # fmt: skip


def rows(ends, **settings):
    return [
        row(name, seed, final=end, **settings) for seed in range(3) for name, end in ends.items()
    ]


def two_sizes(ends, *data, **settings):
    return [
        one for name in data for n in (64, 256)
        for one in rows(ends, data=name, batch_size=n, **settings)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("auto", "middle", "outcome"),
    [(0.86, 0.81, "reproduced"), (0.86, 0.7, "holds under stated conditions"),
     (0.84, 0.81, "does not reproduce")],
)  # fmt: skip
def test_planned_batches_are_judged_by_gain_and_steps(auto, middle, outcome):
    made = two_sizes({"random": 0.8, "neighbours": 0.86, "auto": auto}, *pairs.TUNED)
    for one in made:
        if one["selector"] == "neighbours":
            one["mrr"][1] = middle + 1e-3
    assert planned_batches.judge(made).outcome == outcome


@pytest.mark.parametrize(
    ("auto", "outcome"),
    [(0.61, "reproduced"), (0.6, "holds under stated conditions"), (0.59, "does not reproduce")],
)
def test_auto_on_unseen_pairs_is_judged_against_random_and_the_better(auto, outcome):
    ends = {"random": 0.6, "neighbours": 0.612, "auto": auto}
    verdict = gap_rule.judge(two_sizes(ends, *pairs.UNSEEN))
    assert verdict.outcome == outcome
    assert "packages, n=256: neighbours +1.2 points" in verdict.measured


@pytest.mark.parametrize(("rising", "outcome"), [(1, "reproduced"), (-1, "does not reproduce")])
def test_a_plan_must_foretell_its_gain(rising, outcome):
    made = []
    for i, data in enumerate(pairs.TUNED):
        plans = {"plan_predicted_miss": [0.1 + rising * i / 100], "plan_random_miss": [0.05]}
        ends = {"random": 0.8, "neighbours": 0.8 + i / 100}
        made += two_sizes(ends, data, **plans)
    assert predicted_miss.judge(made).outcome == outcome


@pytest.mark.parametrize(("walk", "outcome"), [(0.82, "reproduced"), (0.9, "does not reproduce")])
def test_planners_are_judged_one_by_one(walk, outcome):
    ends = {"random": 0.8, "neighbours": 0.86, "greedy-64": 0.7, "gcbs": 0.82, "walk": walk}
    made = [one for data in planner_peers.DATA for one in rows(ends, data=data)]
    assert planner_peers.judge(made).outcome == outcome


@pytest.mark.parametrize(("auto", "outcome"), [(0.83, "reproduced"), (0.79, "does not reproduce")])
def test_copies_must_not_take_the_gain(auto, outcome):
    ends = {"random": 0.8, "neighbours": 0.83, "auto": auto}
    made = [one for data in pairs.COPIED_EPOCHS for one in rows(ends, data=data)]
    assert copied_pairs.judge(made).outcome == outcome


@pytest.mark.parametrize(
    ("gains", "auto", "outcome"),
    [((0.03, 0.01, 0.0), 0.0, "reproduced"), ((0.03, 0.01, 0.02), 0.0, "does not reproduce"),
     ((0.03, 0.01, 0.0), -0.01, "holds under stated conditions")],
)  # fmt: skip
def test_the_gain_must_fall_as_the_miss_rises(gains, auto, outcome):
    rows = [
        row(name, seed, middle=0.7, final=0.8 + more, tau=tau) | {"miss": tau}
        for tau, gain in zip(miss_law.TEMPERATURES, gains, strict=True) for seed in range(3)
        for name, more in (("random", 0), ("neighbours", gain), ("auto", auto))
    ]  # fmt: skip
    assert miss_law.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("ours", "auto", "spearman", "outcome"),
    [(0.72, 0.718, 0.8, "reproduced"), (0.72, 0.72, 0.7, "holds under stated conditions"),
     (0.72, 0.71, 0.8, "holds under stated conditions"), (0.69, 0.7, 0.8, "does not reproduce")],
)  # fmt: skip
def test_fine_tuning_is_judged_against_each_rival(ours, auto, spearman, outcome):
    ends = {"random": 0.7, "no-duplicates": 0.7, "mined": 0.68, "neighbours": ours, "auto": auto}
    rows = [
        {"batches": name, "seed": seed, "mrr": end + 1e-4 * seed * len(name), "steps": 100,
         "spearman": (spearman if name == "neighbours" else 0.8) + 1e-4 * seed * len(name),
         "mrr_before": 0.5, "spearman_before": 0.8}
        for seed in range(3) for name, end in ends.items()
    ]  # fmt: skip
    assert finetuned_batches.judge(rows).outcome == outcome


@pytest.mark.parametrize("planner", [peers.GCBS(), peers.Walk()])
def test_peers_plan_every_row_once_and_bring_clusters_together(planner):
    draw = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(20, 1, 16, generator=draw), dim=-1)
    z = centres + 0.1 * torch.randn(20, 30, 16, generator=draw)
    z = torch.nn.functional.normalize(z.flatten(0, 1), dim=-1)
    planner.kept, planner.edges = 0.04, 20  # as there are clusters
    batches = planner.plan(torch.stack([z, z], 1), 30, generator=draw)
    assert batches.shape == (20, 30)
    assert sorted(batches.flatten().tolist()) == list(range(600))
    clusters = [len((one // 30).unique()) for one in batches]
    assert sum(clusters) / 20 < 8  # 16 in random batches


def test_pairs_of_captions_are_of_one_picture(tmp_path):
    pictures = pairs.TEST_PICTURES + 5
    texts = [f"{i}.jpg#{j}\tcaption {j} of {i}" for i in range(pictures) for j in range(2)]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(texts))
    place = Place(tmp_path, {"flickr8k": tmp_path})
    data = run_of(pair_chunk("small", 0, "captions", "random", 64), place).data
    for first, second, count in (
        (data.first, data.second, 5),
        (data.test_first, data.test_second, pairs.TEST_PICTURES),
    ):
        ours, theirs = (path.read_text().splitlines() for path in (first, second))
        assert len(ours) == count
        assert [a.replace("caption 0", "caption 1") for a in ours] == theirs


def test_versions_of_the_data_repeat_training_pairs_and_keep_the_test(tmp_path):
    for language in ("de", "en"):
        for name, count in (("train", 200), ("val", 7), ("test_2016", 9)):
            text = "\n".join(f"{language} {name} {i}" for i in range(count)).encode()
            (tmp_path / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
    place = Place(tmp_path / "runs", {"multi30k": tmp_path})
    counts = {}
    for version in ("translations", "tripled", "long-tailed"):
        data = run_of(pair_chunk("small", 0, version, "random", 256), place).data
        lines = data.first.read_text().splitlines()
        assert (lines[0], lines[-1]) == ("en train 0", "en val 6")
        assert len(lines) == len(data.second.read_text().splitlines())
        assert len(data.test_first.read_text().splitlines()) == 9
        counts[version] = len(lines) - 7
    assert counts == {"translations": 200, "tripled": 600, "long-tailed": 2 * 50 + 18 * 5 + 180}
    with pytest.raises(DataError, match="multi30k=FOLDER"):
        pairs.DATA["translations"](Place(tmp_path, {"multi30k": tmp_path / "runs"}))


def test_captions_are_grouped_by_picture(tmp_path):
    lines = ["b.jpg#0 a dog", "b.jpg#1\ta wet dog", "a.jpg#0\tone only"]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(lines))
    assert pairs.captions(Place(tmp_path, {"": tmp_path})) == [["a dog", "a wet dog"]]
    with pytest.raises(DataError, match="flickr8k=FOLDER"):
        pairs.captions(Place(tmp_path, {"": tmp_path / "elsewhere"}))


@pytest.fixture
def few(monkeypatch):
    """One test pair and none held out."""
    monkeypatch.setattr(pairs, "TESTED", 1)
    monkeypatch.setattr(pairs, "HELD_OUT", 0)


def told(name, folder):
    """The pairs of a data set, those of the test among them."""
    (first, first_test), (second, second_test) = pairs.DATA[name](Place(folder, {"": folder}))
    assert len(first_test) == len(second_test) == 1
    return dict(zip(first + first_test, second + second_test, strict=True))


@pytest.mark.usefixtures("few")
def test_functions_are_paired_with_what_they_say(tmp_path):
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "some.py").write_text(
        "def f(size, weight):\n"
        '    """Weigh a number of\n    things at once.\n\n    More."""\n'
        "    total = size * weight  # not kept\n    return total\n"
        'def g():\n    """Give a very short answer."""\n    return 1\n'
    )
    with pytest.raises(DataError, match="holds 1 pairs, more than 1 are needed"):
        told("code", tmp_path)
    (tmp_path / "more.py").write_text(
        'def h(all):\n    """Copy everything given."""\n    return [one.copy() for one in all]\n'
    )
    assert told("code", tmp_path) == {
        "Weigh a number of things at once.": "size weight total = size * weight return total",
        "Copy everything given.": "all return [one.copy() for one in all]",
    }
    with pytest.raises(DataError, match="python=FOLDER"):
        pairs.DATA["code"](Place(tmp_path))


def catalogue(folder, name, messages, order="<"):
    """A .mo file as msgfmt writes it."""
    entries = sorted(messages.items())
    texts = [pair[side].encode() for side in (0, 1) for pair in entries]
    start, table = 28 + 16 * len(entries), []
    for text in texts:
        table += [len(text), start]
        start += len(text) + 1
    head = [0x950412DE, 0, len(entries), 28, 28 + 8 * len(entries), 0, 0]
    numbers = struct.pack(f"{order}{len(head) + len(table)}I", *head, *table)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(numbers + b"".join(text + b"\0" for text in texts))


@pytest.mark.usefixtures("few")
def test_messages_are_paired_with_their_translations(tmp_path):
    folder = tmp_path / "es" / "LC_MESSAGES"
    catalogue(folder, "iso-3166.mo", {"Some far away land": "Un país lejano"})
    catalogue(folder, "a.mo", {"": "header", "_Open this file": "Abrir este archivo", "No": "No"})
    with pytest.raises(DataError, match="holds 1 pairs, more than 1 are needed"):
        told("messages-es", tmp_path)
    found = {
        "menu\x04Close the file\0Close %d files": "Cerrar el archivo\0Cerrar %d archivos",
        "Not yet translated": "", "GNU C Library": "GNU C Library",
    }  # fmt: skip
    catalogue(folder, "b.mo", found, order=">")
    (folder / "cut.mo").write_bytes((folder / "a.mo").read_bytes()[:40])
    (folder / "latin.mo").write_bytes((folder / "a.mo").read_bytes()[:-3] + b"\xf1o\0")
    assert told("messages-es", tmp_path) == {
        "Open this file": "Abrir este archivo",
        "Close the file": "Cerrar el archivo",
    }
    with pytest.raises(DataError, match="messages=FOLDER"):
        pairs.DATA["messages-es"](Place(tmp_path))


@pytest.mark.usefixtures("few")
def test_short_descriptions_of_packages_are_paired_with_long_ones(tmp_path):
    long = "It does one thing, and it does that thing rather well."
    (tmp_path / "some_i18n_Translation-en").write_text(
        f"Package: a\nDescription-en: a tool for things\n {long}\n .\n And more.\n\n"
        f"Package: b\nDescription-en: the same tool again\n {long}\n .\n And more.\n\n"
        f"Package: c\nDescription-en: another tool\n {long}\n\n"
        "Package: d\nDescription-en: too short to say\n Nothing.\n"
    )
    assert told("packages", tmp_path) == {
        "a tool for things": f"{long} And more.", "another tool": long,
    }  # fmt: skip
    with pytest.raises(DataError, match="packages=FOLDER"):
        pairs.DATA["packages"](Place(tmp_path))


def test_shares_that_do_not_exist_are_said_in_words():
    slow = [row("neighbours", seed, middle=0.5, final=0.7 + 0.2 * seed) for seed in range(2)]
    random = [row("random", seed, middle=0.5, final=0.8) for seed in range(2)]
    groups = {"random": random, "neighbours": slow}
    assert facts.reaching(groups) == "reach Random's final MRR in 1 of 2 seeds"
    assert facts.interval(facts.gain(slow[:1], random[:1]), "points") == "-10.0 points"


def test_random_that_is_early_at_its_own_end_is_said():
    """Its curve may pass its last value long before."""
    random = [row("random", seed, middle=0.8, final=0.8) for seed in range(3)]
    told = facts.reaching({"random": random, "neighbours": random})
    assert "Random itself first after 30 % of its steps" in told
