"""The rule of verdicts, one case per row of its tables."""

from collections import Counter
from pathlib import Path

import pytest

from eigenbatch.runs import paired_difference
from eigenbatch_paper import registry
from eigenbatch_paper.reproduce import kept_lines
from eigenbatch_paper.verdict import (
    all_of,
    any_of,
    decided,
    effect,
    equal,
    interval,
    mean_at_least,
    mean_at_most,
    no_loss,
)


@pytest.mark.parametrize(("low", "high", "printed", "finding"), [
    (0.10, 0.20, 0.15, "shown"),
    (0.10, 0.20, None, "shown"),
    (0.20, 0.30, 0.15, "of another size"),
    (-0.10, 0.30, 0.15, "open"),
    (-0.10, 0.30, None, "open"),
    (-0.10, 0.10, 0.15, "refuted"),
    (-0.30, -0.10, 0.15, "refuted"),
    (-0.30, -0.10, None, "refuted"),
    (-0.20, -0.05, -0.11, "shown"),
    (0.05, 0.20, -0.11, "refuted"),
    (float("nan"), float("nan"), 0.15, "open"),
    (-float("inf"), 0.5, 0.15, "open"),
    (-float("inf"), -float("inf"), 0.15, "refuted"),
])  # fmt: skip
def test_an_interval_is_read_beside_zero_and_the_printed_figure(low, high, printed, finding):
    assert interval(low, high, printed) == finding


def test_two_seeds_show_nothing_however_well_they_agree():
    assert effect(paired_difference([0.15, 0.151], [0.0, 0.0]), 0.15) == "open"
    assert effect(paired_difference([0.15, 0.151, 0.149], [0.0] * 3), 0.15) == "shown"


def test_a_mean_needs_three_pairs_and_a_run_that_never_gets_there_refutes_it():
    for values, high, low in (
        ([0.4, 0.4], "open", "open"), ([0.4, 0.5, 0.6], "shown", "shown"),
        ([0.1, 0.2, 0.3], "refuted", "shown"), ([0.4, float("nan"), 0.6], "refuted", "refuted"),
    ):  # fmt: skip
        difference = paired_difference(values, [0.0] * len(values))
        assert (mean_at_least(difference, 0.45), mean_at_most(difference, 0.55)) == (high, low)


@pytest.mark.parametrize(
    "name",
    ["planned-batches", "gap-rule", "miss-law", "copied-pairs", "picture-batches"],
)
def test_two_seeds_of_our_own_claims_decide_nothing(name):
    file = Path(__file__).parents[2] / "results" / "small" / name / "rows.jsonl"
    rows = [row for line in kept_lines(file).values() for row in line["rows"]]
    runs = Counter(row["seed"] for row in rows)  # seeds that are still incomplete have fewer
    rows = [row for row in rows if runs[row["seed"]] == max(runs.values())]
    judge = registry.claim(name).judge
    assert judge(rows).outcome != "inconclusive"
    assert judge([row for row in rows if row["seed"] < 2]).outcome == "inconclusive"


@pytest.mark.parametrize(("values", "same", "not_lower"), [
    ([0.001, -0.001, 0.0], "shown", "shown"),
    ([0.05, 0.051, 0.049], "refuted", "shown"),
    ([-0.05, -0.051, -0.049], "refuted", "refuted"),
    ([0.1, -0.1, 0.0], "open", "open"),
    ([0.009, 0.011, 0.010], "open", "shown"),  # beside zero, partly within the margin
    ([-0.009, -0.011, -0.010], "open", "open"),
])  # fmt: skip
def test_equality_is_shown_by_an_interval_within_the_margin(values, same, not_lower):
    difference = paired_difference(values, [0.0] * 3)
    assert equal(difference, within=0.01) == same
    assert no_loss(difference, within=0.01) == not_lower


@pytest.mark.parametrize(("main", "rest", "outcome"), [
    ("shown", "shown", "reproduced"),
    ("shown", "open", "holds under stated conditions"),
    ("shown", "refuted", "holds under stated conditions"),
    ("of another size", "shown", "holds under stated conditions"),
    ("open", "shown", "inconclusive"),
    ("open", "refuted", "inconclusive"),
    ("refuted", "shown", "does not reproduce"),
    (True, True, "reproduced"),
    (True, False, "holds under stated conditions"),
    (False, True, "does not reproduce"),
])  # fmt: skip
def test_the_worst_main_part_decides(main, rest, outcome):
    assert decided({"speed": main}, {"order": rest}, "").outcome == outcome


def test_the_note_names_what_is_not_shown():
    verdict = decided({"a": "open", "b": False}, {"c": "of another size", "d": True}, "", "Why.")
    assert verdict.note == "Not found: b. Open: a. Of another size than printed: c. Why."


def test_several_effects_are_as_good_as_their_worst_or_best():
    assert all_of(["shown", "open", True]) == "open"
    assert any_of(["refuted", "open", False]) == "open"
    assert (all_of([]), any_of([])) == ("shown", "refuted")
