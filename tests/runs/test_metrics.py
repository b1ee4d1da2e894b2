import json
import math

import numpy as np
import pytest

from eigenbatch.runs import metrics
from eigenbatch.runs.metrics import read_metrics


@pytest.fixture
def read(tmp_path):
    def write_and_read(content):
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_metrics(path, numbers={"loss", "knn"}, records={"eigenvalues"})

    return write_and_read


def test_columns_match_a_plain_reading_line_by_line(read, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 500)  # many chunks
    generator = np.random.default_rng(0)
    lines = [
        {"step": step, "epoch": step // 10, "seconds": step / 7}
        | ({"loss": generator.normal()} if step % 3 else {"knn": step, "eigenvalues": [0.5, step]})
        for step in range(200)
    ]
    found = read("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("loss", "knn"):
        expected = [line for line in lines if name in line]
        series = found.series[name]
        assert series.step.tolist() == [line["step"] for line in expected]
        assert series.epoch.tolist() == [line["epoch"] for line in expected]
        assert series.seconds.tolist() == [line["seconds"] for line in expected]
        assert series.value.tolist() == [line[name] for line in expected]
    assert found.records["eigenvalues"] == [
        (line["step"], line["eigenvalues"]) for line in lines if "eigenvalues" in line
    ]
    assert found.end == (199, 19, 199 / 7)
    assert (found.lines, found.unreadable, found.cut_off) == (200, (), False)


@pytest.mark.parametrize(
    "broken",
    ["nonsense", "", "[1, 2]", "3", '{"step": "one", "loss": 1}', '{"loss": 1}', '{"step": true}',
     '{"step": 1, "loss": 2', "[" * 100_000, '{"step": 1, "loss": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_a_broken_line_is_counted_and_the_others_are_kept(read, broken):
    found = read(f'{{"step": 1, "loss": 2.0}}\n{broken}\n{{"step": 3, "loss": 4.0}}\n')
    assert found.unreadable == (2,)
    assert found.series["loss"].value.tolist() == [2.0, 4.0]


def test_halves_that_would_make_one_object_together_are_not_joined(read):
    found = read('{"step": 1, "a": [{"b": 1}\n{"c": 2}]}\n{"step": 3, "loss": 4}\n')
    assert found.unreadable == (1, 2)
    assert found.series["loss"].step.tolist() == [3]


def test_bytes_that_are_no_text_break_one_line_only(read):
    found = read(b'{"step": 1, "loss": 2}\n{"step": 2, "x": "\xff\xfe"}\n{"step": 3, "loss": 4}\n')
    assert found.unreadable == (2,)
    assert found.series["loss"].step.tolist() == [1, 3]


def test_a_last_line_still_being_written_is_not_called_broken(read):
    found = read('{"step": 1, "loss": 2}\n{"step": 2, "lo')
    assert found.cut_off
    assert found.unreadable == ()


def test_values_that_are_no_finite_numbers_are_left_out_and_counted(read):
    values = ["NaN", "-Infinity", "1e999", '"2"', "null", "[1]", "true", "1" + "0" * 400]
    lines = [f'{{"step": {step}, "loss": {value}}}\n' for step, value in enumerate(values)]
    found = read("".join(lines) + '{"step": 99, "loss": 5}\n')
    assert found.series["loss"].value.tolist() == [5.0]
    assert found.not_finite == len(values)


def test_a_series_without_one_usable_value_is_absent(read):
    assert read('{"step": 1, "loss": NaN}\n{"step": 2, "loss": "x"}\n').series == {}


def test_an_empty_file_has_no_series_and_no_end(read):
    found = read("")
    assert found.lines == 0
    assert found.series == {}
    assert all(math.isnan(value) for value in found.end)


def test_lines_out_of_order_are_sorted_by_step(read):
    found = read('{"step": 3, "loss": 30}\n{"step": 1, "loss": 10}\n')
    assert found.series["loss"].value.tolist() == [10.0, 30.0]
