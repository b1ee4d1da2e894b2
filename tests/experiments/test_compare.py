import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from eigenbatch.errors import ParameterError
from eigenbatch.experiments.compare import compare
from eigenbatch.experiments.config import TrainConfig
from eigenbatch.experiments.statistics import first_crossing, paired_difference, summarise

SMALL = TrainConfig(epochs=2, batch_size=240, width=4, dim=16)


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


def test_a_summary_reads_time_and_areas_off_the_metrics():
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
    summary = summarise(metrics, target=0.6)
    assert (summary.first_accuracy, summary.final_accuracy) == (0.1, 0.8)
    assert (summary.seconds_to_target, summary.epochs_to_target) == (4.0, 1.5)
    assert summary.loss_area == 3.0 + 1.0
    assert summary.accuracy_area == pytest.approx(0.6)
    assert summary.peak_sigma == 0.7
    assert not summary.collapsed
    assert summary.selection_share == 0.05
    assert summary.mean_rank == 8.0
    assert summarise(metrics, target=0.9).seconds_to_target == math.inf
    collapsed = [*metrics, dict(metrics[4], **{"spectral/sigma_hat": 0.995})]
    assert summarise(collapsed, target=0.9).collapsed


@pytest.mark.slow
def test_a_comparison_is_paired_resumable_and_not_run_twice(tmp_path):
    asked = []
    options = {"progress": lambda *facts: asked.append(facts), "accelerator": "cpu"}
    first = compare(SMALL, ["random", "greedy-16"], 1, tmp_path, **options)
    assert [one[:2] for one in asked] == 2 * [("random", 0)] + 2 * [("greedy-16", 0)]
    assert [one[2] is None for one in asked] == [True, False, True, False]
    assert first.entries[0].accuracy_gain.mean == 0.0
    stamps = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("metrics.jsonl")}
    both = compare(SMALL, ["random", "greedy-16"], 2, tmp_path, **options)
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
        (["random", "greedy-x"], 1, "cannot be made"),
        (["random", "p1"], 0, "seeds must be at least 1"),
    ],
)
def test_bad_comparisons_raise_before_any_run(tmp_path, selectors, seeds, message):
    with pytest.raises(ParameterError, match=message):
        compare(dataclasses.replace(SMALL), selectors, seeds, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "place"), [(0.0, math.nan), (0.3, 1.0), (0.35, 1.5), (0.4, 2.0), (0.41, math.inf)]
)
def test_a_curve_crosses_its_target_between_two_points(target, place):
    found = first_crossing([0, 1, 2, 3], [0.2, 0.3, 0.4, 0.38], target)
    assert found == pytest.approx(place, nan_ok=True)


def test_a_run_that_diverges_has_no_loss_area():
    lines = [
        {"step": i, "epoch": i // 2, "seconds": 1.0, "loss": None if i > 2 else 5.0}
        for i in range(1, 5)
    ]
    lines.append({"step": 5, "epoch": 2, "seconds": 2.0, "knn": 0.5})
    assert math.isnan(summarise(lines, target=0.4).loss_area)
