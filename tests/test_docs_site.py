"""The documentation site: complete, reachable, and without links into nothing."""

import re
from pathlib import Path

import pytest
import yaml

import eigenbatch

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Ids of the headings, as mkdocs makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", word) for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_headings_resolve(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", prose(page)):
        if "://" not in target:
            aimed = page.parent / target if target else page
            assert anchor in anchors(aimed), f"{page.name} links to {target}#{anchor}"


def pages_of(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    children = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(pages_of, children))


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert pages_of(nav) == {page.name for page in DOCS.glob("*.md")}


def test_every_picture_is_shown_and_small() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    for picture in (DOCS / "images").iterdir():
        if picture.is_file():
            assert f"images/{picture.name}" in shown, f"nothing shows {picture.name}"
            assert picture.stat().st_size < 300_000, picture.name


def test_the_reference_holds_every_public_name() -> None:
    listed = re.findall(r"^::: eigenbatch\.([\w.]+)\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    homes = {name: home for home, name in listed}
    assert len(homes) == len(listed), "a name is listed twice"
    for name in eigenbatch.__all__:
        assert name in homes, f"docs/api.md lacks {name}"
        assert f"eigenbatch.{homes[name]}" == getattr(eigenbatch, name).__module__


@pytest.mark.parametrize("name", sorted(eigenbatch.__all__))
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    text = getattr(eigenbatch, name).__doc__ or ""
    assert text.strip(), name
    assert not text.startswith(f"{name}("), f"{name} has the docstring that dataclasses make up"


def test_documents_name_no_path_of_a_developers_machine() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        assert not re.search(r"/(?:home|root|work|tmp|Users)/", page.read_text()), page.name
