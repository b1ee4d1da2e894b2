import json

import numpy as np
import pytest
from fake_runs import write_manifest, write_metrics
from scipy import stats

from eigenbatch.report.groups import group, names
from eigenbatch.report.paired import pairings
from eigenbatch.report.runs import find_folders, load_all


def write(folder, selector, seed, accuracies, *, finished=True, pace=1.0, **settings):
    write_manifest(folder / f"{selector}-{seed}", {"selector": selector, "seed": seed} | settings)
    lines = [
        {"step": epoch, "epoch": epoch, "seconds": pace * epoch, "knn": accuracy}
        for epoch, accuracy in enumerate(accuracies)
    ]
    write_metrics(folder / f"{selector}-{seed}", lines + [lines[-1] | {"finished": 1}] * finished)


def pairs(folder):
    folders = find_folders([folder])
    runs = load_all(folders)
    groups = group(runs, names(folders))
    return groups, pairings(runs, groups)


def test_gains_are_paired_by_seed_and_match_scipy(tmp_path):
    generator = np.random.default_rng(1)
    luck = generator.normal(0.8, 0.05, 6)
    gains = generator.normal(0.02, 0.01, 6)
    for seed in range(6):
        write(tmp_path, "random", seed, [0.1, luck[seed]])
        write(tmp_path, "p3", seed, [0.1, luck[seed] + gains[seed]])
    groups, [pairing] = pairs(tmp_path)
    assert groups[pairing.baseline].settings["selector"] == "random"
    test = stats.ttest_rel(luck + gains, luck)
    interval = test.confidence_interval(0.95)
    np.testing.assert_allclose(pairing.gains, gains)
    np.testing.assert_allclose(
        (pairing.gain.mean, pairing.gain.low, pairing.gain.high, pairing.gain.p_value),
        (gains.mean(), interval.low, interval.high, test.pvalue),
    )


def test_only_finished_runs_with_a_seed_in_common_are_paired(tmp_path):
    for seed in (0, 1, 2):
        write(tmp_path, "random", seed, [0.5])
    for seed in (1, 2, 3):
        write(tmp_path, "p3", seed, [0.6], finished=seed != 2)
    _, [pairing] = pairs(tmp_path)
    assert pairing.seeds == ("1",)
    assert not pairing.gain.enough


def test_runs_that_are_judged_by_different_numbers_are_not_paired(tmp_path):
    write(tmp_path, "random", 0, [0.5])
    write(tmp_path, "p3", 0, [0.9])
    metrics = tmp_path / "p3-0" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("knn", "mrr"))
    assert pairs(tmp_path)[1] == []


def test_time_saved_is_measured_to_nine_tenths_of_what_the_baseline_gains(tmp_path):
    for seed in range(3):
        write(tmp_path, "random", seed, [0.2, 0.6, 0.84, 1.0], pace=2.0)  # 0.92 after 5 s
        write(tmp_path, "p3", seed, [0.52, 0.92, 0.97, 0.98], pace=3.0)  # 0.92 after 3 s
    _, [pairing] = pairs(tmp_path)
    assert pairing.target == pytest.approx(0.92)
    assert pairing.time_saved.mean == pytest.approx(1 - 3 / 5)


def test_runs_with_other_settings_are_not_compared(tmp_path):
    write(tmp_path, "random", 0, [0.5], tau=0.1)
    write(tmp_path, "p3", 0, [0.6], tau=0.2)
    assert pairs(tmp_path)[1] == []


def test_a_target_that_is_never_reached_gives_no_time(tmp_path):
    write(tmp_path, "random", 0, [0.9])
    write(tmp_path, "p3", 0, [0.1])
    _, [pairing] = pairs(tmp_path)
    assert np.isnan(pairing.time_saved.mean)


def test_the_baseline_is_the_one_that_the_comparison_had(tmp_path):
    for seed in range(2):
        for selector, accuracy in (("hard", 0.6), ("uniform", 0.5)):
            write(tmp_path, selector, seed, [0.1, accuracy + 0.01 * seed])
            manifest = tmp_path / f"{selector}-{seed}" / "manifest.json"
            manifest.write_text(
                json.dumps(json.loads(manifest.read_text()) | {"baseline": "uniform"})
            )
    groups, [pairing] = pairs(tmp_path)
    assert groups[0].settings["selector"] == "uniform"
    assert pairing.baseline == 0
    assert pairing.gain.mean == pytest.approx(0.1)
