"""The page a person reads when training goes wrong: its code runs and its table is complete."""

import re
from pathlib import Path

import pytest

from eigenbatch.monitor.findings import NAMES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "diagnosis.md").read_text()


def test_the_code_on_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/diagnosis.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "0 info stuck at chance" in printed
    assert "150 warning encoder does not move" in printed
    assert "at tau 0.2, exactly" in printed
    assert "tau 0.1 -> 0.2: at most" in printed
    assert (tmp_path / "runs" / "readings.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_diagnosis_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_picture_is_there_and_small() -> None:
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert 10_000 < (DOCS / picture).stat().st_size < 200_000
