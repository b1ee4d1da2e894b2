import json
import os
import subprocess
import sys

import numpy as np
import pytest
from fake_runs import write_claim, write_manifest, write_metrics, write_training_run

from eigenbatch.errors import RunError
from eigenbatch.report.runs import FORKS, Claim, Run, find_folders, load_all


def load_one(folder):
    return load_all([folder])[0]


def test_folders_are_found_below_any_path_and_only_once(tmp_path):
    run = write_training_run(tmp_path / "deep" / "down" / "seed-0")
    claim = write_claim(tmp_path / "claims" / "band")
    assert find_folders([tmp_path, run, run.parent]) == [claim, run]


def test_a_path_that_is_no_folder_is_named(tmp_path):
    with pytest.raises(RunError, match="nowhere is not a folder"):
        find_folders([tmp_path / "nowhere"])


def test_a_finished_run_has_its_settings_curves_and_final_accuracy(tmp_path):
    run = load_one(write_training_run(tmp_path / "run", seed=3))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert run.problems == ()
    assert run.finished
    assert run.settings["seed"] == 3
    assert run.final("knn") == last["knn"]
    assert run.end[0] == last["step"]
    assert run.inside == {"certified": (24, 24), "paper": (24, 24)}
    assert run.spectrum.eigenvalues.shape == (32, 24)


def test_time_spent_selecting_is_a_share_of_all_time_so_far(tmp_path):
    write_manifest(tmp_path, {"seed": 0})
    write_metrics(
        tmp_path,
        [{"step": s, "epoch": 0, "seconds": 2.0 * s, "sampler/seconds": 0.5} for s in (1, 2, 3)],
    )
    np.testing.assert_allclose(load_one(tmp_path).curves["selection_percent"].middle, 25)


def test_readings_outside_their_band_are_counted(tmp_path):
    write_manifest(tmp_path, {"seed": 0})
    write_metrics(
        tmp_path,
        [{"step": s, "spectral/gradient": g, "spectral/paper_lower": 1, "spectral/paper_upper": 2}
         for s, g in enumerate([0.5, 1.0, 1.5, 2.0, 2.5])],
    )  # fmt: skip
    assert load_one(tmp_path).inside == {"paper": (3, 5)}


def test_long_spectra_are_averaged_over_stretches(tmp_path):
    write_manifest(tmp_path, {"seed": 0})
    write_metrics(
        tmp_path, [{"step": s, "eigenvalues": [0.9, 0.1 if s % 2 else None]} for s in range(3000)]
    )
    spectrum = load_one(tmp_path).spectrum
    assert spectrum.eigenvalues.shape == (2, 150)
    np.testing.assert_allclose(spectrum.eigenvalues, np.array([[0.9], [0.1]]).repeat(150, axis=1))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, None),
        ("{", "manifest.json is not valid JSON"),
        ("[1]", "manifest.json is not a JSON object"),
        ('{"config": 3}', 'manifest.json has no "config"'),
    ],
)
def test_a_broken_manifest_is_said_and_the_metrics_are_kept(tmp_path, content, problem):
    write_metrics(tmp_path, [{"step": 1, "loss": 2.0}])
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    run = load_one(tmp_path)
    assert run.settings is None
    assert run.problems == (() if problem is None else (problem,))
    assert run.curves["loss"].middle.tolist() == [2.0]


def test_missing_and_empty_metrics_are_said(tmp_path):
    write_manifest(tmp_path, {"seed": 0})
    assert load_one(tmp_path).problems == (
        "metrics.jsonl cannot be read: No such file or directory",
    )
    write_metrics(tmp_path, [])
    assert load_one(tmp_path).problems == ("metrics.jsonl is empty",)


def test_a_folder_is_read_again_only_after_a_change(tmp_path):
    folder = write_training_run(tmp_path / "run")
    first = load_one(folder)
    assert load_one(folder) is first
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9999}\n')
    assert load_one(folder).end[0] == 9999


def test_a_claim_keeps_verdict_and_figure(tmp_path):
    claim = load_one(write_claim(tmp_path / "band", measured={"inside": 7}))
    assert isinstance(claim, Claim)
    assert claim.verdict["outcome"] == "reproduced"
    assert claim.verdict["measured"] == '{"inside": 7}'
    assert claim.figure == (tmp_path / "band" / "figure.png").read_bytes()


def test_a_claim_without_a_verdict_is_not_finished_rather_than_a_broken_run(tmp_path):
    folder = write_claim(tmp_path / "band")
    (folder / "verdict.json").unlink()
    claim = load_one(folder)
    assert not isinstance(claim, Run)
    assert (claim.verdict["claim"], claim.verdict["outcome"]) == ("band", "not finished")


def test_a_figure_that_is_no_image_is_not_embedded(tmp_path):
    folder = write_claim(tmp_path / "band")
    (folder / "figure.png").write_text("<script>")
    claim = load_one(folder)
    assert claim.figure is None
    assert claim.problems == ("figure.png is not a PNG image",)


def test_large_runs_are_read_by_several_processes_with_the_same_result(tmp_path):
    for seed in range(3):
        write_training_run(tmp_path / "runs" / f"seed-{seed}", seed=seed)
    program = (
        "import sys, hashlib\n"
        "from pathlib import Path\n"
        "from eigenbatch.report import runs\n"
        "runs.PARALLEL_BYTES, counted = int(sys.argv[2]), []\n"
        "real = runs.load\n"
        "def load(folder):\n"
        "    counted.append(folder)\n"
        "    return real(folder)\n"
        "runs.load = load\n"
        "found = runs.load_all(runs.find_folders([Path(sys.argv[1])]))\n"
        "print(len(counted), [(r.folder.name, r.curves['loss'].middle.sum()) for r in found])\n"
        "runs.load_all([r.folder for r in found])\n"
        "print(len(counted))\n"
    )
    told = {
        limit: subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "runs"), str(limit)],
            capture_output=True, text=True, check=True,
        ).stdout.split(maxsplit=1)
        for limit in (0, 10**12)
    }  # fmt: skip
    assert told[10**12][0] == "3"
    assert told[0][0] == ("0" if FORKS and len(os.sched_getaffinity(0)) > 1 else "3")
    assert told[0][1].split("]")[0] == told[10**12][1].split("]")[0]
    assert told[10**12][1].split()[-1] == "3"  # nothing was read twice
