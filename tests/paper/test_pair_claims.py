"""Claims on sentence pairs: their data, and judges that can say yes and no."""

import gzip
import struct

import pytest

from eigenbatch.errors import DataError
from eigenbatch_paper import found_pairs
from eigenbatch_paper import pair_facts as facts
from eigenbatch_paper.caption_runs import CAPTIONS, TEST_PICTURES, picture_captions
from eigenbatch_paper.claim import Place
from eigenbatch_paper.claims import (
    caption_batches,
    code_search,
    filled_cache,
    finetuned_batches,
    guarded_batches,
    hard_batches,
    memorised_pairs,
    message_translations,
    miss_law,
)
from eigenbatch_paper.pair_runs import pair_chunk, run_of

STEPS = [0.0, 500.0, 1000.0]


def row(policy, seed, *, final, middle, **settings):
    policy, _, filled = policy.partition(", ")
    selector = "neighbours-4" if policy == "guarded" else policy
    guard = {"guard": 0.95} if policy == "guarded" else {}
    guard |= {"fill_step": 100} if filled else {}
    noise = 1e-4 * seed
    return {
        "selector": selector, "seed": seed, "steps": STEPS, "times": [0.0, 20.0 + seed, 40.0],
        "mrr": [0.0, middle + noise, final + noise], "miss": 0.03, **guard, **settings,
    }  # fmt: skip


def hard_rows(middle, final):
    ends = {"random": (0.8, 0.85), "neighbours-4": (middle, final), "auto": (middle, final),
            "greedy-64": (0.7, 0.8)}  # fmt: skip
    return [
        row(name, seed, middle=a, final=b, batch_size=n)
        for n in (64, 256) for seed in range(3) for name, (a, b) in ends.items()
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("middle", "final", "outcome"),
    [(0.95, 0.96, "reproduced"), (0.8, 0.96, "does not reproduce"),
     (0.86, 0.865, "does not reproduce")],
)  # fmt: skip
def test_hard_batches_are_judged_by_steps_time_and_gain(middle, final, outcome):
    assert hard_batches.judge(hard_rows(middle, final)).outcome == outcome


@pytest.mark.parametrize(
    ("guarded", "auto", "outcome"),
    [(0.875, 0.875, "reproduced"), (0.865, 0.865, "does not reproduce"),
     (0.875, 0.865, "holds under stated conditions")],
)  # fmt: skip
def test_guarded_batches_and_auto_must_keep_the_gain_of_plain_data(guarded, auto, outcome):
    ends = {"random": 0.85, "neighbours-4": 0.855, "guarded": 0.86, "auto": 0.86,
            "guarded, filled": guarded, "auto, filled": auto}  # fmt: skip
    plain = {"random": 0.84, "neighbours-4": 0.866, "neighbours-4, filled": 0.866}
    rows = [
        row(name, seed, middle=0.7, final=end, data=data)
        for data in ("tripled", "long-tailed") for seed in range(3) for name, end in ends.items()
    ]  # fmt: skip
    rows += [
        row(name, seed, middle=0.7, final=end, data="plain", **size)
        for size in ({}, {"train_size": 29000}) for seed in range(4) for name, end in plain.items()
    ]  # fmt: skip
    assert guarded_batches.judge(rows).outcome == outcome  # the fourth seed has no copies yet
    single = [one for one in rows if one["seed"] == 0]
    assert guarded_batches.judge(single).outcome == "inconclusive"
    copied = [one for one in rows if one["data"] != "plain"]
    apart = [one for one in rows if (one["data"] == "plain") == (one["seed"] == 0)]
    for some in (copied, apart):
        verdict = guarded_batches.judge(some)
        assert verdict.outcome == "inconclusive"
        assert verdict.measured.count("no seed has all runs yet") == 2


@pytest.mark.parametrize(
    ("short", "long", "auto", "outcome"),
    [((0.86, 0.9), 0.9, 0.9, "reproduced"), ((0.84, 0.9), 0.9, 0.9, "does not reproduce"),
     ((0.86, 0.87), 0.9, 0.9, "does not reproduce"), ((0.86, 0.9), 0.87, 0.9, "does not reproduce"),
     ((0.86, 0.9), 0.9, 0.88, "holds under stated conditions")],
)  # fmt: skip
def test_a_filled_cache_must_help_short_runs_and_not_harm_long_ones(short, long, auto, outcome):
    steps = [0.0, 300.0, 1000.0]
    filled = {64: short, 256: (0.86, long)}
    rows = [
        row(name, seed, middle=middle, final=final, batch_size=n) | {"steps": steps}
        for n in filled for seed in range(3)
        for name, middle, final in (
            ("random", 0.7, 0.85), ("neighbours-4", 0.8, 0.88),
            ("neighbours-4, filled", *filled[n]), ("auto, filled", 0.86, auto),
        )
    ]  # fmt: skip
    assert filled_cache.judge(rows).outcome == outcome
    if short[0] > 0.85:
        single = [one for one in rows if one["seed"] == 0]
        assert filled_cache.judge(single).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("gains", "auto", "outcome"),
    [((0.03, 0.01, 0.0), 0.0, "reproduced"), ((0.03, 0.01, 0.02), 0.0, "does not reproduce"),
     ((0.03, 0.01, 0.0), -0.01, "holds under stated conditions")],
)  # fmt: skip
def test_the_gain_must_fall_as_the_miss_rises(gains, auto, outcome):
    rows = [
        row(name, seed, middle=0.7, final=0.8 + more, tau=tau) | {"miss": tau}
        for tau, gain in zip(miss_law.TEMPERATURES, gains, strict=True) for seed in range(3)
        for name, more in (("random", 0), ("neighbours-4", gain), ("auto", auto))
    ]  # fmt: skip
    assert miss_law.judge(rows).outcome == outcome


@pytest.mark.parametrize(
    ("neighbours", "auto", "told", "elsewhere", "outcome"),
    [(-0.05, 0.0, 0.0, 0.05, "reproduced"),
     (-0.05, 0.0, 0.0, 0.01, "holds under stated conditions"),
     (-0.05, -0.02, 0.0, 0.05, "does not reproduce"),
     (-0.05, 0.0, -0.02, 0.05, "does not reproduce"),
     (0.05, 0.0, 0.0, 0.05, "does not reproduce")],
)  # fmt: skip
def test_auto_must_lose_nothing_where_pairs_are_memorised(
    neighbours, auto, told, elsewhere, outcome
):
    gains = {
        "captions": {"random": 0.0, "neighbours-4": neighbours, "auto": auto, "auto, told": told},
        "plain": {"random": 0.0, "neighbours-4": 0.05, "auto": 0.05, "auto, told": elsewhere},
    }
    rows = [
        row(selector, seed, middle=0.5, final=0.6 + gains[data][arm], data=data, held_out=held_out)
        | {"solved": 1.0}
        for data in gains for seed in range(3)
        for arm, (selector, held_out) in memorised_pairs.ARMS.items()
    ]  # fmt: skip
    assert memorised_pairs.judge(rows).outcome == outcome


def test_pairs_of_captions_are_of_one_picture(tmp_path):
    pictures = TEST_PICTURES + 5
    texts = [f"{i}.jpg#{j}\tcaption {j} of {i}" for i in range(pictures) for j in range(2)]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(texts))
    chunk = pair_chunk(
        "small", 0, data="captions", selector="random", batch_size=4, held_out=0, train_size=5
    )
    place = Place(tmp_path, {CAPTIONS: tmp_path})
    data = run_of(chunk, place).data
    for first, second, count in (
        (data.first, data.second, 5),
        (data.test_first, data.test_second, TEST_PICTURES),
    ):
        ours, theirs = (path.read_text().splitlines() for path in (first, second))
        assert len(ours) == count
        assert [a.replace("caption 0", "caption 1") for a in ours] == theirs


def test_versions_of_the_data_repeat_training_pairs_and_keep_the_test(tmp_path):
    for language in ("de", "en"):
        for name, count in (("train", 200), ("val", 7)):
            text = "\n".join(f"{language} {name} {i}" for i in range(count)).encode()
            (tmp_path / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
    place = Place(tmp_path / "runs", {"multi30k": tmp_path})
    counts = {}
    for version in ("plain", "tripled", "long-tailed"):
        chunk = pair_chunk("small", 0, data=version, selector="random", batch_size=64, epochs=1)
        data = run_of(chunk, place).data
        lines = data.first.read_text().splitlines()
        assert lines[0] == "en train 0"
        assert len(lines) == len(data.second.read_text().splitlines())
        assert len(data.test_first.read_text().splitlines()) == 7
        counts[version] = len(lines)
    assert counts == {"plain": 200, "tripled": 600, "long-tailed": 2 * 50 + 18 * 5 + 180}
    with pytest.raises(DataError, match="two languages, found none"):
        run_of(chunk, Place(tmp_path / "other", {"multi30k": tmp_path / "runs"}))


def caption_rows(gain, loss=0.02):
    ends = {"random": 0.6, "neighbours-4": 0.6 + gain, "auto": 0.6 + gain, "greedy-64": 0.6 - loss}
    return [
        row(name, seed, middle=0.5, final=end) for seed in range(3) for name, end in ends.items()
    ]


@pytest.mark.parametrize(("gain", "outcome"), [(0.01, "reproduced"), (-0.01, "does not reproduce")])
def test_batches_of_captions_are_judged_by_the_interval_of_the_gain(gain, outcome):
    assert caption_batches.judge(caption_rows(gain)).outcome == outcome
    assert caption_batches.judge(caption_rows(gain, loss=-0.02)).outcome != "reproduced"


@pytest.mark.parametrize(
    ("ours", "auto", "spearman", "outcome"),
    [(0.72, 0.718, 0.8, "reproduced"), (0.72, 0.72, 0.7, "holds under stated conditions"),
     (0.72, 0.71, 0.8, "holds under stated conditions"), (0.69, 0.7, 0.8, "does not reproduce")],
)  # fmt: skip
def test_fine_tuning_is_judged_against_each_rival(ours, auto, spearman, outcome):
    ends = {"random": 0.7, "no-duplicates": 0.7, "mined": 0.68, "neighbours-4": ours, "auto": auto}
    rows = [
        {"batches": name, "seed": seed, "mrr": end + 1e-4 * seed * len(name), "steps": 100,
         "spearman": (spearman if name == "neighbours-4" else 0.8) + 1e-4 * seed * len(name),
         "mrr_before": 0.5, "spearman_before": 0.8}
        for seed in range(3) for name, end in ends.items()
    ]  # fmt: skip
    assert finetuned_batches.judge(rows).outcome == outcome


def test_captions_are_grouped_by_picture(tmp_path):
    lines = ["b.jpg#0 a dog", "b.jpg#1\ta wet dog", "a.jpg#0\tone only"]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(lines))
    assert picture_captions(tmp_path) == [["a dog", "a wet dog"]]
    with pytest.raises(DataError, match="flickr8k=FOLDER"):
        picture_captions(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("auto", "outcome"),
    [(0.61, "reproduced"), (0.6, "holds under stated conditions"), (0.59, "does not reproduce")],
)
def test_auto_on_unseen_pairs_is_judged_against_random_and_the_better(auto, outcome):
    ends = {"random": 0.6, "neighbours-4": 0.612, "auto": auto}
    rows = [
        row(name, seed, middle=0.5, final=end, batch_size=n, solved=0.9)
        for n in (64, 256) for seed in range(3) for name, end in ends.items()
    ]  # fmt: skip
    assert code_search.judge(rows).outcome == outcome


def test_runs_with_a_filled_cache_are_a_setting_of_their_own():
    ends = {"random": 0.6, "neighbours-4": 0.61, "auto": 0.61, "neighbours-4, filled": 0.62,
            "auto, filled": 0.62}  # fmt: skip
    rows = [
        row(name, seed, middle=0.5, final=end, batch_size=64, data="messages-es", solved=0.9)
        for seed in range(3) for name, end in ends.items()
    ]  # fmt: skip
    measured = message_translations.judge(rows).measured
    assert "Spanish, n=64: neighbours-4 +1.0 points" in measured
    assert "Spanish, n=64, cache filled after 100 steps: neighbours-4 +2.0 points" in measured


def test_functions_are_paired_with_what_they_say(tmp_path, monkeypatch):
    monkeypatch.setattr(found_pairs, "TESTED", 1)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "some.py").write_text(
        "def f(size, weight):\n"
        '    """Weigh a number of\n    things at once.\n\n    More."""\n'
        "    total = size * weight  # not kept\n    return total\n"
        'def g():\n    """Give a very short answer."""\n    return 1\n'
    )
    with pytest.raises(DataError, match="have 1 functions with a docstring, more than 1 are"):
        found_pairs.code_pairs(tmp_path)
    (tmp_path / "more.py").write_text(
        'def h(all):\n    """Copy everything given."""\n    return [one.copy() for one in all]\n'
    )
    (said, said_test), (done, done_test) = found_pairs.code_pairs(tmp_path)
    assert dict(zip(said + said_test, done + done_test, strict=True)) == {
        "Weigh a number of things at once.": "size weight total = size * weight return total",
        "Copy everything given.": "all return [one.copy() for one in all]",
    }
    with pytest.raises(DataError, match="python=FOLDER"):
        found_pairs.code_pairs(None)


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


def test_messages_are_paired_with_their_translations(tmp_path, monkeypatch):
    monkeypatch.setattr(found_pairs, "TESTED", 1)
    folder = tmp_path / "es" / "LC_MESSAGES"
    catalogue(folder, "iso-3166.mo", {"Some far away land": "Un país lejano"})
    catalogue(folder, "a.mo", {"": "header", "_Open this file": "Abrir este archivo", "No": "No"})
    with pytest.raises(DataError, match="has 1 translated messages, more than 1 are needed"):
        found_pairs.message_pairs(tmp_path, "es")
    found = {
        "menu\x04Close the file\0Close %d files": "Cerrar el archivo\0Cerrar %d archivos",
        "Not yet translated": "", "GNU C Library": "GNU C Library",
    }  # fmt: skip
    catalogue(folder, "b.mo", found, order=">")
    (folder / "cut.mo").write_bytes((folder / "a.mo").read_bytes()[:40])
    (folder / "latin.mo").write_bytes((folder / "a.mo").read_bytes()[:-3] + b"\xf1o\0")
    (english, english_test), (spanish, spanish_test) = found_pairs.message_pairs(tmp_path, "es")
    assert dict(zip(english + english_test, spanish + spanish_test, strict=True)) == {
        "Open this file": "Abrir este archivo",
        "Close the file": "Cerrar el archivo",
    }
    with pytest.raises(DataError, match="messages=FOLDER"):
        found_pairs.message_pairs(None, "es")


def test_shares_that_do_not_exist_are_said_in_words():
    slow = [row("neighbours-4", seed, middle=0.5, final=0.7 + 0.2 * seed) for seed in range(2)]
    random = [row("random", seed, middle=0.5, final=0.8) for seed in range(2)]
    assert facts.reaching(slow, random) == "reach Random's final MRR in 1 of 2 seeds"
    assert facts.interval(facts.gain(slow[:1], random[:1]), "points") == "-10.0 points"


def test_random_that_is_early_at_its_own_end_is_said():
    """Its curve may pass its last value long before."""
    random = [row("random", seed, middle=0.8, final=0.8) for seed in range(3)]
    assert "Random itself first after 50 % of its steps" in facts.reaching(random, random)
