import numpy as np
import pytest
import torch

from eigenbatch import diagnose
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.diagnose import (
    BINS,
    Report,
    describe_cloud,
    describe_pairs,
    similarities,
    some_anchors,
)
from eigenbatch.monitor.measure import read_batch

GENERATOR = torch.Generator().manual_seed(0)
Z1 = torch.randn(64, 16, generator=GENERATOR)
Z2 = Z1 + 0.9 * torch.randn(64, 16, generator=GENERATOR)
TAU = 0.2


def values(report: Report) -> dict[str, str]:
    return {line.name: line.value for section in report.sections for line in section.lines}


def test_the_tables_show_the_numbers_of_the_reading() -> None:
    reading = read_batch(Contrast.paired(Z1, Z2), TAU)
    shown = values(describe_pairs(Z1, Z2, TAU))
    assert shown["loss"] == f"{reading.loss:.4f}"
    assert shown["measured"] == f"{reading.gradient:.4g}"
    assert shown["sigma-hat"] == f"{reading.sigma_hat:.4f}"
    assert float(shown["force"]) * float(shown["geometry"]) == pytest.approx(
        reading.gradient, rel=1e-3
    )


def test_a_report_carries_the_diagnoses_of_its_reading() -> None:
    report = describe_pairs(Z1, Z2, 5.0)
    expected = read_batch(Contrast.paired(Z1, Z2), 5.0).findings
    assert report.findings == expected
    assert not report.healthy


def test_half_precision_is_a_remark_and_not_a_failure() -> None:
    report = describe_pairs(Z1.half(), Z2.half(), TAU)
    assert [(one.name, one.severity) for one in report.findings] == [
        ("half-precision input", "info")
    ]
    assert report.healthy


def test_rows_of_any_length_are_fine_in_a_file() -> None:
    assert [one.name for one in describe_pairs(3 * Z1, 5 * Z2, TAU).findings] == ["healthy"]


def test_embeddings_alone_show_every_rank_by_name() -> None:
    shown = values(describe_cloud(Z1))
    assert shown["participation ratio"] == f"{participation_ratio(Z1):.1f}"
    assert {"entropy rank (RankMe)", "stable rank", "isotropy gap"} <= shown.keys()


def test_row_norms_are_those_of_the_file() -> None:
    assert values(describe_cloud(torch.tensor([[3.0, 4.0], [1.0, 0.0]])))["row norms"] == "1 ... 5"


@pytest.mark.parametrize("layout", ["paired", "cross"])
def test_histograms_hold_every_pair_once(layout) -> None:
    contrast = getattr(Contrast, layout)(Z1, Z2)
    found = similarities(contrast, some_anchors(contrast))
    cosines = (contrast.anchors @ contrast.keys.T).double()
    positive = cosines.gather(1, contrast.positive[:, None])[:, 0]
    edges = np.array(found.edges)
    np.testing.assert_array_equal(np.histogram(positive, edges)[0], found.positive)
    assert sum(found.negative) == len(contrast.anchors) * contrast.negative_count
    mean = np.average((edges[1:] + edges[:-1]) / 2, weights=found.negative)
    others = torch.ones_like(cosines, dtype=torch.bool)
    others[torch.arange(len(cosines)), contrast.positive] = False
    if contrast.itself is not None:
        others.fill_diagonal_(False)
    assert mean == pytest.approx(cosines[others].mean().item(), abs=2 / BINS)


def test_a_large_file_is_sampled_for_plots_and_other_temperatures(monkeypatch) -> None:
    whole = describe_pairs(Z1, Z2, TAU)
    monkeypatch.setattr(diagnose, "SAMPLED", 32)
    sampled = describe_pairs(Z1, Z2, TAU)
    assert sampled.similarities.anchors == 32
    assert sampled.numbers == whole.numbers
    every_fourth = torch.linspace(0, 127, 32).long()
    gradients = infonce(Contrast.paired(Z1, Z2), TAU / 2).squared_gradient
    assert sampled.predictions[0].ceiling == pytest.approx(gradients[every_fourth].mean().item())
    assert "exact for 32 anchors" in values_of(sampled, "tau 0.2 -> 0.1")
    assert values_of(whole, "tau 0.2 -> 0.1") == "exact"


def values_of(report: Report, name: str) -> str:
    """What a line means."""
    lines = (line for section in report.sections for line in section.lines)
    return next(line.meaning for line in lines if line.name == name)
