"""Predictions are held against the truth: the change is actually made and measured."""

import pytest
import torch
from torch import Tensor

from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.prediction import Outlook, outlook
from eigenbatch.core.spectrum import spectrum, whiten
from eigenbatch.errors import ParameterError

TAUS = (0.05, 0.1, 0.3, 1.0)


def views(
    pairs: int, d: int, *, anisotropy: float, noise: float, seed: int
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, d + 1, dtype=torch.float64) ** -anisotropy
    draws = torch.randn(3, pairs, d, generator=generator, dtype=torch.float64) * scale
    return draws[0] + noise * draws[1], draws[0] + noise * draws[2]


def look(contrast: Contrast, tau: float) -> Outlook:
    return outlook(contrast, infonce(contrast, tau), spectrum(contrast.candidates))


def measured(contrast: Contrast, tau: float) -> float:
    return infonce(contrast, tau).squared_gradient.mean().item()


CLOUDS = [
    pytest.param({"anisotropy": 0.0, "noise": 0.5}, id="isotropic"),
    pytest.param({"anisotropy": 1.0, "noise": 0.5}, id="anisotropic"),
    pytest.param({"anisotropy": 0.5, "noise": 2.0}, id="hard"),
    pytest.param({"anisotropy": 0.5, "noise": 0.05}, id="solved"),
]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("other", TAUS)
def test_no_gradient_at_another_temperature_exceeds_its_ceiling(
    cloud: dict[str, float], tau: float, other: float
) -> None:
    contrast = Contrast.paired(*views(64, 16, seed=0, **cloud))
    ceiling = look(contrast, tau).at_tau(other).ceiling
    truth = measured(contrast, other)
    assert truth <= ceiling * (1 + 1e-9)
    assert ceiling <= 4 / other**2 * (1 + 1e-9), "never worse than the trivial bound"


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_a_higher_temperature_is_predicted_within_a_factor_of_three(factor: float) -> None:
    contrast = Contrast.paired(*views(128, 64, anisotropy=0.0, noise=1.0, seed=1))
    prediction = look(contrast, 0.2).at_tau(0.2 * factor)
    assert prediction.ceiling <= 3 * measured(contrast, 0.2 * factor)


@pytest.mark.parametrize("cloud", CLOUDS[:3])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("now", "then"), [(64, 512), (512, 64)])
def test_another_batch_size_is_predicted_from_the_present_one(
    cloud: dict[str, float], seed: int, now: int, then: int
) -> None:
    z1, z2 = views(512, 32, seed=seed, **cloud)
    present = Contrast.paired(z1[:now], z2[:now])
    future = Contrast.paired(z1[:then], z2[:then])
    prediction = look(present, 0.2).with_negatives(future.negative_count)
    truth = measured(future, 0.2)
    sampling = 0.15  # the two batches share a distribution, not their rows
    assert truth <= prediction.ceiling * (1 + sampling)
    assert prediction.ceiling <= 3 * truth


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("tau", TAUS)
def test_no_whitened_batch_exceeds_its_predicted_ceiling(
    cloud: dict[str, float], tau: float
) -> None:
    z1, z2 = views(128, 32, seed=0, **cloud)
    prediction = look(Contrast.paired(z1, z2), tau).whitened()
    white = whiten(torch.cat([z1, z2]))
    truth = measured(Contrast.paired(white[:128], white[128:]), tau)
    assert truth <= prediction.ceiling


def test_whitening_hard_pairs_comes_within_a_factor_of_two_of_its_ceiling() -> None:
    z1, z2 = views(256, 64, anisotropy=1.0, noise=2.0, seed=0)
    tau = 0.3
    prediction = look(Contrast.paired(z1, z2), tau).whitened()
    white = whiten(torch.cat([z1, z2]))
    truth = measured(Contrast.paired(white[:256], white[256:]), tau)
    assert prediction.ceiling <= 2 * truth
    assert prediction.ceiling < 4 / tau**2, "sharper than the trivial bound"


def test_several_processes_have_the_outlook_of_their_anchors_together() -> None:
    contrast = Contrast.paired(*views(32, 8, anisotropy=0.5, noise=0.5, seed=0))
    whole = look(contrast, 0.2)
    twice = whole.gathered(lambda rows: torch.cat([rows, rows]))
    assert len(twice.log_odds) == 2 * len(whole.log_odds)
    assert twice.at_tau(0.4).ceiling == pytest.approx(whole.at_tau(0.4).ceiling)


def test_a_spectrum_of_some_candidates_is_an_assumption_where_it_is_used() -> None:
    contrast = Contrast.paired(*views(32, 8, anisotropy=0.5, noise=0.5, seed=0))
    part = spectrum(contrast.candidates[:40])
    present = outlook(contrast, infonce(contrast, 0.2), part)
    assumption = "40 sampled keys have the spectrum of all 64"
    assert present.at_tau(0.4).assumes == assumption
    assert present.with_negatives(8).assumes == f"negatives of the same kind, {assumption}"
    assert present.whitened().assumes == f"normal similarities, {assumption}"
    assert present.at_tau(0.1).assumes == "nothing, for this batch"
    assert look(contrast, 0.2).at_tau(0.4).assumes == "nothing, for this batch"


def test_impossible_changes_are_refused() -> None:
    present = look(Contrast.paired(*views(8, 4, anisotropy=0.0, noise=0.5, seed=0)), 0.2)
    with pytest.raises(ParameterError, match="count must be at least 1, got 0"):
        present.with_negatives(0)
    with pytest.raises(ParameterError, match="tau must be a finite number above 0"):
        present.at_tau(-1.0)
