"""The page in a real browser."""

import pytest
from fake_runs import write_training_run
from test_serve import serving

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
    for _ in range(4):
        fresh.press("Tab")
        walked.append(fresh.run("document.activeElement.textContent"))
    assert walked == ["Skip to the overview", "Dark", "Claims", "Overview"]


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


def test_it_fits_a_phone(browser, page):
    browser.open(page.as_uri(), width=390, height=844)
    assert browser.run("document.documentElement.scrollWidth") == 390
    assert browser.run(
        "[...document.querySelectorAll('.plot')].every((plot) => plot.clientWidth <= 390)"
    )


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
