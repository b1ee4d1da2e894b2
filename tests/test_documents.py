"""Every Python block in the README and the docs runs, in order, as a reader would paste it."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")  # lightning
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")  # lightning
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")  # transformers
@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb.*")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name
)
def test_python_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_of_this_repository_resolve(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_shows_the_two_commands():
    readme = PAGES[0].read_text()
    assert "make demo" in readme
    assert "make test" in readme
