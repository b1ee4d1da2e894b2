"""Sentence pairs: two towers with CLIP's loss fit the loop as it is."""

import gzip

import pytest
import torch
from torch import nn

from eigenbatch.errors import DataError, ParameterError
from eigenbatch.train.assembly import assemble
from eigenbatch.train.data.pairs import Vocabulary, aligned, lines_of, retrieval_ranks, words
from eigenbatch.train.data.sets.pairs import PairsConfig
from eigenbatch.train.devices import SingleCPU
from eigenbatch.train.encoders.text import WordBag
from eigenbatch.train.loop import Observer
from eigenbatch.train.methods import CLIPConfig
from eigenbatch.train.recipes import recipe
from eigenbatch.train.settings import override
from eigenbatch.train.views import ViewsConfig
from small_runs import StopAfter, facts, lines, start

pytestmark = pytest.mark.slow


def files(tmp_path, count=200):
    first = [f"word{i % 20} thing{i // 20} same" for i in range(count)]
    second = [f"mot{i % 20} chose{i // 20} meme" for i in range(count)]
    (tmp_path / "first.txt").write_text("\n".join(first))
    with gzip.open(tmp_path / "second.txt.gz", "wt") as file:
        file.write("\n".join(second))
    return tmp_path / "first.txt", tmp_path / "second.txt.gz"


def paired(tmp_path, *settings):
    first, second = files(tmp_path)
    return override(
        recipe("pairs-cpu"),
        [f"data.first={first}", f"data.second={second}", "batches.batch_size=20",
         "encoder.width=16", "method.dim=16", "budget.epochs=12", *settings],
    )  # fmt: skip


def test_two_towers_learn_to_find_each_others_sentences(tmp_path):
    found = lines(
        start(paired(tmp_path, "method.learn_tau=true", "optimizer.lr=0.02"), tmp_path / "run")
    )
    mrr = [line["mrr"] for line in found if "mrr" in line]
    assert mrr[0] < 0.25  # 20 test pairs: chance is 0.18
    assert mrr[-1] > 0.4
    taus = [line["spectral/tau"] for line in found if "spectral/tau" in line]
    assert taus[0] == pytest.approx(0.07, rel=0.05)
    assert taus[-1] != taus[0]


def test_a_resumed_run_of_pairs_equals_an_uninterrupted_one(tmp_path):
    run = paired(tmp_path, "budget.epochs=2", "batches.selector=greedy-16")
    whole = start(run, tmp_path / "whole")
    start(run, tmp_path / "cut", observers=[StopAfter(5)])
    assert facts(start(run, tmp_path / "cut", resume=True)) == facts(whole)


class Ratios(Observer):
    """How many times as hard held-out pairs are as training pairs, at every plan."""

    def __init__(self):
        self.seen, self.hard = {}, {}

    def on_step(self, training, step):
        plan = training.loader.batch_sampler.plan
        if plan.figures:
            self.seen[plan.epoch] = plan.figures["ratio"]
            self.hard[plan.epoch] = plan.figures["hard"]


def unrelated(tmp_path, *settings):
    """Pairs with a word of its own for each: nothing is learnt about others."""
    first, second = (tmp_path / f"{side}.txt" for side in ("own", "other"))
    first.write_text("\n".join(f"a{i}" for i in range(200)))
    second.write_text("\n".join(f"b{i}" for i in range(200)))
    return paired(
        tmp_path, f"data.first={first}", f"data.second={second}", "optimizer.lr=0.02",
        "batches.selector=auto-5", "budget.epochs=24", *settings,
    )  # fmt: skip


def test_auto_takes_random_batches_once_pairs_are_learnt_by_heart(tmp_path):
    run, ratios = unrelated(tmp_path, "data.held_out=40"), Ratios()
    start(run, tmp_path / "run", observers=[ratios])
    assert list(ratios.seen) == list(range(1, 24))  # in the first epoch no pair is known
    assert ratios.seen[1] < 5 < 20 < ratios.seen[23]
    assert all(ratios.hard[epoch] == (ratio < 5) for epoch, ratio in ratios.seen.items())
    whole = facts(start(run, tmp_path / "whole"))
    start(run, tmp_path / "cut", observers=[StopAfter(105)])
    assert facts(start(run, tmp_path / "cut", resume=True)) == whole


def test_auto_measures_held_out_and_training_pairs_with_the_same_model_in_the_same_mode(tmp_path):
    assembled = assemble(paired(tmp_path, "data.held_out=30"), SingleCPU())
    source, method = assembled.source, assembled.method
    assert len(source.train) == 150
    for held_out, pairs in ((True, source.unseen), (False, source.train)):
        found = source.pairs(method, held_out=held_out)()
        assert method.training
        method.eval()
        step = 1 if held_out else 5  # 30 of 150
        for side, sentences in enumerate((pairs.first[::step], pairs.second[::step])):
            assert torch.equal(found[side], method.embed(sentences, side))
        method.train()


@pytest.mark.parametrize(("count", "error", "message"), [
    (0, ParameterError, "compares training pairs with held-out ones: set data.held_out=512"),
    (1, ParameterError, "held-out ones, and there are too few: set data.held_out=512"),
    (180, DataError, "data.held_out=180 leaves none of 180 pairs"),
])  # fmt: skip
def test_too_few_or_too_many_held_out_pairs_are_refused(tmp_path, count, error, message):
    run = paired(tmp_path, f"data.held_out={count}", "batches.selector=auto")
    with pytest.raises(error, match=message):
        start(run, tmp_path / "run")
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_twentieth_of_the_pairs_is_held_out_for_auto(tmp_path):
    source = assemble(paired(tmp_path), SingleCPU()).source
    assert (len(source.unseen), len(source.train)) == (9, 171)  # 180 after those of the test


def test_too_few_pairs_for_a_test_are_refused(tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("a b\n" * 9)
    with pytest.raises(DataError, match="at least 10 are needed"):
        PairsConfig(first=few, second=few).open(ViewsConfig())


def test_a_line_ends_with_a_line_feed_and_nothing_else(tmp_path):
    """A separator within a sentence would shift every later pair by one."""
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\r\ntwo\u2028still two\x0cand now\nthree\x85\n".encode())
    assert lines_of(path) == ["one", "two\u2028still two\x0cand now", "three\x85"]
    path.write_bytes(b"one\n\ntwo")
    assert lines_of(path) == ["one", "", "two"]


def test_evaluation_may_be_counted_in_steps(tmp_path):
    settings = ["budget.epochs=2", "evaluation.every_steps=4", "data.held_out=0"]
    run = paired(tmp_path, *settings)  # 18 steps
    found = lines(start(run, tmp_path / "run"))
    evaluated = [line["step"] for line in found if "mrr" in line and "finished" not in line]
    assert evaluated == [0, 4, 8, 12, 16, 18]
    start(run, tmp_path / "cut", observers=[StopAfter(8)])
    assert facts(start(run, tmp_path / "cut", resume=True)) == [
        {k: v for k, v in line.items() if "seconds" not in k and k not in ("record", "check")}
        for line in found
    ]


def test_clip_projects_linearly_and_only_where_sizes_differ():
    same = CLIPConfig(dim=16).build(WordBag(9, 16), WordBag(9, 16))
    assert isinstance(same.head, nn.Identity)
    other = CLIPConfig(dim=8).build(WordBag(9, 16), WordBag(9, 16))
    assert (type(other.head), other.head.weight.shape, other.head.bias) == (
        nn.Linear, (8, 16), None,
    )  # fmt: skip


def test_words_are_counted_and_unknown_ones_share_an_id():
    vocabulary = Vocabulary(["a b b", "b c"], 4)
    assert words("Don't STOP!") == ["don", "'", "t", "stop", "!"]
    table = vocabulary.encode(["b a", "c", ""])
    assert len(vocabulary) == 4
    assert table[0, 0] == 2  # the most frequent word
    assert table[1].tolist() == [1, 0]  # unknown, padding
    assert table[2].tolist() == [0, 0]


def test_ranks_match_a_plain_sort_and_ties_count_half():
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 1500, 8, generator=generator)
    scores = (queries @ keys.T).double()
    expected = [1 + int((row > row[i]).sum()) for i, row in enumerate(scores)]
    assert retrieval_ranks(queries, keys).tolist() == expected
    same = torch.ones(3, 2)
    assert retrieval_ranks(same, same).tolist() == [2.0, 2.0, 2.0]


def test_files_must_exist_be_text_and_have_as_many_lines(tmp_path):
    first, second = files(tmp_path)
    (tmp_path / "short.txt").write_text("one\ntwo\nthree")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match=r"200 lines and .* 3"):
        aligned(first, tmp_path / "short.txt")
    with pytest.raises(DataError, match="cannot be read as UTF-8"):
        aligned(tmp_path / "binary.txt", second)
    with pytest.raises(ParameterError, match="no text file"):
        paired(tmp_path, "data.first=/nowhere").validate()
    with pytest.raises(ParameterError, match="or neither"):
        paired(tmp_path, f"data.test_first={first}").validate()
