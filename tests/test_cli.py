"""The command line as a user or a CI job calls it: output, page and exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from eigenbatch.__main__ import main
from eigenbatch.cli import app
from eigenbatch.core.contrast import Contrast
from eigenbatch.files import FileFormatError
from eigenbatch.monitor.measure import read_batch
from eigenbatch_paper.registry import NAMES

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def saved(path: Path, rows: np.ndarray) -> Path:
    np.save(path, rows)
    return path


def healthy_files(directory: Path, *, scale: float = 1.0) -> tuple[Path, Path]:
    generator = np.random.default_rng(0)
    samples = generator.normal(size=(128, 32))
    views = [scale * (samples + 0.6 * generator.normal(size=samples.shape)) for _ in range(2)]
    return saved(directory / "view1.npy", views[0]), saved(directory / "view2.npy", views[1])


def test_healthy_pairs_exit_with_zero(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    result = call("diagnose", first, "--pairs", second, "--tau", 0.2)
    assert result.exit_code == 0, result.output
    assert "info: healthy" in result.output


def test_scaled_rows_are_the_same_embeddings(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path, scale=7.0)
    assert call("diagnose", first, "--pairs", second, "--tau", 0.2).exit_code == 0


def test_every_table_is_shown_on_demand_and_none_is_wider_than_the_terminal(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    short = call("diagnose", first, "--pairs", second).output
    assert "certified between" in short
    assert "What if?" not in short
    output = call("diagnose", first, "--pairs", second, "--tables").output
    for title in ("InfoNCE: 256 anchors", "Squared anchor gradient", "Spectrum of 256 rows"):
        assert title in output
    for name in ("certified band", "paper's band", "What if?"):
        assert name in output
    assert max(len(line) for line in output.splitlines()) <= 80


def test_a_warning_exits_with_one_and_gives_advice(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    result = call("diagnose", first, "--pairs", second, "--tau", 5)
    assert result.exit_code == 1
    assert "warning: temperature too high" in result.output
    assert "Lower tau" in result.output


def test_a_critical_finding_exits_with_one(tmp_path: Path) -> None:
    rows = 1 + 1e-3 * np.random.default_rng(0).normal(size=(64, 16))
    result = call("diagnose", saved(tmp_path / "collapsed.npy", rows))
    assert result.exit_code == 1
    assert "critical: collapsing" in result.output


def test_embeddings_without_pairs_show_their_spectrum(tmp_path: Path) -> None:
    result = call("diagnose", healthy_files(tmp_path)[0])
    assert result.exit_code == 0
    assert "Spectrum of 128 rows in dimension 32" in result.output
    assert "InfoNCE" not in result.output


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.zeros((4, 3)), "bad.npy is zero"),
        (np.full((4, 3), np.nan), "bad.npy holds NaN"),
        (np.ones((1, 3)), "at least 2 rows"),
        (np.ones(3), "expected (rows, d)"),
    ],
)
def test_unusable_rows_exit_with_two_and_say_why(tmp_path: Path, rows, reason: str) -> None:
    result = call("diagnose", saved(tmp_path / "bad.npy", rows))
    assert result.exit_code == 2
    assert reason in " ".join(result.stderr.split())


def test_positives_of_another_shape_exit_with_two_and_are_named(tmp_path: Path) -> None:
    first = healthy_files(tmp_path)[0]
    result = call("diagnose", first, "--pairs", saved(tmp_path / "short.npy", np.ones((4, 3))))
    assert result.exit_code == 2
    assert "short.npy (4, 3)" in " ".join(result.stderr.split())


def test_options_that_change_nothing_without_positives_are_named(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    words = ("diagnose", first, "--tau", 0.2, "--layout", "cross")
    assert "note: without --pairs these change nothing: --tau" in call(*words).output
    assert "note:" not in call(*words, "--pairs", second).output
    assert "note:" not in call("diagnose", first).output


def test_a_missing_file_exits_with_two(tmp_path: Path) -> None:
    result = call("diagnose", tmp_path / "nothing.npy")
    assert result.exit_code == 2
    assert "no such file" in " ".join(result.stderr.split())


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "objects.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert call("diagnose", path).exit_code == 2


def test_views_of_different_sizes_exit_with_two(tmp_path: Path) -> None:
    first, _ = healthy_files(tmp_path)
    other = saved(tmp_path / "short.npy", np.ones((5, 32)))
    result = call("diagnose", first, "--pairs", other)
    assert result.exit_code == 2
    assert "positive of row i" in " ".join(result.stderr.split())


@pytest.mark.parametrize("tau", [0, -1, "nan", 1e-300, 1e300])
def test_an_impossible_temperature_exits_with_two(tmp_path: Path, tau: object) -> None:
    first, second = healthy_files(tmp_path)
    result = call("diagnose", first, "--pairs", second, "--tau", tau)
    assert result.exit_code == 2
    assert "tau must" in result.stderr


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_other_file_formats_give_the_same_tables(tmp_path: Path, ending: str) -> None:
    first, _ = healthy_files(tmp_path)
    rows = np.load(first)
    other = tmp_path / f"view{ending}"
    if ending == ".npz":
        np.savez(other, rows)
    else:
        from safetensors.numpy import save_file

        save_file({"z": rows}, other)
    assert call("diagnose", other).output == call("diagnose", first).output


def test_the_page_holds_findings_first_then_plots_and_tables(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    page = tmp_path / "pages" / "page.html"
    result = call("diagnose", first, "--pairs", second, "--tau", 5, "--html", page)
    assert result.exit_code == 1
    text = page.read_text()
    marks = ["temperature too high", "Lower tau", "Spectrum</h3>", "Similarities</h3>"]
    places = [text.index(mark) for mark in (*marks, "certified band", "What if?")]
    assert places == sorted(places)
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert sum(data["similarities"]["positive"]) == 256
    assert sum(data["similarities"]["negative"]) == 256 * 254
    assert sum(data["eigenvalues"]) == pytest.approx(1.0)


def test_the_page_of_embeddings_alone_has_no_similarities(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call("diagnose", healthy_files(tmp_path)[0], "--html", page).exit_code == 0
    assert "Spectrum</h3>" in page.read_text()
    assert "Similarities</h3>" not in page.read_text()


def test_help_version_and_completion_load_no_torch() -> None:
    code = (
        "import sys\n"
        "from eigenbatch.cli import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "finally:\n    assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)\n"
    )
    for words in (["--help"], ["--version"], ["train", "--help"], ["reproduce", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["diagnose", "train", "compare", "reproduce", "report", "demo"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert f"Example: eigenbatch {command}" in " ".join(result.output.split())


@pytest.mark.parametrize("before", [True, False])
def test_json_is_all_there_is_on_standard_output(tmp_path: Path, before: bool) -> None:
    first, second = healthy_files(tmp_path)
    words = ["diagnose", first, "--pairs", second, "--tau", 0.2]
    result = call(*(["--json", *words] if before else [*words, "--json"]))
    content = json.loads(result.stdout)
    assert content["healthy"] is True
    assert content["findings"][0]["name"] == "healthy"
    z1, z2 = (torch.from_numpy(np.load(path)) for path in (first, second))
    assert content["scalars"] == read_batch(Contrast.paired(z1, z2), 0.2).scalars()
    assert [one["exact"] for one in content["what_if"]] == [True, True, False, False]


def test_quiet_prints_nothing_but_still_writes_the_page(tmp_path: Path) -> None:
    first, _ = healthy_files(tmp_path)
    page = tmp_path / "page.html"
    result = call("diagnose", first, "--html", page, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert "Spectrum of 128 rows" in page.read_text()


def test_waiting_threads_sleep_unless_the_user_decides_otherwise(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["eigenbatch", "--version"])
    for given in (None, "ACTIVE"):
        monkeypatch.setattr(os, "environ", {} if given is None else {"OMP_WAIT_POLICY": given})
        with pytest.raises(SystemExit):
            main()
        assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")


def test_debug_shows_the_exception_itself(tmp_path: Path) -> None:
    result = call("diagnose", tmp_path / "nothing.npy", "--debug")
    assert isinstance(result.exception, FileFormatError)


def test_the_claims_are_listed_with_their_sizes() -> None:
    listed = json.loads(call("reproduce", "--list", "--json").stdout)
    assert [one["name"] for one in listed] == list(NAMES)
    assert set(listed[0]["size"]) == {"smoke", "small", "paper"}
    short, whole = call("reproduce", "--list").output, call("reproduce", "wall-clock", "--list")
    assert all(name in short for name in NAMES)
    assert "criterion" not in short
    assert "data: imagenet100" in " ".join(whole.output.split())
    assert "moco-policies" not in whole.output


def test_each_data_set_has_a_folder_of_its_own(tmp_path: Path) -> None:
    def refused(*folders: object) -> str:
        words = [word for folder in folders for word in ("--data-dir", folder)]
        result = call("reproduce", "transfer", "--scale", "paper", "--out", tmp_path / "o", *words)
        assert result.exit_code == 2
        return " ".join(result.output.split())

    named = f"imagenet100={tmp_path}"
    assert "give --data-dir cifar10=FOLDER" in refused(named)
    assert "give --data-dir pets=FOLDER" in refused(named, f"cifar10={tmp_path}")
    assert "unknown data set 'imagnet'" in refused(f"imagnet={tmp_path}")
    assert "imagenet100 was given twice" in refused(named, named)
    assert "no such folder" in refused(f"pets={tmp_path / 'nothing'}")


def test_finished_seeds_are_asked_for_by_a_flag(tmp_path: Path) -> None:
    words = ["reproduce", "numerical-scale", "--scale", "smoke", "--out", tmp_path / "runs"]
    assert "no seed of these claims is complete" in call(*words, "--finished").output
    call(*words)
    assert "reproduced at smoke scale" in call(*words, "--finished").output


def test_a_claim_is_reproduced_and_its_table_written(tmp_path: Path) -> None:
    words = ["reproduce", "numerical-scale", "--scale", "smoke", "--out", tmp_path / "runs"]
    result = call(*words, "--table", tmp_path / "claims.md")
    assert result.exit_code == 0, result.output
    assert "1 of 1: arithmetic" in result.output
    assert "reproduced at smoke scale" in result.output
    assert "numerical-scale" in (tmp_path / "claims.md").read_text()
    assert (tmp_path / "images" / "claims" / "numerical-scale.png").is_file()
    again = json.loads(call(*words, "--json").stdout)
    assert again[0]["claim"] == "numerical-scale"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce"], "name a claim"),
        (["reproduce", "perpetual-motion"], "unknown claim"),
        (["reproduce", "wall-clock"], "--data-dir"),
        (["report", "/nowhere"], "/nowhere"),
        (["train", "--data", "/nowhere.zip"], "neither"),
    ],
)
def test_other_unusable_words_exit_with_two(tmp_path: Path, words, message: str) -> None:
    out = [] if words[0] == "train" else ["--out", tmp_path / "out"]
    result = call(*words, *out)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_pairs_can_be_contrasted_across_and_the_finding_comes_first(tmp_path: Path) -> None:
    first, second = healthy_files(tmp_path)
    across = call("diagnose", first, "--pairs", second, "--layout", "cross")
    assert "128 anchors, 127 negatives" in across.output
    assert across.output.index("because") < across.output.index("127 negatives")


def test_two_arrays_of_one_file_are_pairs_and_others_are_asked_for(tmp_path: Path) -> None:
    first, second = (np.load(file) for file in healthy_files(tmp_path))
    np.savez(tmp_path / "known.npz", image_embeds=first, text_embeds=second, ids=np.arange(128.0))
    result = call("diagnose", tmp_path / "known.npz", "--tau", 0.2)
    assert result.exit_code == 0, result.output
    assert f"pairs: image_embeds and text_embeds of {tmp_path / 'known.npz'}" in result.stdout
    torch.save({"a": torch.tensor(first), "b": torch.tensor(second)}, tmp_path / "other.pt")
    result = call("diagnose", tmp_path / "other.pt")
    assert result.exit_code == 2
    assert "holds 2 arrays (a, b), expected one: name it, as --key" in " ".join(
        result.stderr.split()
    )
    assert "Spectrum of 128 rows" in call("diagnose", tmp_path / "other.pt", "--key", "a").output
    paired = call("--json", "diagnose", tmp_path / "other.pt", "--key", "a,b", "--tau", 0.2)
    assert json.loads(paired.stdout)["healthy"]
    missing = call("diagnose", tmp_path / "other.pt", "--key", "c")
    assert "has no array 'c'; it holds a, b" in " ".join(missing.stderr.split())
