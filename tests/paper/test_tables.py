"""Tables of the paper, as Markdown and CSV."""

import csv
import io

import pytest

from eigenbatch_paper.registry import NAMES, claim
from eigenbatch_paper.tables import Table, mean_sem, share

TABLE = Table("Speed.", ("Method", "Epochs", "Gain"), [
    ("Random", (("7.0 ± 0.1", "137 ± 1.2"), ("", ""))),
    ("P3, balanced", (("6.5 ± 0.2", "110 ± 0.8"), ("+7 %", "-11 %"))),
])  # fmt: skip


def test_markdown_has_the_printed_figure_in_brackets():
    lines = TABLE.markdown().splitlines()
    assert lines[2] == "| Method | Epochs | Gain |"
    assert lines[4] == "| Random | 7.0 ± 0.1 (137 ± 1.2) |  |"
    assert lines[5] == "| P3, balanced | 6.5 ± 0.2 (110 ± 0.8) | +7 % (-11 %) |"


def test_csv_has_a_column_for_each_printed_figure():
    head, _, last = csv.reader(io.StringIO(TABLE.csv()))
    assert head == ["Method", "Epochs", "Epochs, printed", "Gain", "Gain, printed"]
    assert last == ["P3, balanced", "6.5 ± 0.2", "110 ± 0.8", "+7 %", "-11 %"]


@pytest.mark.parametrize(("values", "text"), [
    ([1.0, 2.0, 3.0], "2.00 ± 0.58"), ([1.0], "1.00"), ([1.0, float("nan")], "no value"),
])  # fmt: skip
def test_a_cell_is_mean_and_standard_error(values, text):
    assert mean_sem(values, digits=2) == text


def test_units_and_shares_are_written_out():
    assert mean_sem([1.0, 1.0], unit="s") == "1.0 ± 0.0 s"
    assert (share(0.149), share(-0.11), share(float("nan"))) == ("+15 %", "-11 %", "no value")


def test_the_seven_tables_of_the_paper_have_a_claim_each():
    assert {name for name in NAMES if claim(name).table is not None} == {
        "pool-policies", "moco-policies", "strong-baselines", "augmentation", "rank-accuracy",
        "wall-clock", "practical-recipe",
    }  # fmt: skip
