import gc
import logging
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from batches import PAIRS, TAU, healthy_views, samples
from eigenbatch.core.contrast import Contrast
from eigenbatch.core.infonce import infonce
from eigenbatch.core.movement import DIRECTIONS, ROWS, Sketch
from eigenbatch.errors import ParameterError, RowError
from eigenbatch.monitor.course import HISTORY
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn

FRESH = SpectralMonitor(TAU).state_dict()


class CountOps(TorchDispatchMode):
    """Counts every tensor operation, hence every possible synchronisation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_first_and_then_every_kth_call_is_read() -> None:
    monitor = SpectralMonitor(TAU, every=3)
    taken = [monitor(*healthy_views()) is not None for _ in range(7)]
    assert taken == [True, False, False, True, False, False, True]


def test_readings_carry_the_step_they_were_taken_at() -> None:
    monitor = SpectralMonitor(TAU, every=2)
    readings = [monitor(*healthy_views()) for _ in range(5)]
    assert [reading.step for reading in readings if reading] == [0, 2, 4]


def test_a_skipped_step_touches_no_tensor_and_no_temperature() -> None:
    def never() -> float:
        raise AssertionError("the temperature was read on a skipped step")

    monitor = SpectralMonitor(never, every=2)
    monitor.load_state_dict(SpectralMonitor(TAU).state_dict() | {"step": 1})
    z1, z2 = healthy_views()
    with CountOps() as ops:
        assert monitor(z1, z2) is None
        assert SpectralMonitor(never, every=2).due
    assert ops.count == 0


def test_two_views_are_an_ntxent_batch() -> None:
    z1, z2 = healthy_views()
    by_views = SpectralMonitor(TAU)(z1, z2)
    by_contrast = SpectralMonitor(TAU)(contrast=Contrast.paired(z1, z2))
    by_callable = SpectralMonitor(TAU)(contrast=lambda: Contrast.paired(z1, z2))
    by_late_views = SpectralMonitor(TAU)(views=lambda: (z1, z2))
    assert by_views is not None
    assert by_contrast is not None
    assert by_callable is not None
    assert by_late_views is not None
    assert by_late_views.scalars() == by_views.scalars()
    assert by_late_views.input_dtype == by_views.input_dtype == "float32"
    assert by_views.scalars() == by_contrast.scalars() == by_callable.scalars()


def test_the_measured_gradient_is_autograds_with_keys_held_fixed() -> None:
    z1, z2 = (z.double() for z in healthy_views(pairs=16))
    rows = torch.cat([z1, z2])
    squared = []
    for i, positive in enumerate(torch.arange(32).roll(16)):
        anchor = rows[i].clone().requires_grad_()
        logits = (rows @ anchor / TAU).masked_fill(torch.arange(32) == i, -torch.inf)
        loss = logits.logsumexp(0) - logits[positive]
        squared.append(torch.autograd.grad(loss, anchor)[0].square().sum().item())
    reading = SpectralMonitor(TAU, strict=True)(z1, z2)
    assert reading is not None
    assert reading.gradient == pytest.approx(sum(squared) / 32)


@pytest.mark.parametrize(
    "tau",
    [0.05, torch.tensor(0.05), nn.Parameter(torch.tensor(0.05)), lambda: torch.tensor(20.0) ** -1],
    ids=["float", "tensor", "parameter", "callable"],
)
def test_tau_may_be_a_number_a_tensor_or_a_callable(tau) -> None:
    z1, z2 = healthy_views()
    reading = SpectralMonitor(tau, strict=True)(z1, z2)
    expected = infonce(Contrast.paired(z1, z2), 0.05).loss.mean().item()
    assert reading is not None
    assert reading.loss == pytest.approx(expected, rel=1e-5)


def test_a_learned_scale_is_read_anew_at_each_reading() -> None:
    scale = nn.Parameter(torch.tensor(10.0).log())
    monitor = SpectralMonitor(lambda: 1 / scale.exp(), every=1, strict=True)
    first = monitor(*healthy_views())
    scale.data += torch.tensor(2.0).log()
    second = monitor(*healthy_views())
    assert first is not None
    assert second is not None
    assert (first.tau, second.tau) == pytest.approx((0.1, 0.05))


def test_no_graph_is_built_or_kept() -> None:
    z1, z2 = (z.requires_grad_() for z in healthy_views())
    reading = SpectralMonitor(TAU)(z1, z2)
    assert reading is not None
    assert not reading.outlook.log_odds.requires_grad
    assert z1.grad is None
    (z1 * z2).sum().backward()


def test_memory_is_returned_once_the_reading_is_taken() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    z1, z2 = healthy_views()
    before = living_bytes()
    reading = monitor(z1, z2)
    assert reading is not None
    numbers = 4 * reading.anchors + reading.dimension
    remembered = 2 * 8 * DIRECTIONS**2 + 4 * ROWS * DIRECTIONS  # the run's beginning, last rows
    assert living_bytes() - before <= 8 * numbers + remembered
    del reading
    kept = living_bytes() - before
    assert kept <= remembered
    monitor(z1, z2)
    assert living_bytes() - before <= remembered, "memory does not grow"


def living_bytes() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def test_an_autocast_region_changes_nothing() -> None:
    z1, z2 = healthy_views()
    plain = SpectralMonitor(TAU)(z1, z2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = SpectralMonitor(TAU)(z1, z2)
    assert plain is not None
    assert inside is not None
    assert plain.scalars() == inside.scalars()


def test_a_failure_is_logged_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    monitor = SpectralMonitor(TAU, every=1)
    z1, z2 = healthy_views()
    broken = z1.clone()
    broken[5] = torch.nan
    with caplog.at_level(logging.WARNING):
        assert monitor(z1, z2[:5]) is None
        assert monitor(z1, z2[:5]) is None
    assert len(caplog.records) == 1
    assert "row i of one is the positive of row i" in caplog.text
    assert monitor(z1, z2) is not None


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
def test_nan_infinity_and_zero_rows_are_a_critical_finding_at_every_reading(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    monitor, stop = SpectralMonitor(TAU, every=1), StopOn("not finite")
    z1, z2 = healthy_views()
    broken = z1.clone()
    broken[5] = bad
    stops = []
    for step in range(3):
        reading = monitor(broken, z2)
        assert reading is not None
        assert reading.step == step
        (finding,) = reading.findings
        assert (finding.name, finding.severity) == ("not finite", "critical")
        assert "row 5 of z1" in finding.evidence
        assert ("learning rate" in finding.advice) == (bad != 0)
        assert ("Leave out padding" in finding.advice) == (bad == 0)
        assert reading.scalars() == {"spectral/readable": 0.0}
        stops.append(stop(reading))
    assert stops == [False, True, True]
    assert caplog.text.count("not finite") == 1
    assert [one.name for one in monitor(z1, z2).findings] == ["healthy"]


def test_ids_may_be_a_list_as_samplers_yield_them() -> None:
    z1, z2 = healthy_views()
    reading = SpectralMonitor(TAU, strict=True)(z1, z2, ids=[0] * len(z1))
    assert "repeated ids" in " ".join(one.name for one in reading.findings)


@pytest.mark.parametrize("loss", [torch.ones(1, requires_grad=True).sum(), np.float32(1), 1])
def test_any_number_is_a_loss_and_read_without_a_warning(loss) -> None:
    z1, z2 = healthy_views()
    assert SpectralMonitor(TAU, strict=True)(z1, z2, loss=loss) is not None


def test_a_compiled_step_does_not_compile_the_monitor() -> None:
    monitor, graphs = SpectralMonitor(TAU, strict=True), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    @partial(torch.compile, backend=backend)
    def step(z1, z2):
        return monitor(2 * z1, 2 * z2)

    assert step(*healthy_views()) is not None
    assert len(graphs) == 1  # the two products


def test_a_loss_that_is_nan_is_a_critical_finding() -> None:
    reading = SpectralMonitor(TAU)(*healthy_views(), loss=torch.tensor(torch.nan))
    assert [one.name for one in reading.findings] == ["not finite"]


def test_a_finding_is_said_once_and_not_by_a_quiet_monitor(caplog) -> None:
    for quiet, times in ((True, 0), (False, 1)):
        monitor = SpectralMonitor(5.0, every=50, quiet=quiet)
        for step in range(301):
            monitor(*healthy_views(seed=step))
        assert caplog.text.count("temperature too high") == times
    (record,) = [one for one in caplog.records if "temperature too high" in one.message]
    assert record.name == "eigenbatch"
    assert record.message.startswith("step 50, warning: temperature too high. tau = 5: ")
    resumed = SpectralMonitor(5.0, every=50)
    resumed.load_state_dict(monitor.state_dict())
    caplog.clear()
    for step in range(100):
        resumed(*healthy_views(seed=step))
    assert not caplog.records


def test_an_encoder_that_stands_still_is_found_and_a_moving_one_is_not() -> None:
    def last(turn: float):
        monitor, taken = SpectralMonitor(TAU, every=50, quiet=True), []
        for step in range(251):
            z1, z2 = healthy_views(seed=step, d=16)
            scale = torch.ones(z1.shape[1])
            scale[: 1 + int(turn * step)] = 4.0
            taken.append(monitor(z1 * scale, z2 * scale))
        return taken[-1]

    still, moving = last(0.0), last(0.02)
    assert max(still.course.movement.values()) < 3 < min(moving.course.movement.values())
    assert "encoder does not move" in {one.name for one in still.findings}
    assert "encoder does not move" not in {one.name for one in moving.findings}


def test_a_small_first_batch_does_not_hide_that_an_encoder_stands_still() -> None:
    monitor, taken = SpectralMonitor(TAU, every=50, quiet=True), []
    for step in range(251):
        z1, z2 = healthy_views(seed=step, d=16)
        few = 32 if step == 0 else len(z1)
        taken.append(monitor(z1[:few], z2[:few]))
    assert "encoder does not move" in {one.name for one in taken[-1].findings}


def test_a_restored_sketch_is_compared_on_the_device_of_the_batch() -> None:
    """Checkpoints restore it on the CPU. A meta tensor stands for one on a GPU."""
    there, here = torch.zeros(4, 4, device="meta"), torch.zeros(4, 4, dtype=torch.float64)
    batch = Sketch(count=9, second=there, noise=1.0)
    with pytest.raises(RuntimeError, match="item"):  # not: another device
        batch.moved(Sketch(count=9, second=here, noise=1.0))


def test_the_same_batch_again_and_again_is_found() -> None:
    monitor = SpectralMonitor(TAU, every=1, quiet=True)
    for seed in range(4):
        fresh = monitor(*healthy_views(seed=seed))
    assert abs(fresh.course.repetition) < 0.1
    for _ in range(3):
        same = monitor(*healthy_views(seed=9))
    assert same.course.repetition > 0.9
    assert "same batch repeated" in {one.name for one in same.findings if one.severity != "info"}


def test_a_strict_monitor_raises() -> None:
    z1, z2 = healthy_views()
    with pytest.raises(RowError, match="zero"):
        SpectralMonitor(TAU, strict=True)(torch.zeros_like(z1), z2)


def test_views_are_made_only_when_due_and_may_fail_like_any_batch() -> None:
    def never() -> tuple[torch.Tensor, torch.Tensor]:
        raise KeyError("z1")

    monitor = SpectralMonitor(TAU, every=2)
    assert monitor(views=never) is None
    skipping = SpectralMonitor(TAU, every=2, strict=True)
    skipping(*healthy_views())
    assert skipping(views=never) is None
    with pytest.raises(KeyError, match="z1"):
        skipping(views=never)


@pytest.mark.parametrize("tau", [torch.tensor(-1.0), lambda: 0.0])
def test_a_learned_temperature_gone_wrong_raises_only_in_strict_mode(tau) -> None:
    z1, z2 = healthy_views()
    assert [one.name for one in SpectralMonitor(tau)(z1, z2).findings] == ["not finite"]
    with pytest.raises(ParameterError, match="tau must be a finite number above 0"):
        SpectralMonitor(tau, strict=True)(z1, z2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.0}, "tau must be a finite number above 0"),
        ({"tau": 0.1, "every": 0}, "every must be at least 1, got 0"),
        ({"tau": 0.1, "method": "exact"}, "method must be one of"),
    ],
)
def test_wrong_settings_raise_at_once(arguments, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SpectralMonitor(**arguments)


def test_a_call_without_a_batch_is_a_mistake_in_the_loop_and_always_raises() -> None:
    z1, z2 = healthy_views()
    monitor = SpectralMonitor(TAU)
    for arguments in ({}, {"z1": z1}, {"z2": z2}):
        with pytest.raises(ParameterError, match="either both views"):
            monitor(**arguments)
    with pytest.raises(ParameterError, match="either both views"):
        monitor(z1, z2, contrast=Contrast.paired(z1, z2))
    with pytest.raises(ParameterError, match="either both views"):
        monitor(z1, z2, views=lambda: (z1, z2))


def test_sync_of_a_process_that_is_alone_reads_its_batch() -> None:
    synced, alone = (
        SpectralMonitor(TAU, every=1, sync=sync, strict=True)(*healthy_views())
        for sync in (True, False)
    )
    assert synced.scalars() == alone.scalars()


def test_trend_is_the_papers_average_and_rolling_variance() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    readings = [monitor(*healthy_views(pairs=16, seed=seed)) for seed in range(HISTORY + 10)]
    values = torch.tensor([one.gradient for one in readings], dtype=torch.float64)
    ema = values[0]
    for value in values[1:]:
        ema = 0.9 * ema + 0.1 * value
    last = readings[-1]
    assert last.gradient_ema == pytest.approx(ema.item())
    assert last.gradient_rolling_variance == pytest.approx(
        values[-HISTORY:].var(correction=0).item()
    )
    assert readings[0].gradient_rolling_variance is None
    assert "spectral/gradient_rolling_variance" not in readings[0].scalars()
    assert "spectral/gradient_rolling_variance" in readings[1].scalars()


def test_a_restored_monitor_continues_as_if_never_stopped() -> None:
    def show(monitor: SpectralMonitor, seeds: range) -> list[dict[str, float]]:
        readings = [monitor(*healthy_views(pairs=16, seed=seed)) for seed in seeds]
        return [one.scalars() | {"step": one.step} for one in readings if one]

    straight = SpectralMonitor(TAU, every=2)
    show(straight, range(7))
    resumed = SpectralMonitor(TAU, every=2)
    resumed.load_state_dict(torch_saved(straight.state_dict()))
    assert show(resumed, range(7, 15)) == show(straight, range(7, 15))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "a monitor state holds"),
        ({}, "a monitor state holds ['course', 'history', 'said', 'step']"),
        ({"step": 7}, "a monitor state holds"),
        (FRESH | {"step": 7, "history": {}}, "a history state holds ['ema', 'window']"),
        (FRESH | {"step": 7, "history": {"ema": 1.0}}, "a history state holds"),
        (FRESH | {"step": 7, "history": [1]}, "'history' in a monitor state cannot be list"),
        (FRESH | {"step": "7"}, "'step' in a monitor state"),
        (FRESH | {"step": -1}, "'step' in a monitor state"),
        (FRESH | {"history": {"ema": "x", "window": []}}, "'ema' in a history state"),
        (FRESH | {"history": {"ema": None, "window": [[1.0]]}}, "'window' in a history state"),
        (FRESH | {"history": {"ema": None, "window": 3}}, "'window' in a history state"),
        (FRESH | {"course": {}}, "a course state holds"),
        (FRESH | {"course": FRESH["course"] | {"first": {"view 1": {}}}}, "a sketch state holds"),
        (FRESH | {"course": FRESH["course"] | {"streaks": {"x": -1}}}, "'streaks' in a course"),
        (FRESH | {"said": [3]}, "'said' in a monitor state"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(state, message: str) -> None:
    monitor = SpectralMonitor(TAU, every=1)
    monitor(*healthy_views())
    before = monitor.state_dict()
    with pytest.raises(ParameterError, match=re.escape(message)):
        monitor.load_state_dict(state)
    assert monitor.state_dict() == before


def torch_saved(state):
    """Through a file, as a checkpoint goes: plain numbers only."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_the_monitor_reads_clip_and_moco_batches() -> None:
    z1, z2 = healthy_views()
    cross = SpectralMonitor(TAU, strict=True)(contrast=Contrast.cross(z1, z2))
    assert cross is not None
    assert cross.negatives == PAIRS - 1
    queue = samples(pairs=300, seed=4)
    moco = SpectralMonitor(TAU, strict=True)(contrast=Contrast.queued(z1, z2, queue))
    assert moco is not None
    assert moco.negatives == 300
    assert moco.queue_length is not None
