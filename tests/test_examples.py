"""Every script in examples/ runs as printed, is short, and leaves runs that the page can show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eigenbatch.runs import read_run

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
WORDS = ("dog", "cat", "man", "red", "runs", "ball", "house", "tree", "old", "small")
MOTS = ("chien", "chat", "homme", "rouge", "court", "balle", "maison", "arbre", "vieux", "petit")


RUNS = {"clip_pairs": [f"{name}/seed-{i}" for name in ("random", "neighbours") for i in range(3)]}
SAID = {"clip_pairs": r"neighbours: \+0\.0[2-9]\d+ \(95 % interval \+"}  # better, and surely so


def arguments(name, tmp_path):
    if name != "sentence_pairs":
        return [str(tmp_path / "run")]
    for file, words in (("first.txt", WORDS), ("second.txt", MOTS)):
        lines = [f"{words[i % 10]} {words[i // 10 % 10]} {words[i // 100]}" for i in range(600)]
        (tmp_path / file).write_text("\n".join(lines))
    return [str(tmp_path / one) for one in ("first.txt", "second.txt", "run")]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs_and_its_runs_are_whole(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script), *arguments(script.stem, tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "eigenbatch report" in done.stdout
    assert re.search(SAID.get(script.stem, ""), done.stdout)
    for folder in RUNS.get(script.stem, [""]):
        record = read_run(tmp_path / "run" / folder)
        assert record.finished
        assert record.problems == ()
        assert record.metrics.records["findings"]
        losses = record.series["loss"].value
        assert losses[-5:].mean() < losses[:5].mean()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_under_eighty_lines(script):
    assert len(script.read_text().splitlines()) < 80
