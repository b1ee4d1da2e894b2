"""The sentences at the top of the page say what was shown, and no more."""

from fake_runs import finding, write_manifest, write_metrics

from eigenbatch.report.groups import group, names
from eigenbatch.report.paired import pairings
from eigenbatch.report.runs import find_folders, load_all
from eigenbatch.report.verdict import verdict


def write(folder, selector, seed, accuracies, *, finished=True, **config):
    place = folder / f"{selector}-{seed}"
    write_manifest(place, {"batches": {"selector": selector}, "seed": seed, **config})
    lines = [
        {"step": 10 * i, "epoch": i, "seconds": float(i), "knn": accuracy}
        for i, accuracy in enumerate(accuracies)
    ]
    write_metrics(place, lines + [lines[-1] | {"finished": 1}] * finished)


def sentences(folder):
    folders = find_folders([folder])
    runs = load_all(folders)
    groups = group(runs, names(folders))
    return verdict(runs, groups, pairings(runs, groups))


def test_a_difference_is_named_with_its_interval_and_the_untrained_encoder(tmp_path):
    for seed in range(3):
        write(tmp_path, "greedy-64", seed, [0.4, 0.65 + 0.001 * seed])
        write(tmp_path, "random", seed, [0.4, 0.60])
    better, untrained = sentences(tmp_path)
    assert better == (
        "greedy-64: +5.1 points against random "
        "(k-NN accuracy 60.0 %; 95 % interval +4.9 to +5.3): better."
    )
    assert untrained == "Untrained: 40.0 %."


def test_untrained_encoders_of_different_tasks_have_no_mean(tmp_path):
    write(tmp_path, "random", 0, [0.1, 0.3], data="A")
    write(tmp_path, "p3", 0, [0.8, 0.9], data="B")
    assert not any("Untrained" in text for text in sentences(tmp_path))


def test_chance_shows_no_difference_and_two_seeds_tell_nothing(tmp_path):
    for seed, gain in enumerate([0.02, -0.02, 0.01]):
        write(tmp_path / "three", "p3", seed, [0.4, 0.6 + gain])
        write(tmp_path / "three", "random", seed, [0.4, 0.6])
    assert sentences(tmp_path / "three")[0].endswith("no difference shown.")
    for seed in range(2):
        write(tmp_path / "two", "p3", seed, [0.4, 0.9])
        write(tmp_path / "two", "random", seed, [0.4, 0.6])
    assert sentences(tmp_path / "two")[0].endswith("2 paired seeds are too few to tell.")


def test_the_level_of_the_baseline_is_that_of_the_compared_seeds(tmp_path):
    for seed in range(3):
        write(tmp_path, "auto", seed, [0.4, 0.85])
        write(tmp_path, "random", seed, [0.4, 0.80])
    write(tmp_path, "random", 3, [0.1], finished=False)
    assert "against random (k-NN accuracy 80.0 %;" in sentences(tmp_path)[0]


def test_a_single_run_says_what_it_reached(tmp_path):
    write(tmp_path, "p3", 0, [0.4, 0.7], finished=False)
    assert sentences(tmp_path) == [
        "p3-0: k-NN accuracy 70.0 % (1 of 1 unfinished).",
        "Untrained: 40.0 %.",
    ]


def test_a_group_outside_all_comparisons_is_named_with_its_warning(tmp_path):
    for seed in range(3):
        for selector in ("random", "p3"):
            write(tmp_path, selector, seed, [0.4, 0.6])
    broken = tmp_path / "broken"
    write_manifest(broken, {"batches": {"selector": "random"}, "tau": 5, "seed": 0})
    warning = finding("temperature too high", "warning", "tau = 5")
    lines = [{"step": step, "mrr": 0.2, "findings": [warning]} for step in (50, 100)]
    write_metrics(broken, [*lines, lines[-1] | {"finished": 1}])
    assert sentences(tmp_path)[1] == (
        "random · tau=5: mean reciprocal rank 20.0 %; warning from step 50: temperature too high."
    )


def test_many_groups_are_summed_up_in_one_sentence(tmp_path):
    for number in range(9):
        write(tmp_path, f"s{number}", number, [0.4, 0.5 + number / 100], finished=False)
    assert sentences(tmp_path)[0] == "9 groups, k-NN accuracy from 50.0 % (s0) to 58.0 % (s8)."
