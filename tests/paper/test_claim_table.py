import json

import pytest

from eigenbatch.errors import RunError
from eigenbatch_paper.claim_table import write_table


@pytest.fixture
def out(tmp_path):
    """Three claims: one at two scales, one with a bar in its text, one begun only."""
    runs = tmp_path / "runs"
    _finish(runs, "smoke", "synthetic-band", measured="smoke figure")
    _finish(runs, "paper", "synthetic-band", measured="paper figure")
    _finish(runs, "small", "temperature-law", measured="a | b", outcome="does not reproduce")
    begun = runs / "paper" / "pool-returns"
    begun.mkdir(parents=True)
    (begun / "manifest.json").write_text("{}")
    return runs


def _finish(runs, scale, name, *, measured, outcome="reproduced"):
    from PIL import Image

    directory = runs / scale / name
    directory.mkdir(parents=True)
    record = {"claim": name, "section": "S", "statement": f"statement of {name}", "printed": "1 %",
              "criterion": "C", "scale": scale, "size": "10 batches", "seeds": 3,
              "outcome": outcome, "measured": measured, "note": "the note",
              "commits": ["0123456789ab", None], "judged": "ba9876543210"}  # fmt: skip
    (directory / "verdict.json").write_text(json.dumps(record))
    (directory / "manifest.json").write_text("{}")
    Image.new("RGB", (300, 200), "white").save(directory / "figure.png")


def _written(out, tmp_path):
    page, images = tmp_path / "docs" / "claims.md", tmp_path / "docs" / "images" / "claims"
    write_table(out, page, images)
    return page.read_text(), images


def test_the_largest_scale_of_a_claim_counts(out, tmp_path):
    text, _ = _written(out, tmp_path)
    assert "paper figure" in text
    assert "smoke figure" not in text


def test_each_claim_has_a_row_of_nine_cells_with_bars_escaped(out, tmp_path):
    text, _ = _written(out, tmp_path)
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) == 2
    for row in rows:
        assert row.replace("\\|", "").count("|") == 10
    assert "a \\| b" in rows[1]
    assert "`0123456789ab`, unknown, judged at `ba9876543210`" in rows[0]


def test_figures_are_copied_and_linked_from_the_page(out, tmp_path):
    text, images = _written(out, tmp_path)
    assert "![synthetic-band](images/claims/synthetic-band.png)" in text
    assert (images / "synthetic-band.png").exists()
    assert not (images / "pool-returns.png").exists()


def test_the_summary_counts_verdicts_and_unfinished_claims_are_named(out, tmp_path):
    text, _ = _written(out, tmp_path)
    assert "Claims of the paper: 2, of which 1 reproduced, 1 does not reproduce." in text
    assert "Our own: none." in text
    unfinished = next(line for line in text.splitlines() if line.startswith("Not finished"))
    assert "pool-returns" in unfinished
    assert "synthetic-band" not in unfinished


def test_our_own_claims_are_counted_apart(out, tmp_path):
    path = out / "small" / "temperature-law" / "verdict.json"
    record = json.loads(path.read_text()) | {"section": "Beyond the paper (left open in it)"}
    path.write_text(json.dumps(record))
    text, _ = _written(out, tmp_path)
    assert "Claims of the paper: 1, of which 1 reproduced." in text
    assert "Our own: 1, of which 1 does not reproduce." in text


def test_writing_twice_gives_the_same_bytes(out, tmp_path):
    text, images = _written(out, tmp_path)
    figure = (images / "synthetic-band.png").read_bytes()
    again, _ = _written(out, tmp_path)
    assert again == text
    assert (images / "synthetic-band.png").read_bytes() == figure


def test_a_page_is_not_replaced_by_an_empty_one(out, tmp_path):
    text, _ = _written(out, tmp_path)
    with pytest.raises(RunError, match="no verdicts under"):
        _written(tmp_path / "typo", tmp_path)
    assert (tmp_path / "docs" / "claims.md").read_text() == text


def test_claims_that_were_run_elsewhere_stay_on_the_page(out, tmp_path):
    before, _ = _written(out, tmp_path)
    other = tmp_path / "other"
    _finish(other, "small", "temperature-law", measured="new figure", outcome="inconclusive")
    text, _ = _written(other, tmp_path)
    assert "paper figure" in text
    assert "a \\| b" not in text
    assert text.count("new figure") == 2
    assert "2, of which 1 reproduced, 1 inconclusive." in text
    section = before[before.index("## synthetic-band") : before.index("## temperature-law")]
    assert section in text


def test_a_file_of_the_user_is_not_replaced(out, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("# my notes\n")
    with pytest.raises(RunError, match=r"notes\.md exists and is no page of claims"):
        write_table(out, notes, tmp_path / "images")
    assert notes.read_text() == "# my notes\n"


@pytest.mark.parametrize(("text", "message"), [("{", "is damaged"), ("{}", "lacks claim")])
def test_a_verdict_that_cannot_be_used_is_named(out, tmp_path, text, message):
    (out / "small" / "temperature-law" / "verdict.json").write_text(text)
    with pytest.raises(RunError, match=rf"verdict\.json {message}: run its claim again"):
        _written(out, tmp_path)
