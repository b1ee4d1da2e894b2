import pytest
import torch

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.diagnose import Report, describe_cloud, describe_pairs
from eigenbatch.monitor.measure import read_batch

GENERATOR = torch.Generator().manual_seed(0)
Z1 = torch.randn(64, 16, generator=GENERATOR)
Z2 = Z1 + 0.6 * torch.randn(64, 16, generator=GENERATOR)
TAU = 0.2


def values(report: Report) -> dict[str, str]:
    return {line.name: line.value for section in report.sections for line in section.lines}


def test_the_tables_show_the_numbers_of_the_reading() -> None:
    reading = read_batch(Contrast.paired(Z1, Z2), TAU)
    shown = values(describe_pairs(Z1, Z2, TAU))
    assert shown["loss"] == f"{reading.softmax.loss:.4f}"
    assert shown["measured"] == f"{reading.gradient.measured:.4g}"
    assert shown["sigma-hat"] == f"{reading.cloud.sigma_hat:.4f}"
    assert float(shown["force"]) * float(shown["geometry"]) == pytest.approx(
        reading.gradient.measured, rel=1e-3
    )


def test_a_report_carries_the_diagnoses_of_its_reading() -> None:
    report = describe_pairs(Z1, Z2, 5.0)
    expected = read_batch(Contrast.paired(Z1, Z2), 5.0).diagnoses
    assert report.diagnoses == expected
    assert not report.healthy


def test_half_precision_is_a_remark_and_not_a_failure() -> None:
    report = describe_pairs(Z1.half(), Z2.half(), TAU)
    assert [(one.name, one.severity) for one in report.diagnoses] == [
        ("half-precision input", "info")
    ]
    assert report.healthy


def test_rows_of_any_length_are_fine_in_a_file() -> None:
    assert [one.name for one in describe_pairs(3 * Z1, 5 * Z2, TAU).diagnoses] == ["healthy"]


def test_embeddings_alone_show_every_rank_by_name() -> None:
    shown = values(describe_cloud(Z1))
    assert shown["participation ratio"] == f"{participation_ratio(Z1):.1f}"
    assert {"entropy rank (RankMe)", "stable rank", "isotropy gap"} <= shown.keys()


def test_row_norms_are_those_of_the_file() -> None:
    assert values(describe_cloud(torch.tensor([[3.0, 4.0], [1.0, 0.0]])))["row norms"] == "1 ... 5"
