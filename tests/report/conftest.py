import pytest
from browser import chromium, find_browser
from fake_runs import write_claim, write_comparison, write_training_run

from eigenbatch.report.build import build

HOSTILE = (
    '"><img src=x onerror="document.title=1"></script><script>document.title="broken"</script>'
)


@pytest.fixture(scope="session")
def everything(tmp_path_factory):
    """A folder with all that a page can show: a comparison, an unfinished run, claims, a wreck."""
    folder = tmp_path_factory.mktemp("runs")
    write_comparison(folder / "compare", seeds=3)
    write_training_run(folder / "going", selector="schedule", finished=False, steps_per_epoch=60)
    write_claim(folder / "claims" / "band")
    write_claim(folder / "claims" / "rank", outcome="does not reproduce", note=HOSTILE)
    wreck = folder / HOSTILE.replace("/", "∕")  # a slash of another kind: one folder, same threat
    write_training_run(wreck, selector=HOSTILE, tau=HOSTILE)
    with (wreck / "metrics.jsonl").open("a") as file:
        file.write('{"step": 481, "loss": NaN}\nnonsense\n{"step": 482, "lo')
    return folder


@pytest.fixture(scope="session")
def page(everything, tmp_path_factory):
    return build([everything], tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def browser():
    if find_browser() is None:
        pytest.skip("no Chromium or Chrome on this machine")
    with chromium() as running:
        yield running
