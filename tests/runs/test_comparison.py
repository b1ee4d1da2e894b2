import json
import math
import os

import numpy as np
import pytest
import torch
from scipy import stats

from eigenbatch import PoolBalanced, PoolMin, compare
from eigenbatch.batches import OnLossPlateau
from eigenbatch.errors import ArgumentTypeError, ParameterError, RowError, RunError
from eigenbatch.runs import find_runs, first_crossing, paired_difference, read_run, summarise
from eigenbatch.train import comparing
from eigenbatch.train.comparing import compare_selectors
from eigenbatch.train.loop import Observer
from eigenbatch.train.run import Run
from eigenbatch.train.settings import override
from eigenbatch.train.trainer import train

SMALL = override(
    Run(), ["budget.epochs=2", "batches.batch_size=240", "encoder.width=4", "method.dim=16"]
)


def written(path, lines):
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_run(path)


def test_the_interval_and_p_value_are_those_of_scipys_paired_test():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 8), rng.normal(0, 1, 8)
    found, reference = paired_difference(a, b), stats.ttest_rel(a, b)
    interval = reference.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value == pytest.approx(reference.pvalue)
    assert found.mean == pytest.approx(np.mean(a - b))
    assert found.significant == (reference.pvalue < 0.05)


def test_one_pair_has_no_interval_and_an_unreached_target_no_mean():
    single = paired_difference([1.0], [0.5])
    assert single.mean == 0.5
    assert math.isnan(single.low)
    assert not single.significant
    assert not paired_difference([1.0, 1.0], [0.5, 0.5]).significant
    assert paired_difference([1.0, 1.0, 1.1], [0.5, 0.5, 0.5]).significant
    assert math.isnan(paired_difference([math.inf, 1.0], [1.0, 1.0]).low)
    with pytest.raises(ParameterError, match="2 and 1"):
        paired_difference([1.0, 2.0], [1.0])


def test_a_summary_reads_time_and_areas_off_the_metrics(tmp_path):
    metrics = [
        {"step": 0, "epoch": 0, "seconds": 0.0, "knn": 0.1},
        {"step": 1, "epoch": 0, "seconds": 1.0, "loss": 4.0, "sampler/seconds": 0.5,
         "sampler/participation_ratio": 8.0},
        {"step": 2, "epoch": 0, "seconds": 2.0, "loss": 2.0},
        {"step": 2, "epoch": 1, "seconds": 3.0, "knn": 0.4},
        {"step": 3, "epoch": 1, "seconds": 4.0, "spectral/sigma_hat": 0.7,
         "spectral/alignment": 0.5},
        {"step": 3, "epoch": 1, "seconds": 4.0, "loss": 1.0},
        {"step": 4, "epoch": 2, "seconds": 5.0, "knn": 0.8},
        {"step": 4, "epoch": 2, "seconds": 10.0, "knn": 0.8, "finished": 1},
    ]  # fmt: skip
    summary = summarise(written(tmp_path, metrics), target=0.6)
    assert (summary.first_accuracy, summary.final_accuracy) == (0.1, 0.8)
    assert (summary.seconds_to_target, summary.epochs_to_target) == (4.0, 1.5)
    assert summary.loss_area == 3.0 + 1.0
    assert summary.accuracy_area == pytest.approx((0.4 + 0.8) / 2)  # the last line is no epoch
    halved = summarise(written(tmp_path, metrics), area_epochs=1)
    assert halved.accuracy_area == pytest.approx(0.4)
    assert summary.peak_sigma == 0.7
    assert not summary.collapsed
    assert summary.selection_share == 0.05
    assert summary.mean_rank == 8.0
    assert summarise(written(tmp_path, metrics), target=0.9).seconds_to_target == math.inf
    for tower in ("", "first_tower/"):
        collapsed = [*metrics, dict(metrics[4], **{f"spectral/{tower}sigma_hat": 0.995})]
        found = summarise(written(tmp_path, collapsed), target=0.9)
        assert (found.collapsed, found.peak_sigma) == (True, 0.995)
    solved = [*metrics, dict(metrics[4], **{"spectral/alignment": 0.999})]
    assert not summarise(written(tmp_path, solved), target=0.9).collapsed


@pytest.mark.slow
def test_a_comparison_is_paired_resumable_and_not_run_twice(tmp_path):
    asked = []
    options = {"progress": lambda *facts: asked.append(facts), "accelerator": "cpu"}
    first = compare_selectors(SMALL, ["random", "greedy-16"], 1, tmp_path, **options)
    assert [one[:2] for one in asked] == 2 * [("random", 0)] + 2 * [("greedy-16", 0)]
    assert [one[2] is None for one in asked] == [True, False, True, False]
    assert first.entries[0].accuracy_gain.mean == 0.0
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.jsonl")}
    both = compare_selectors(SMALL, ["random", "greedy-16"], 2, tmp_path, **options)
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())
    greedy = both.entries[1]
    assert greedy.summaries[0].final_accuracy == first.entries[1].summaries[0].final_accuracy
    gains = [g.final_accuracy - r.final_accuracy
             for g, r in zip(greedy.summaries, both.entries[0].summaries, strict=True)]  # fmt: skip
    assert greedy.accuracy_gain.mean == pytest.approx(np.mean(gains))


@pytest.mark.parametrize(
    ("selectors", "seeds", "message"),
    [
        (["random"], 1, "at least two"),
        (["random", "random"], 1, "at least two different"),
        (["random", "best"], 1, "unknown selector 'best'"),
        (["random", "greedy-x"], 1, "not written as greedy"),
        (["random", "greedy-0"], 1, "'greedy-0' cannot be made"),
        (["random", "auto"], 1, "auto is for retrieval"),
        (["random", "p1"], 0, "seeds must be at least 1"),
    ],
)
def test_bad_comparisons_raise_before_any_run(tmp_path, selectors, seeds, message):
    with pytest.raises(ParameterError, match=message):
        compare_selectors(SMALL, selectors, seeds, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "place"), [(0.0, math.nan), (0.3, 1.0), (0.35, 1.5), (0.4, 2.0), (0.41, math.inf)]
)
def test_a_curve_crosses_its_target_between_two_points(target, place):
    found = first_crossing([0, 1, 2, 3], [0.2, 0.3, 0.4, 0.38], target)
    assert found == pytest.approx(place, nan_ok=True)


def test_epochs_may_be_fractions(tmp_path):
    lines = [
        {"step": i, "epoch": i / 50, "seconds": 1.0, "loss": 2.0, "knn": 0.5} for i in range(100)
    ]
    assert summarise(written(tmp_path, lines), target=0.3).loss_area == 4.0


def test_rounding_is_no_difference():
    for values in ([0.1 + 0.2] * 3, [0.3, 0.3, 0.1 + 0.2]):
        found = paired_difference(values, [0.3] * 3)
        assert (found.mean, found.low, found.high, found.p_value) == (0, 0, 0, 1)
        assert not found.significant
    assert paired_difference([0.4] * 3, [0.3] * 3).significant


@pytest.mark.slow
def test_runs_of_another_length_are_not_compared(tmp_path):
    compare_selectors(SMALL, ["random", "p1"], 1, tmp_path, accelerator="cpu")
    with pytest.raises(RunError, match="runs that are compared have the same schedule"):
        compare_selectors(override(SMALL, ["budget.epochs=3"]), ["greedy-16", "p1"], 1, tmp_path)
    assert not (tmp_path / "greedy-16").exists()  # nothing was trained


@pytest.mark.slow
def test_a_run_that_diverges_does_not_keep_others_from_finishing(tmp_path, monkeypatch):
    class Diverge(Observer):
        def on_step(self, training, step):
            raise RowError("row 0 of z holds NaN")

    def diverging(run, path, **options):
        first = run.batches.selector == "p1" and run.seed == 0
        return train(run, path, observers=[Diverge()] if first else [], **options)

    monkeypatch.setattr(comparing, "train", diverging)
    with pytest.raises(RunError, match=r"1 of 4 runs cannot be compared.*p1/seed-0: row 0"):
        compare_selectors(SMALL, ["p1", "random"], 2, tmp_path, accelerator="cpu")
    done = {path: read_run(path).finished for path in find_runs([tmp_path])}
    assert [path.relative_to(tmp_path).as_posix() for path in done if not done[path]] == [
        "p1/seed-0"
    ]
    assert sum(done.values()) == 3


def test_a_run_without_epochs_has_no_loss_area(tmp_path):
    lines = [{"step": i, "seconds": 1.0 * i, "loss": 5.0, "knn": 0.1 * i} for i in range(1, 5)]
    assert math.isnan(summarise(written(tmp_path, lines), target=0.3).loss_area)


def test_a_run_that_diverges_keeps_the_losses_it_had(tmp_path):
    lines = [
        {"step": i, "epoch": i // 2, "seconds": 1.0, "loss": None if i > 2 else 5.0}
        for i in range(1, 5)
    ]
    lines.append({"step": 5, "epoch": 2, "seconds": 2.0, "knn": 0.5})
    assert summarise(written(tmp_path, lines), target=0.4).loss_area == 10.0


def trained(selector, seed, run):
    for step in range(4):
        run.log(step, epoch=step, loss=3.0 - step, knn=0.1 + 0.2 * step + 0.01 * seed + selector)


def test_your_own_training_is_compared_in_pairs(tmp_path):
    result = compare(trained, {"random": 0.0, "better": 0.05}, 4, tmp_path)
    assert result.entries[1].accuracy_gain.mean == pytest.approx(0.05)
    assert result.entries[1].accuracy_gain.significant
    assert "better: +0.0500" in str(result)
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.jsonl")}
    assert len(stamps) == 8
    compare(trained, {"random": 0.0, "better": 0.05}, 4, tmp_path)
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in stamps.items())


def test_no_time_is_saved_where_the_baseline_never_gets_there(tmp_path):
    result = compare(trained, {"random": 0.0, "better": 0.2}, 3, tmp_path, target=0.85)
    saved = result.entries[1].time_saved
    assert math.isnan(saved.mean)
    assert not saved.significant


def test_with_a_selector_that_remembers_the_next_run_does_not_begin_where_this_one_ended(tmp_path):
    begun = []

    def draws(selector, seed, run):
        begun.append(len(selector._seen))
        pool = torch.randn(40, 8, generator=torch.Generator().manual_seed(seed))
        selector(pool, 10)
        assert len(selector._seen) == 4
        run.log(1, knn=0.5)

    policy = PoolBalanced()
    compare(draws, {"one": policy, "other": PoolBalanced()}, 3, tmp_path)
    assert begun == [0] * 6
    assert not policy._seen


def test_with_a_plateau_of_the_loss_the_next_run_does_not_begin_where_this_one_ended(tmp_path):
    begun = []

    def stands_still(planner, seed, run):
        begun.append(planner.reached)
        for _ in range(300):
            planner.observe(1.0)
        assert planner.reached
        run.log(1, knn=0.5)

    plateau = OnLossPlateau(PoolMin(), PoolBalanced())
    compare(stands_still, {"one": plateau, "other": plateau}, 2, tmp_path)
    assert begun == [False] * 4
    assert not plateau.reached


def test_a_run_that_stops_early_is_compared_as_it_is(tmp_path):
    def stops(selector, seed, run):
        run.log(1, knn=0.5)
        run.stop("collapsed")

    result = compare(stops, ["one", "other"], 3, tmp_path)
    assert result.entries[1].accuracy_gain.mean == 0


def test_an_interrupted_run_of_your_own_starts_anew_and_keeps_its_lines(tmp_path):
    def breaks(selector, seed, run):
        run.log(1, knn=0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(breaks, ["a", "b"], 1, tmp_path)
    compare(lambda s, seed, run: run.log(1, knn=0.5), ["a", "b"], 1, tmp_path)
    assert (tmp_path / "a" / "seed-0" / "metrics.jsonl.interrupted").exists()


def test_training_without_an_accuracy_says_what_to_log(tmp_path):
    with pytest.raises(RunError, match=r"recorder\.log"):
        compare(lambda s, seed, run: run.log(1, loss=1.0), ["a", "b"], 1, tmp_path)
    compare(lambda s, seed, run: run.log(1, knn=0.5), ["a", "b"], 1, tmp_path)  # corrected


def test_a_seed_counts_once(tmp_path):
    with pytest.raises(ParameterError, match=r"once only, got \[0, 1, 0\]"):
        compare(trained, ["a", "b"], [0, 1, 0], tmp_path)


@pytest.mark.parametrize("name", ["", "..", "/elsewhere", "a/b"])
def test_a_name_of_a_selector_is_that_of_a_folder(tmp_path, name):
    with pytest.raises(ParameterError, match="that of a folder of runs"):
        compare(trained, {"random": 0.0, name: 0.1}, 1, tmp_path)
    with pytest.raises(ParameterError, match="dict of selectors by name"):
        compare(trained, {"random": 0.0, 64: 0.1}, 1, tmp_path)


@pytest.mark.parametrize("target", [0.0, 1.0, -0.5, 7.0, math.nan, math.inf])
def test_a_target_is_an_accuracy(tmp_path, target):
    with pytest.raises(ParameterError, match="target must be"):
        compare(trained, ["a", "b"], 1, tmp_path, target=target)


def test_a_hole_in_a_finished_run_is_an_error_of_the_comparison(tmp_path):
    compare(trained, {"random": 0.0, "better": 0.05}, 1, tmp_path)
    metrics = tmp_path / "better" / "seed-0" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[1:]))
    with pytest.raises(RunError, match="lost or changed lines"):
        compare(trained, {"random": 0.0, "better": 0.05}, 1, tmp_path)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"train": None}, "train"),
        ({"train": "train"}, "train"),
        ({"selectors": "random"}, "selectors"),
        ({"selectors": None}, "selectors"),
        ({"selectors": [1, 2]}, "selectors"),
        ({"seeds": 2.5}, "seeds"),
        ({"seeds": "3"}, "seeds"),
        ({"seeds": None}, "seeds"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, change, name):
    arguments = {"train": trained, "selectors": ["a", "b"], "seeds": 1, "path": tmp_path}
    with pytest.raises((ParameterError, ArgumentTypeError), match=f"{name} must"):
        compare(**arguments | change)


def test_runs_judged_by_different_metrics_are_not_compared(tmp_path):
    def train(selector, seed, run):
        run.log(1, **({"knn": 0.5} if selector == "a" else {"accuracy": 0.9}))

    with pytest.raises(RunError, match=r"b/seed-0 is judged by 'accuracy', \S+a/seed-0 by 'knn'"):
        compare(train, ["a", "b"], 2, tmp_path)


def test_a_comparison_survives_a_change_of_directory_and_names_its_baseline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train(selector, seed, run):
        run.log(1, knn=0.5)
        elsewhere = tmp_path / selector
        elsewhere.mkdir(exist_ok=True)
        os.chdir(elsewhere)
        run.log(2, knn=0.5 + 0.1 * (selector == "uniform"))

    result = compare(train, ["uniform", "hard"], 2, "runs")
    assert result.entries[1].accuracy_gain.mean == pytest.approx(-0.1)
    for selector in ("uniform", "hard"):
        record = read_run(tmp_path / "runs" / selector / "seed-1")
        assert len(record.series["knn"]) == 2
        assert record.origin["baseline"] == "uniform"
    compare(train, ["hard", "uniform"], 2, tmp_path / "runs")
    assert read_run(tmp_path / "runs" / "uniform" / "seed-0").origin["baseline"] == "hard"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([{"step": 0, "knn": 0.5}, {"step": 10, "knn": 0.9}], 0.5),
        ([{"step": 0, "epoch": 0, "knn": 0.5}, {"step": 1, "epoch": 1, "knn": 0.9}], 0.5),
        ([{"step": 0, "knn": 0.5}, {"step": 1, "knn": 0.9}], math.nan),  # epochs from 0?
        ([{"step": 0, "knn": 0.5, "loss": 2.0}, {"step": 9, "knn": 0.9}], math.nan),
    ],
)
def test_an_evaluation_after_the_first_epoch_is_not_the_untrained_encoder(
    tmp_path, lines, expected
):
    record = written(tmp_path, lines)
    assert summarise(record).first_accuracy == pytest.approx(expected, nan_ok=True)
