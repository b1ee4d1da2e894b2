"""Each diagnosis on a batch that was made to deserve it, and its silence on a healthy one."""

from dataclasses import replace

import pytest
import torch
from batches import DIMENSION, PAIRS, TAU, healthy_views, samples, spoilt
from torch.nn.functional import normalize, one_hot

from eigenbatch.core.contrast import Contrast
from eigenbatch.monitor.diagnose import NAMES, UNTRAINED, diagnose_cloud
from eigenbatch.monitor.measure import inputs_of, read_batch
from eigenbatch.monitor.reading import Reading
from eigenbatch.monitor.thresholds import EARLY_STEPS


def read(z1, z2, tau=TAU) -> Reading:
    return read_batch(Contrast.paired(z1, z2), tau, inputs=inputs_of(z1, z2))


def collapsing() -> Reading:
    return read(*spoilt(torch.ones(PAIRS, DIMENSION) + 0.01 * samples(), noise=0.01))


def alignment_saturated() -> Reading:
    return read(*healthy_views(noise=0.3), tau=0.05)


def stuck_at_chance() -> Reading:
    return read(healthy_views(seed=0)[0], healthy_views(seed=1)[1])


def dimensional_collapse() -> Reading:
    plane = torch.zeros(DIMENSION)
    plane[:4] = 1
    return read(*spoilt(samples() * plane + 1e-4 * samples(seed=2), noise=0.0))


def mean_dominated() -> Reading:
    return read(*spoilt(samples() + 2.0))


def vanishing_gradient() -> Reading:
    return read(*healthy_views(noise=0.3), tau=0.05)


def identical_views() -> Reading:
    z = healthy_views()[0]
    return read(z, z.clone())


def temperature_too_low() -> Reading:
    return read(*healthy_views(), tau=0.005)


def temperature_too_high() -> Reading:
    return read(*healthy_views(), tau=5.0)


def false_negatives() -> Reading:
    return read(*spoilt(samples(pairs=PAIRS // 4).repeat(4, 1)))


def self_negatives() -> Reading:
    return queue_reading(ids=torch.arange(PAIRS), queue_ids=torch.arange(PAIRS // 2, 4 * PAIRS))


def queue_not_full() -> Reading:
    ids = torch.arange(10_000, 10_000 + 4 * PAIRS - PAIRS // 2)
    ids[: len(ids) // 3] = -1
    return queue_reading(ids=torch.arange(PAIRS), queue_ids=ids)


def queue_reading(*, ids, queue_ids) -> Reading:
    query, key = healthy_views()
    queue = normalize(samples(pairs=len(queue_ids), seed=9))
    contrast = Contrast.queued(query, key, queue)
    return read_batch(contrast, TAU, ids=ids, queue_ids=queue_ids)


def non_unit_input() -> Reading:
    z1, z2 = healthy_views()
    return read(3 * z1, 3 * z2)


def half_precision_input() -> Reading:
    z1, z2 = healthy_views()
    return read(z1.bfloat16(), z2.bfloat16())


SITUATIONS = {
    name: globals()[name.replace(" ", "_").replace("-", "_")] for name in NAMES if name != "healthy"
}


def names(reading: Reading) -> set[str]:
    return {one.name for one in reading.diagnoses}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_situation_gets_its_diagnosis(name: str) -> None:
    found = {one.name: one for one in SITUATIONS[name]().diagnoses}
    assert name in found
    assert "healthy" not in found
    assert any(character.isdigit() for character in found[name].evidence)
    assert found[name].advice


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_batch_keeps_the_rule_silent(name: str, seed: int) -> None:
    assert name not in names(read(*healthy_views(seed=seed)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau", [0.1, 0.2, 0.5])
def test_a_healthy_batch_is_healthy_and_nothing_else(seed: int, tau: float) -> None:
    assert names(read(*healthy_views(seed=seed), tau=tau)) == {"healthy"}


def test_a_full_queue_of_other_samples_is_healthy() -> None:
    reading = queue_reading(ids=torch.arange(PAIRS), queue_ids=torch.arange(PAIRS, 5 * PAIRS))
    assert reading.queue is not None
    assert (reading.queue.fill, reading.queue.self_negative_rate) == (1.0, 0.0)
    assert names(reading) == {"healthy"}


@pytest.mark.parametrize(
    ("reason", "situation"),
    [("solved positives", alignment_saturated), ("negatives like the positive", collapsing)],
)
def test_both_reasons_saturate_alignment(reason: str, situation) -> None:
    assert "alignment saturated" in names(situation()), reason


def test_collapse_is_not_mistaken_for_solved_positives_or_copies() -> None:
    found = names(collapsing())
    assert not found & {"vanishing gradient", "identical views", "dimensional collapse"}


def test_a_shared_vector_is_not_mistaken_for_dimensional_collapse() -> None:
    assert "dimensional collapse" not in names(mean_dominated())


def test_an_untrained_encoder_full_of_look_alikes_has_no_false_negatives() -> None:
    assert "false negatives" not in names(stuck_at_chance())
    assert "false negatives" not in names(read(*spoilt(samples() + 2.0, noise=2.0)))


def test_hard_negatives_of_one_class_are_no_duplicates() -> None:
    classes = one_hot(torch.arange(PAIRS) % 8, DIMENSION).float() * 6
    reading = read(*spoilt(samples() + classes, noise=0.9))
    assert reading.negatives.harder_share > 0
    assert "false negatives" not in names(reading)


def test_few_negatives_say_nothing_about_the_temperature() -> None:
    assert "temperature too low" not in names(read(*healthy_views(pairs=4), tau=0.005))


@pytest.mark.parametrize(
    ("dtype", "tau", "severity"),
    [
        (torch.bfloat16, 0.02, "warning"),
        (torch.bfloat16, 0.2, "info"),
        (torch.float16, 0.02, "info"),
    ],
)
def test_half_precision_is_worse_at_low_temperature(dtype, tau: float, severity: str) -> None:
    views = [z.to(dtype) for z in healthy_views()]
    found = {one.name: one.severity for one in read(*views, tau=tau).diagnoses}
    assert found["half-precision input"] == severity
    assert "non-unit input" not in found, "rounding alone is no missing normalisation"


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((torch.float32, torch.float16), "float16"),
        ((torch.float16, torch.bfloat16), "bfloat16"),
        ((torch.float64, torch.float32), "float32"),
    ],
)
def test_the_coarser_of_two_views_decides_about_precision(dtypes, expected: str) -> None:
    inputs = inputs_of(*(z.to(dtype) for z, dtype in zip(healthy_views(), dtypes, strict=True)))
    assert inputs.dtype == expected
    assert inputs.resolution == torch.finfo(getattr(torch, expected)).eps
    assert inputs.half == (expected != "float32")


def test_the_most_severe_comes_first() -> None:
    order = ["critical", "warning", "info"]
    severities = [order.index(one.severity) for one in collapsing().diagnoses]
    assert severities == sorted(severities)
    assert severities[0] == 0


@pytest.mark.parametrize("name", UNTRAINED)
def test_what_an_untrained_encoder_shows_is_no_warning_in_the_first_steps(name: str) -> None:
    reading = SITUATIONS[name]()

    def severity(step: int | None) -> str:
        found = replace(reading, step=step).diagnoses
        return next(one.severity for one in found if one.name == name)

    assert severity(0) == severity(EARLY_STEPS - 1) == "info"
    assert severity(EARLY_STEPS) == severity(None) == "warning"


def test_embeddings_without_positives_get_the_rules_that_need_none() -> None:
    assert [one.name for one in diagnose_cloud(collapsing().cloud)] == [
        "collapsing",
        "mean-dominated",
    ]
    assert [one.name for one in diagnose_cloud(read(*healthy_views()).cloud)] == ["healthy"]
