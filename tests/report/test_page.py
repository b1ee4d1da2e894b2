"""The page in a real browser."""

import csv
import json
from pathlib import Path

import pytest
from fake_runs import write_training_run
from test_serve import serving

from eigenbatch.report.build import build
from eigenbatch.runs import read_run

pytestmark = pytest.mark.slow
LUMINANCE = """(() => {
  const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
})()"""
TICK = "getComputedStyle(document.querySelector('#band .xtick text')).fill"


@pytest.fixture
def opened(browser, page):
    """The page, for tests that leave it as they found it: it is not loaded again for each."""
    if browser.showing != (page.as_uri(), 1400, False):
        browser.open(page.as_uri())
    return browser


@pytest.fixture
def fresh(browser, page):
    """The page just loaded, for tests that change it."""
    browser.open(page.as_uri())
    yield browser
    browser.run("localStorage.clear(); sessionStorage.clear()")
    browser.showing = None


def test_it_opens_without_errors_and_asks_for_nothing_else(opened, page):
    assert opened.problems == []
    assert {url for url in opened.requests if not url.startswith("data:")} == {page.as_uri()}
    assert opened.run("document.title") == "eigenbatch report"


def test_every_chart_has_data(opened):
    drawn = opened.run("""[...document.querySelectorAll(".plot")].map((plot) => [
        plot.dataset.chart,
        plot.data.filter((trace) => (trace.z ?? trace.y).flat().some(Number.isFinite)).length,
        plot.querySelectorAll(".scatterlayer path, .heatmaplayer image").length,
    ])""")
    assert len(drawn) == 17
    assert all(traces and marks for _, traces, marks in drawn), drawn


def test_a_diagnosis_can_be_reached_and_read_with_the_keyboard(opened):
    opened.run("document.querySelector('details.all').open = true")
    opened.run("document.querySelector('.episode.critical').focus()")
    opened.press("Enter")
    told = opened.run("document.querySelector('.finding').textContent")
    assert "dimensional collapse" in told
    assert "Evidence: entropy rank falls" in told
    assert "Advice: what to do about dimensional collapse: a larger batch" in told
    assert opened.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    opened.press("Enter")
    assert opened.run("document.querySelector('.finding').textContent") == ""


def test_printing_opens_everything_and_fits_the_paper(opened):
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run("document.querySelectorAll('details:not([open])').length") == 0
    widest = "Math.max(...[...document.querySelectorAll('.plot')].map((p) => p._fullLayout.width))"
    assert opened.run(widest) < 690  # A4 without margins, in CSS pixels
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.querySelectorAll('details:not([open])').length") > 0


def test_tab_walks_from_the_skip_link_to_the_theme_button_and_the_sections(fresh):
    walked = []
    for _ in range(6):
        fresh.press("Tab")
        walked.append(fresh.run("document.activeElement.textContent"))
    assert walked == ["Skip to the overview", "CSV", "JSON", "Dark", "Claims", "Overview"]


def test_dark_mode_follows_the_system_and_the_button_restyles_the_charts(fresh, page):
    assert fresh.run(LUMINANCE) > 0.9
    light = fresh.run(TICK)
    fresh.run("document.getElementById('theme').click()")
    assert fresh.run(LUMINANCE) < 0.2
    assert fresh.run(TICK) != light
    fresh.open(page.as_uri())
    assert fresh.run(LUMINANCE) < 0.2  # remembered
    fresh.run("localStorage.clear()")
    fresh.open(page.as_uri(), dark=True)
    assert fresh.run(LUMINANCE) < 0.2
    assert fresh.run("document.getElementById('theme').textContent") == "Light"


def test_a_group_can_be_hidden_and_shown_again(opened):
    lines = "document.querySelector('[data-chart=loss-steps]').data.length"
    before = opened.run(lines)
    opened.run("document.querySelector('.chip').click()")
    assert opened.run(lines) < before
    assert opened.run("document.querySelector('.chip').getAttribute('aria-pressed')") == "false"
    opened.run("document.querySelector('.chip').click()")
    assert opened.run(lines) == before


def test_choosing_a_run_changes_band_and_spectrum_together(fresh):
    shown = "JSON.stringify(['band', 'heat'].map((id) => " \
        "document.querySelector(`[data-chart=${id}]`).data.at(-1).x.at(-1)))"  # fmt: skip
    before = fresh.run(shown)
    fresh.run("""(() => {
        const picker = document.querySelector("#heat select");
        picker.value = [...picker.options].find((option) => option.text === "going").value;
        picker.dispatchEvent(new Event("change"));
    })()""")
    assert fresh.run(shown) != before
    assert fresh.run("document.querySelector('#band select').selectedOptions[0].text") == "going"


CLIPPED = """(() => {
  const scrolling = ".scroll, nav, .key, .visually-hidden, .skip, .plot";
  return [...document.querySelectorAll("body *")]
    .filter((element) => !element.closest(scrolling) && element.getClientRects().length)
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
    .map((element) => element.outerHTML.slice(0, 80));
})()"""
CUT_LABELS = """[...document.querySelectorAll(".plot")].flatMap((plot) => {
  const edge = plot.getBoundingClientRect();
  return [...plot.querySelectorAll("svg.main-svg text")]
    .filter((label) => label.textContent && label.getBoundingClientRect().width)
    .filter((label) => {
      const place = label.getBoundingClientRect();
      return place.left < edge.left - 1 || place.right > edge.right + 1;
    }).map((label) => `${plot.dataset.chart}: ${label.textContent}`);
})"""


def write_many(folder, count):
    """Runs of four groups that differ in three settings."""
    for number in range(count):
        write_training_run(
            folder / f"a-folder-with-a-rather-long-name-{number}",
            selector=("random", "greedy-64")[number % 2], tau=(0.1, 0.25)[number // 2 % 2],
            encoder=("convnet", "package.with.a.long.name:function")[number // 2 % 2],
            seed=number // 4,
        )  # fmt: skip
    return folder


@pytest.mark.parametrize("count", [1, 6, 40])
def test_nothing_is_clipped_on_a_phone_a_tablet_and_a_desk(browser, tmp_path, count):
    page = build([write_many(tmp_path / "runs", count)], tmp_path / "page.html")
    for width in (390, 768, 1400):
        browser.open(page.as_uri(), width=width)
        assert browser.problems == []
        assert browser.run("document.documentElement.scrollWidth") == width
        assert browser.run(CLIPPED) == []
        assert browser.run(CUT_LABELS) == []


def test_many_runs_are_drawn_as_one_band_per_group(browser, tmp_path):
    page = build([write_many(tmp_path / "runs", 40)], tmp_path / "page.html")
    browser.open(page.as_uri())
    assert browser.run("document.querySelectorAll('.chip').length") == 4
    drawn = browser.run("document.querySelector('[data-chart=alignment]').data.length")
    assert drawn == 8  # a line and its shade for each group
    assert browser.run("document.querySelector('[data-chart=band]').data.length") > 0


def test_zero_is_in_sight_where_gains_are_drawn(opened):
    low, high = opened.run("document.querySelector('[data-chart=paired]')._fullLayout.xaxis.range")
    assert low <= 0 <= high


def test_the_untrained_encoder_has_a_line(browser, tmp_path):
    folder = write_training_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 0, "epoch": 0, "seconds": 0, "knn": 0.125}\n')
    browser.open(build([folder], tmp_path / "page.html").as_uri())
    for chart in ("accuracy-epochs", "accuracy-seconds"):
        place = f"document.querySelector('[data-chart={chart}]').layout"
        assert browser.run(f"{place}.shapes[0].y0") == 0.125
        assert browser.run(f"{place}.annotations[0].text") == "untrained 12.5 %"


def saved(browser, kind):
    """The name and the text of the file that a button saves."""
    with browser.page.expect_download() as begun:
        browser.run(f"document.querySelector('[data-save={kind}]').click()")
    return begun.value.suggested_filename, Path(begun.value.path()).read_text()


def test_the_table_and_the_curves_can_be_saved(opened, everything):
    name, text = saved(opened, "csv")
    rows = list(csv.DictReader(text.splitlines()))
    assert name == "eigenbatch.csv"
    greedy = next(row for row in rows if row["run"] == "compare/greedy-64/seed-2")
    assert (greedy["selector"], greedy["seed"], greedy["state"]) == ("greedy-64", "2", "finished")
    last = read_run(everything / "compare" / "greedy-64" / "seed-2").final("knn")
    assert float(greedy["knn"]) == last
    name, text = saved(opened, "json")
    assert name == "eigenbatch.json"
    assert [run["name"] for run in json.loads(text)["runs"]] == [row["run"] for row in rows]


def test_a_live_page_renews_itself_and_keeps_its_place(browser, tmp_path):
    folder = write_training_run(tmp_path / "run", finished=False)
    with serving(tmp_path, interval=0.1) as port:
        browser.open(f"http://127.0.0.1:{port}/", height=600)
        browser.run("document.getElementById('theme').click()")
        browser.run("scrollTo(0, 900)")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 9999, "epoch": 77, "seconds": 1, "loss": 1}\n')
        browser.wait_for("document.querySelector('#overview td + td + td')"
                         " && document.querySelector('#overview').innerText.includes('77')"
                         " && document.documentElement.dataset.ready === 'true'")  # fmt: skip
        browser.wait_for("scrollY === 900")
        assert browser.run(LUMINANCE) < 0.2
        assert browser.problems == []
        browser.open("about:blank", wait=False)
