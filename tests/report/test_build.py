import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from fake_runs import write_claim, write_manifest, write_metrics, write_training_run

from eigenbatch import Recorder
from eigenbatch.errors import ParameterError, RunError
from eigenbatch.report.build import build
from eigenbatch.report.data import script_json


class Elements(HTMLParser):
    """Tags with their attributes, and all text outside scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._in = [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data):
        if self._in not in ("script", "style"):
            self.text += " ".join(data.split()) + " "


@pytest.mark.parametrize("name", ["metrics.jsonl", "z.npy", "page"])
def test_only_a_page_is_replaced_by_a_page(tmp_path, name):
    write_training_run(tmp_path / "run")
    file = tmp_path / "run" / name
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(ParameterError, match=r"named \*\.html"):
        build([tmp_path], file)
    assert before == (file.read_bytes() if file.exists() else None)


def test_the_page_needs_no_other_file(page):
    tags = Elements(page.read_text()).tags
    links = [value for _, attrs in tags for key, value in attrs.items() if key in ("src", "href")]
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert len([tag for tag, attrs in tags if tag == "script" and "type" not in attrs]) == 3


def test_strings_from_files_cannot_become_elements(page):
    tags = Elements(page.read_text()).tags
    assert not [attrs for _, attrs in tags if "onerror" in attrs]
    assert [tag for tag, _ in tags].count("img") == 2  # the figures of the two claims


def test_script_json_survives_anything_inside_a_script_element():
    nasty = "</script><!--<script> & \u2028 \ud800"
    text = script_json({"name": nasty})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": nasty}


def test_a_lone_surrogate_in_a_setting_does_not_stop_the_page(tmp_path):
    write_manifest(tmp_path / "run", {"selector": "\ud800", "seed": 0})
    write_metrics(tmp_path / "run", [{"step": 1, "loss": 2.0}])
    assert "selector" in build([tmp_path], tmp_path / "out.html").read_text()


@pytest.mark.parametrize("metrics", [None, "", "nonsense\n", '{"step": 1}\n', '{"step": 1, "lo'])
@pytest.mark.parametrize("manifest", [None, "{", '{"config": {"seed": 0}}', '{"config": []}'])
def test_a_damaged_run_is_shown_beside_a_sound_one(tmp_path, metrics, manifest):
    write_training_run(tmp_path / "sound")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "notes.txt").touch()
    for name, content in (("metrics.jsonl", metrics), ("manifest.json", manifest)):
        if content is not None:
            (damaged / name).write_text(content)
    text = Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
    assert "Squared gradient inside its band" in text
    if metrics is not None or manifest is not None:
        assert "damaged" in text
        assert "2 runs" in text


def test_sections_without_data_are_left_out_and_named_at_the_end(tmp_path):
    write_manifest(tmp_path / "run", {"selector": "random", "seed": 0})
    write_metrics(tmp_path / "run", [{"step": s, "loss": 5.0 - s} for s in (1, 2, 3)])
    page = Elements(build([tmp_path], tmp_path / "out.html").read_text())
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert sections == ["overview", "loss", "about"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs["href"][:1] == "#"]
    assert {link[1:] for link in links} == set(sections)
    reason = page.text[page.text.index("Left out, because no run has the numbers") :]
    assert all(name in reason for name in ("Accuracy (", "Gradient (", "Spectrum (", "Selection ("))


def test_a_warning_has_its_evidence_and_advice_in_the_open_once_for_all_runs(tmp_path):
    for seed in range(5):
        write_training_run(tmp_path / f"run-{seed}", seed=seed)
    page = Elements(build([tmp_path], tmp_path / "out.html").read_text())
    assert page.text.count("What to do: what to do about dimensional collapse") == 1
    assert "run-0, run-1, run-2 and 2 more runs" in page.text
    assert "stuck at chance" not in page.text[: page.text.index("Findings along the steps")]


def test_a_metric_of_retrieval_is_called_by_its_name(tmp_path):
    write_manifest(tmp_path / "run", {"seed": 0})
    lines = [{"step": s, "epoch": s, "mrr": 0.1 + 0.2 * s} for s in (0, 1, 2)]
    write_metrics(tmp_path / "run", lines)
    text = build([tmp_path], tmp_path / "out.html").read_text()
    assert '<th scope="col" class="n">MRR</th>' in text
    assert "k-NN" not in text[text.index("<main>") : text.index("Left out")]
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["charts"][0]["axis"] == "mean reciprocal rank"
    assert data["untrained"] == 0.1


def test_settings_that_differ_come_before_results(page):
    text = page.read_text()
    headings = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', text[text.index('id="overview"') :])
    assert headings[:5] == ["Run", "tau", "selector", "seed", "k-NN"]


def test_two_seeds_that_agree_by_chance_get_no_interval(tmp_path):
    for selector, accuracy in (("random", 0.5), ("p3", 0.6)):
        for seed in (0, 1):
            folder = tmp_path / selector / str(seed)
            write_manifest(folder, {"selector": selector, "seed": seed})
            line = {"step": 1, "epoch": 1, "seconds": 1.0, "knn": accuracy, "finished": 1}
            write_metrics(folder, [line])
    text = Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
    assert "+10.00 pp" in text
    assert "too few seeds to tell" in text


def test_claims_alone_make_a_page_without_training_charts(tmp_path):
    write_claim(tmp_path / "band")
    page = Elements(build([tmp_path], tmp_path / "out.html").read_text())
    assert "1 reproduced" in page.text
    assert "No run given here" not in page.text


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"no run in .*: a run directory holds metrics.jsonl"):
        build([tmp_path], tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_report_does_not_import_torch():
    program = "import sys, eigenbatch.report.build, eigenbatch.report.serve; "
    program += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)


def test_unfinished_and_broken_claims_are_shown_as_such(tmp_path):
    write_manifest(tmp_path / "begun", {"claim": "begun", "scale": "small"})
    (write_claim(tmp_path / "broken") / "verdict.json").write_text("{")
    page = build([tmp_path], tmp_path / "page.html").read_text()
    assert "begun" in page
    assert "not finished" in page
    assert "verdict.json" in page


def test_a_run_that_diverged_at_once_is_not_called_empty(tmp_path):
    write_manifest(tmp_path / "run", {"seed": 0})
    write_metrics(tmp_path / "run", [{"step": s, "loss": float("nan")} for s in (1, 2)])
    text = Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
    assert "not finite: 2 (did it diverge?)" in text
    assert "empty" not in text


def test_a_run_that_an_error_ended_says_why(tmp_path):
    with Recorder(tmp_path / "run") as run:
        run.log(1, loss=0.5)
        run.stop("RowError: row 8 of z is zero")
    with Recorder(tmp_path / "silent") as run:
        run.stop("RowError: all rows are zero")
    text = Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
    assert "stopped: RowError: row 8 of z is zero" in text
    assert "stopped: RowError: all rows are zero" in text
    assert "not finite" not in text


def test_only_pages_of_ours_are_replaced(tmp_path):
    write_training_run(tmp_path / "run")
    page = tmp_path / "own.html"
    page.write_text("<title>my own page</title>")
    with pytest.raises(ParameterError, match="not a page of eigenbatch"):
        build([tmp_path], page)
    assert page.read_text() == "<title>my own page</title>"
    page.write_text("")
    build([tmp_path], page)
    assert build([tmp_path], page).stat().st_size > 0


def test_a_run_with_nothing_but_evaluations_is_finished(tmp_path):
    write_manifest(tmp_path / "run", {"seed": 0})
    write_metrics(
        tmp_path / "run", [{"step": 1, "knn": 0.5}, {"step": 2, "knn": 0.6, "finished": 1}]
    )
    text = Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
    assert "not finite" not in text
    assert "finished" in text


def test_a_verdict_says_at_what_scale_it_was_found(tmp_path):
    write_claim(tmp_path / "band", scale="smoke")
    assert "smoke scale" in Elements(build([tmp_path], tmp_path / "out.html").read_text()).text


def test_a_finished_run_without_a_number_is_empty_and_one_that_diverged_is_not(tmp_path):
    with Recorder(tmp_path / "a"):
        pass
    with Recorder(tmp_path / "b") as run:
        run.log(1, loss=float("nan"))
    build([tmp_path], tmp_path / "page.html")
    text = Elements((tmp_path / "page.html").read_text()).text
    assert text.count("empty") == text.count("not finite") == 1
