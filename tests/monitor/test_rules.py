"""Each diagnosis on a batch that was made to deserve it, and its silence on a healthy one."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize, one_hot

from batches import DIMENSION, PAIRS, TAU, healthy_views, samples, spoilt
from eigenbatch import Neighbours, SpectralMonitor
from eigenbatch.core.contrast import Contrast
from eigenbatch.monitor.findings import diagnose, diagnose_cloud
from eigenbatch.monitor.measure import inputs_of, read_batch
from eigenbatch.monitor.reading import Course, Placed, Reading
from eigenbatch.monitor.rules import (
    DOMINANCE,
    EARLY_STEPS,
    EASY_MISS,
    LASTING,
    MOMENTUM_STEPS,
    RULES,
    SYMPTOMS,
)


def read(z1, z2, tau=TAU, **more) -> Reading:
    return read_batch(Contrast.paired(z1, z2), tau, inputs=inputs_of(z1, z2), **more)


def judged(reading: Reading, **changes) -> Reading:
    """The reading with some numbers changed, and what is found then."""
    changed = replace(reading, **changes)
    return replace(changed, findings=diagnose(changed))


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


def not_finite() -> Reading:
    return judged(Reading(failure="row 5 of z1 holds NaN or infinity"))


def loss_mismatch() -> Reading:
    return read(*healthy_views(), loss=1.0)


def with_course(**facts) -> Reading:
    return judged(read(*healthy_views()), step=1000, course=Course(**facts))


def encoder_does_not_move() -> Reading:
    streaks = {"encoder does not move": 1}
    return with_course(movement={"view 1": 1.2, "view 2": 0.9}, streaks=streaks)


def same_batch_repeated() -> Reading:
    return with_course(repetition=0.8, streaks={"same batch repeated": 1})


def task_solved() -> Reading:
    reading = read(*healthy_views(noise=0.3), tau=0.05)
    return judged(reading, step=1000, course=Course(streaks={"task solved": 2}))


def easy_batches() -> Reading:
    """Sixteen groups of alike samples: random neighbours are far easier than those of a group."""
    groups = samples(pairs=16, seed=5)[torch.arange(PAIRS) % 16]
    rows = normalize(groups) + 0.8 * normalize(samples())
    return read_batch(Contrast.cross(rows, rows + 0.2 * normalize(samples(seed=7))), 0.1)


def misaligned_pairs() -> Reading:
    z1, z2 = healthy_views()
    wrong = PAIRS // 4
    return read(z1, torch.cat([z2[:wrong].roll(1, 0), z2[wrong:]]))


def repeated_ids() -> Reading:
    contrast = Contrast.cross(*healthy_views())
    return read_batch(contrast, TAU, ids=torch.arange(PAIRS) // 2)


def queue_unlike_keys() -> Reading:
    plane = torch.zeros(DIMENSION)
    plane[:16] = 1
    query, key = spoilt(samples() * plane)
    return read_batch(Contrast.queued(query, key, samples(pairs=PAIRS // 2, seed=9)), TAU)


def few_negatives() -> Reading:
    return read(*healthy_views(pairs=8))


def ReLU_at_the_end() -> Reading:  # noqa: N802
    return read(*(z.relu() for z in healthy_views()))


def one_dimension_dominates() -> Reading:
    scale = torch.ones(DIMENSION)
    scale[3] = 6.0
    return read(*spoilt(samples() * scale))


def modality_gap() -> Reading:
    z1, z2 = healthy_views()
    shift = torch.zeros(DIMENSION)
    shift[0] = 1.0
    return read_batch(Contrast.cross(z1 + shift, z2 - shift), TAU)


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
    return queue_reading(ids=torch.arange(PAIRS), queue_ids=torch.arange(PAIRS // 4, 4 * PAIRS))


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


SITUATIONS = {rule.name: globals()[rule.name.replace(" ", "_").replace("-", "_")] for rule in RULES}


def test_rules_have_names_of_their_own_and_explain_findings_that_exist() -> None:
    known = {rule.name for rule in RULES}
    assert len(known) == len(RULES)
    explained = {name for rule in RULES for name in rule.explains}
    assert explained <= {*known, SYMPTOMS}


def names(reading: Reading) -> set[str]:
    return {one.name for one in reading.findings}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_situation_gets_its_diagnosis(name: str) -> None:
    found = {one.name: one for one in SITUATIONS[name]().findings}
    assert name in found
    assert "healthy" not in found
    assert any(character.isdigit() for character in found[name].evidence)
    remark = next(rule.remark for rule in RULES if rule.name == name)
    assert remark == (found[name].severity == "info") or name == "half-precision input"
    assert found[name].advice


@pytest.mark.parametrize("name", ["misaligned pairs", "temperature too low", "ReLU at the end"])
def test_inside_a_run_one_reading_is_a_remark_and_two_in_a_row_are_a_warning(name: str) -> None:
    reading = judged(SITUATIONS[name](), step=1000)

    def severity(streak: int) -> str:
        course = Course(streaks={name: streak}, placed=Placed(0.2, 0.7, 300))
        found = judged(reading, course=course).findings
        return next(one.severity for one in found if one.name == name)

    assert [severity(streak) for streak in range(LASTING)] == ["info", "warning"]


def test_a_cause_makes_its_symptom_a_remark() -> None:
    reading = read(*spoilt(samples() + 1.5, noise=0.3), tau=0.01)
    found = {one.name: one.severity for one in reading.findings}
    assert found["temperature too low"] == "warning"
    assert found["mean-dominated"] == "info"


def test_a_solved_task_outside_a_run_is_what_a_trained_model_shows() -> None:
    assert "task solved" not in names(judged(task_solved(), course=None))


def test_two_towers_that_solve_random_batches_slowly_are_no_fault() -> None:
    z1, z2 = healthy_views(noise=0.3)
    reading = judged(read_batch(Contrast.cross(z1, z2), 0.05), step=1000)
    for solved_since, names in ((50, {"task solved"}), (300, set())):
        course = Course(streaks={"task solved": 2}, solved_since=solved_since)
        found = judged(reading, course=course).findings
        assert {one.name for one in found if one.severity == "warning"} == names


def test_two_towers_that_were_solved_from_the_start_are_no_fault() -> None:
    """A pretrained model, or one text with two dropouts: no shortcut was learnt."""
    z1, z2 = healthy_views(noise=0.3)
    reading = judged(read_batch(Contrast.cross(z1, z2), 0.05), step=1000)
    for found_at_first, expected in ((0.1, {"task solved"}), (0.98, set())):
        course = Course(streaks={"task solved": 2}, solved_since=50, found_at_first=found_at_first)
        found = judged(reading, course=course).findings
        assert {one.name for one in found if one.severity == "warning"} == expected


def test_a_trained_encoder_need_not_move() -> None:
    for found_at_first, severity in ((0.5, "warning"), (0.95, "info")):
        reading = encoder_does_not_move()
        course = replace(
            reading.course, found_at_first=found_at_first, streaks={"encoder does not move": 1}
        )
        found = judged(reading, course=course).findings
        assert {one.name: one.severity for one in found}["encoder does not move"] == severity


def test_two_views_of_one_encoder_are_still_together_or_not_at_all() -> None:
    for second, expected in ((1.2, True), (4.0, False)):
        reading = with_course(movement={"view 1": 1.1, "view 2": second})
        assert ("encoder does not move" in names(reading)) == expected


def test_a_loss_that_falls_slowly_is_not_stuck() -> None:
    for drop, expected in ((0.0, True), (0.03, False)):
        reading = stuck_at_chance()
        course = Course(loss_drop=drop * reading.chance_loss)
        found = names(judged(reading, step=1000, course=course))
        assert ("stuck at chance" in found) == expected


def test_a_fall_is_measured_between_halves_of_the_last_readings() -> None:
    monitor = SpectralMonitor(TAU, every=1, quiet=True)
    readings = [monitor(*healthy_views(noise=noise)) for noise in (9, 2.5, 2, 1.5, 1)]
    drops = [reading.course.loss_drop for reading in readings]
    losses = [min(one.loss, one.chance_loss) for one in readings]
    assert losses[0] == readings[0].chance_loss > losses[1] > losses[4]
    assert drops[:3] == [None] * 3
    assert drops[3] == pytest.approx((losses[0] + losses[1] - losses[2] - losses[3]) / 2)
    assert drops[4] == pytest.approx((losses[0] + losses[1] - losses[3] - losses[4]) / 2)


def test_few_negatives_say_nothing_about_the_pairs() -> None:
    z1, z2 = healthy_views(pairs=8)
    z2 = torch.cat([z2[:2].roll(1, 0), z2[2:]])
    found = {one.name: one.severity for one in read(z1, z2).findings}
    assert found["few negatives"] == "warning"
    assert found.get("misaligned pairs", "info") == "info"


def test_half_of_the_pairs_wrong_is_named_and_an_untrained_encoder_is_not() -> None:
    z1, z2 = healthy_views()
    half = PAIRS // 2
    z2 = torch.cat([z2[:half].roll(1, 0), z2[half:]])
    reading = read(z1, z2)
    assert reading.found_share < 0.6
    found = {one.name: one.advice for one in reading.findings}
    estimated = int(found["misaligned pairs"].split("%")[0].removeprefix("About "))
    assert estimated == pytest.approx(50, abs=10)
    assert "misaligned pairs" not in names(read(*healthy_views(noise=2.5)))


def test_a_few_wrong_pairs_of_a_small_batch_may_be_chance() -> None:
    for pairs, expected in ((16, False), (256, True)):
        z1, z2 = healthy_views(pairs=pairs)
        wrong = pairs // 8
        z2 = torch.cat([z2[:wrong].roll(1, 0), z2[wrong:]])
        assert ("misaligned pairs" in names(read(z1, z2))) == expected


def test_wrong_pairs_are_found_as_well_in_two_towers() -> None:
    found = []
    for layout in (Contrast.paired, Contrast.cross):
        hits = 0
        for seed in range(8):
            z1, z2 = healthy_views(pairs=512, seed=seed)
            z2 = torch.cat([z2[:40].roll(1, 0), z2[40:]])
            hits += "misaligned pairs" in names(read_batch(layout(z1, z2), TAU))
        found.append(hits)
    assert found[1] >= found[0] > 0


def test_one_batch_says_nothing_about_a_falling_loss() -> None:
    (evidence,) = (o.evidence for o in stuck_at_chance().findings if o.name == "stuck at chance")
    assert "falling" not in evidence


def test_logits_multiplied_by_tau_are_named_although_the_loss_is_near_chance() -> None:
    """The right loss and the wrong one differ by less than 2 % here."""
    z1, z2 = spoilt(samples(), noise=5.0)
    logits = z1 @ z2.T * TAU
    target = torch.arange(PAIRS)
    loss = cross_entropy(logits, target).item()
    measured = cross_entropy(logits / TAU**2, target).item()
    assert 0.002 < abs(loss - measured) < 0.02 * measured
    reading = read_batch(Contrast.cross(z1, z2), TAU, loss=loss)
    found = {one.name: one for one in reading.findings}
    assert "multiplied by tau" in found["loss mismatch"].advice


def test_a_loss_of_rows_near_length_one_is_no_proof_of_normalisation() -> None:
    z1, z2 = (1.1 * z for z in healthy_views())
    measured = read(z1, z2).loss
    for loss, expected in ((measured, False), (measured + 0.05, True)):
        assert ("non-unit input" in names(read(z1, z2, loss=loss))) == expected


def test_a_temperature_of_one_is_too_high_for_any_number_of_negatives() -> None:
    for pairs in (32, 128, 512):
        assert "temperature too high" in names(read(*healthy_views(pairs=pairs), tau=1.0))
        assert "temperature too high" not in names(read(*healthy_views(pairs=pairs), tau=0.5))


def test_a_strong_leading_direction_is_not_mistaken_for_one_dimension() -> None:
    """A cone around a random vector fills some coordinate more than six times by chance."""
    direction = samples(pairs=1, seed=6)
    direction[0, 0] = 3.0  # one of 64 is as large in every sixth random direction
    reading = read(*spoilt(samples() + 3 * direction))
    assert reading.axis_dominance > DOMINANCE
    assert "one dimension dominates" not in names(reading)


def test_a_positive_is_not_asked_to_beat_an_older_key_of_its_own_sample() -> None:
    z1, z2 = healthy_views(noise=0.2)
    others = normalize(samples(seed=9, pairs=64))
    own = torch.arange(PAIRS)
    contrast = Contrast.queued(z1, z2, torch.cat([z1[:32], others]))  # 32 are in the queue
    queue_ids = torch.cat([own[:32], torch.arange(1000, 1064)])
    assert read_batch(contrast, TAU).solved_share == pytest.approx(0.75)
    told = read_batch(contrast, TAU, ids=own, queue_ids=queue_ids)
    assert told.solved_share == 1.0


def test_a_reading_says_whether_selection_would_pay() -> None:
    assert "raise the force about" in easy_batches().selection
    assert "hard already" in read(*healthy_views(), tau=0.5).selection
    anchors = normalize(samples(seed=4))
    blunt = read_batch(Contrast.cross(anchors[:64], anchors[:64]), 0.25)
    assert blunt.miss > EASY_MISS
    assert blunt.selection.startswith(f"Miss {blunt.miss:.2f}, yet ")
    assert "queue" in queue_unlike_keys().selection


def test_an_unreadable_batch_says_nothing_about_selection() -> None:
    assert Reading(failure="row 3 is NaN").selection is None


@pytest.mark.parametrize("groups", [1, 64])
def test_the_prediction_for_hard_batches_is_near_what_neighbours_give(groups: int) -> None:
    """The miss within a factor of two, isotropic and grouped samples; random ones are easier."""
    n, generator = 128, torch.Generator().manual_seed(0)
    centres = torch.randn(groups, 24, generator=generator)[torch.arange(n * n // 4) % groups]
    spread = torch.randn(centres.shape, generator=generator)
    anchors = normalize((groups > 1) * centres + spread)
    keys = normalize(anchors + 0.15 * torch.randn(anchors.shape, generator=generator))
    misses, forces = [], []
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)
        batches = (
            torch.randperm(len(anchors), generator=draw)[:n],
            Neighbours()(anchors, n, generator=draw),
        )
        easy, hard = (read_batch(Contrast.cross(anchors[b], keys[b]), 0.1) for b in batches)
        misses.append([easy.miss, easy.hard_miss, hard.miss])
        force = easy.gradient_force
        forces.append([force, force * easy.hard_force_ratio, hard.gradient_force])
    for rows, factor in ((misses, 2), (forces, 4)):  # the force is a square
        random, predicted, actual = torch.tensor(rows).mean(0).tolist()
        assert 1 / factor < predicted / actual < factor
        assert random < 0.7 * min(predicted, actual)


def test_the_tower_that_collapsed_is_named() -> None:
    z1, z2 = healthy_views()
    for pair, side in (((torch.ones_like(z1), z2), "first"), ((z1, torch.ones_like(z2)), "second")):
        found = {one.name: one for one in read_batch(Contrast.cross(*pair), TAU).findings}
        assert found["collapsing"].severity == "critical"
        assert f"{side} tower" in found["collapsing"].evidence


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda z: (z @ z.T * TAU).fill_diagonal_(-torch.inf), "multiplied by tau"),
        (lambda z: (z @ z.T).fill_diagonal_(-torch.inf), "tau = 1"),
        (lambda z: z @ z.T / TAU, "without self-mask"),
        (lambda z: (z @ z.T / (2 * TAU)).fill_diagonal_(-torch.inf), "different temperatures"),
    ],
)
def test_the_mistake_behind_a_loss_is_named(mistake, text: str) -> None:
    z = torch.cat(healthy_views())
    loss = torch.nn.functional.cross_entropy(mistake(z), torch.arange(len(z)).roll(PAIRS)).item()
    found = {one.name: one for one in read(*z.chunk(2), loss=loss).findings}
    assert text in found["loss mismatch"].advice


def test_a_multiple_of_the_loss_is_given_no_name_since_any_value_has_a_factor() -> None:
    z1, z2 = healthy_views()
    measured = read(z1, z2).loss
    for factor in (2, 2 * PAIRS):
        reading = read(z1, z2, loss=factor * measured)
        found = {one.name: one for one in reading.findings}
        assert "Its value is that of" not in found["loss mismatch"].advice
        assert "check_loss" in found["loss mismatch"].advice


def test_the_users_own_loss_is_accepted_in_every_layout() -> None:
    z1, z2 = healthy_views()
    target = torch.arange(PAIRS)
    logits = z1 @ z2.T / TAU
    one, other = (torch.nn.functional.cross_entropy(each, target) for each in (logits, logits.T))
    contrast = Contrast.cross(z1, z2)
    for loss in (one, other, (one + other) / 2):
        reading = read_batch(contrast, TAU, loss=loss.item())
        assert "loss mismatch" not in names(reading)
    assert reading.symmetric_loss == pytest.approx(((one + other) / 2).item(), rel=1e-5)


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
    assert reading.queue_length is not None
    assert (reading.queue_fill, reading.self_negative_rate) == (1.0, 0.0)
    assert names(reading) == {"healthy"}


@pytest.mark.parametrize(
    ("reason", "situation"),
    [("solved positives", alignment_saturated), ("negatives like the positive", collapsing)],
)
def test_both_reasons_saturate_alignment(reason: str, situation) -> None:
    assert "alignment saturated" in names(situation()), reason


def test_collapse_is_not_mistaken_for_solved_positives_or_copies() -> None:
    found = names(collapsing())
    assert not found & {"task solved", "identical views"}


def test_a_shared_vector_is_not_mistaken_for_dimensional_collapse() -> None:
    assert "dimensional collapse" not in names(mean_dominated())


def test_an_untrained_encoder_full_of_look_alikes_has_no_false_negatives() -> None:
    assert "false negatives" not in names(stuck_at_chance())
    assert "false negatives" not in names(read(*spoilt(samples() + 2.0, noise=2.0)))


def test_hard_negatives_of_one_class_are_no_duplicates() -> None:
    classes = one_hot(torch.arange(PAIRS) % 8, DIMENSION).float() * 6
    reading = read(*spoilt(samples() + classes, noise=0.9))
    assert reading.harder_share > 0
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
    found = {one.name: one.severity for one in read(*views, tau=tau).findings}
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
    assert inputs["input_dtype"] == expected
    assert inputs["input_resolution"] == torch.finfo(getattr(torch, expected)).eps
    assert inputs["input_half"] == (expected != "float32")


def test_the_most_severe_comes_first() -> None:
    order = ["critical", "warning", "info"]
    severities = [order.index(one.severity) for one in collapsing().findings]
    assert severities == sorted(severities)
    assert severities[0] == 0


@pytest.mark.parametrize("name", [rule.name for rule in RULES if rule.untrained])
def test_what_an_untrained_encoder_shows_is_no_warning_in_the_first_steps(name: str) -> None:
    reading = SITUATIONS[name]()

    def severity(step: int | None) -> str:
        found = judged(reading, step=step).findings
        return next(one.severity for one in found if one.name == name)

    first_steps = EARLY_STEPS if reading.queue_length is None else MOMENTUM_STEPS
    assert severity(0) == severity(first_steps - 1) == "info"
    assert severity(first_steps) == severity(None) == "warning"


def test_what_an_untrained_encoder_shows_does_not_count_as_lasting() -> None:
    monitor = SpectralMonitor(TAU, every=20, quiet=True)
    z1, z2 = healthy_views(seed=0)[0], healthy_views(seed=1)[1]  # unrelated
    streaks = {}
    for _ in range(EARLY_STEPS + 41):
        if reading := monitor(z1, z2):
            streaks[reading.step] = reading.course.streaks.get("stuck at chance", 0)
    assert [streaks[step] for step in (80, 100, 120, 140)] == [0, 0, 1, 2]


def test_embeddings_without_positives_get_the_rules_that_need_none() -> None:
    assert [one.name for one in diagnose_cloud(collapsing())] == [
        "collapsing",
        "mean-dominated",
    ]
    assert [one.name for one in diagnose_cloud(read(*healthy_views()))] == ["healthy"]


def test_a_task_counts_as_solved_from_where_it_stayed_solved() -> None:
    monitor = SpectralMonitor(0.05, every=1, quiet=True)
    solved, open_ = healthy_views(noise=0.3), healthy_views()
    courses = [monitor(*views, layout="cross").course for views in (solved, open_, solved, solved)]
    assert [one.solved_since for one in courses] == [0, None, 2, 2]
