import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from fake_runs import write_claim, write_manifest, write_metrics, write_training_run

from eigenbatch.errors import RunError
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


def test_charts_without_data_are_left_out_with_a_reason(tmp_path):
    write_manifest(tmp_path / "run", {"selector": "random", "seed": 0})
    write_metrics(tmp_path / "run", [{"step": s, "loss": 5.0 - s} for s in (1, 2, 3)])
    page = Elements(build([tmp_path], tmp_path / "out.html").read_text())
    assert [attrs["data-chart"] for _, attrs in page.tags if "data-chart" in attrs] == [
        "loss-steps"
    ]
    assert page.text.count("No run given here has these numbers") == 9
    assert "No run given here has diagnoses" in page.text


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


def test_a_verdict_says_at_what_scale_it_was_found(tmp_path):
    write_claim(tmp_path / "band", scale="smoke")
    assert "smoke scale" in Elements(build([tmp_path], tmp_path / "out.html").read_text()).text
