import json
from pathlib import Path

import numpy as np
from fake_runs import write_manifest, write_metrics, write_training_run

from eigenbatch.report.groups import differing, group, names, progress_by_epoch, progress_by_time
from eigenbatch.report.runs import find_folders, load_all


def loaded(folder):
    folders = find_folders([folder])
    return load_all(folders), names(folders)


def evaluated(folder, seed, accuracies):
    write_manifest(folder, {"selector": "random", "seed": seed})
    write_metrics(
        folder,
        [{"step": 10 * epoch, "epoch": epoch, "seconds": epoch * (seed + 1), "knn": accuracy}
         for epoch, accuracy in enumerate(accuracies, start=1)],
    )  # fmt: skip


def test_runs_that_differ_only_in_seed_are_one_group(tmp_path):
    for selector in ("p3", "random"):
        for seed in (0, 1):
            write_training_run(tmp_path / selector / f"seed-{seed}", selector=selector, seed=seed)
    write_training_run(tmp_path / "hot", selector="random", tau=0.5)
    runs, run_names = loaded(tmp_path)
    groups = group(runs, run_names)
    assert differing(runs) == ["tau", "selector"]
    assert {one.name: [run_names[index] for index in one.runs] for one in groups} == {
        "random · tau=0.5": ["hot"],
        "p3 · tau=0.2": ["p3/seed-0", "p3/seed-1"],
        "random · tau=0.2": ["random/seed-0", "random/seed-1"],
    }


def test_names_use_the_fewest_settings_that_tell_groups_apart(tmp_path):
    for number, tau in enumerate((0.1, 0.2)):
        settings = {"method": {"tau": tau}, "lr": number, "path": "/long" * 20 + str(number)}
        write_manifest(tmp_path / f"run-{number}", settings)
        write_metrics(tmp_path / f"run-{number}", [{"step": 1, "loss": 2.0}])
    one, other = group(*loaded(tmp_path))
    assert (one.name, other.name) == ("tau=0.1", "tau=0.2")
    assert one.details == f"method.tau=0.1, lr=0, path={'/long' * 20}0"


def test_a_long_value_is_cut_and_a_name_that_would_not_be_unique_is_the_folder(tmp_path):
    for number in range(2):
        write_manifest(tmp_path / f"run-{number}", {"path": f"{number}" + "/long" * 20})
        write_metrics(tmp_path / f"run-{number}", [{"step": 1, "loss": 2.0}])
    assert [one.name for one in group(*loaded(tmp_path))] == ["run-0", "run-1"]


def test_a_run_without_settings_is_a_group_of_its_own_at_the_end(tmp_path):
    write_metrics_only = tmp_path / "a"
    write_metrics_only.mkdir()
    write_metrics(write_metrics_only, [{"step": 1, "loss": 2.0}])
    evaluated(tmp_path / "b", 0, [0.5])
    runs, run_names = loaded(tmp_path)
    assert [one.name for one in group(runs, run_names)] == ["b", "a"]


def test_progress_by_epoch_is_the_mean_between_the_worst_and_the_best_seed(tmp_path):
    evaluated(tmp_path / "0", 0, [0.2, 0.4, 0.6])
    evaluated(tmp_path / "1", 1, [0.4, 0.8])  # not there yet
    went = progress_by_epoch(loaded(tmp_path)[0])
    np.testing.assert_allclose(went.x, [1, 2, 3])
    np.testing.assert_allclose(went.mean, [0.3, 0.6, 0.6])
    np.testing.assert_allclose(went.low, [0.2, 0.4, 0.6])
    np.testing.assert_allclose(went.high, [0.4, 0.8, 0.6])
    assert went.seeds.tolist() == [2, 2, 1]


def test_progress_by_time_compares_seeds_at_the_same_second(tmp_path):
    evaluated(tmp_path / "0", 0, [0.2, 0.4, 0.6])  # after 1, 2, 3 seconds
    evaluated(tmp_path / "1", 1, [0.4, 0.8])  # after 2, 4 seconds
    went = progress_by_time(loaded(tmp_path)[0])
    np.testing.assert_allclose(went.x, [2, 3, 4])  # at 1 the second seed is unknown
    np.testing.assert_allclose(went.low, [0.4, 0.6, 0.8])
    np.testing.assert_allclose(went.high, [0.4, 0.6, 0.8])
    assert went.seeds.tolist() == [2, 2, 1]


def test_a_finished_run_keeps_its_accuracy_while_slower_seeds_go_on(tmp_path):
    evaluated(tmp_path / "0", 0, [0.2, 0.4])  # after 1, 2 seconds
    evaluated(tmp_path / "1", 1, [0.4, 0.8])  # after 2, 4 seconds
    texts = (tmp_path / "0" / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    ending = {"step": 20, "epoch": 2, "seconds": 2, "finished": 1}
    write_metrics(tmp_path / "0", [*lines, ending])
    went = progress_by_time(loaded(tmp_path)[0])
    assert went.seeds.tolist() == [2, 2]
    np.testing.assert_allclose(went.mean, [0.4, 0.6])


def test_names_are_paths_below_what_all_share_and_sort_by_number(tmp_path):
    for seed in (0, 2, 10):
        evaluated(tmp_path / "x" / f"seed-{seed}", seed, [0.5])
    assert loaded(tmp_path)[1] == ["seed-0", "seed-2", "seed-10"]
    assert names([Path("/a/b/run")]) == ["run"]
