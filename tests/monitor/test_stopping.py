import pytest
import torch

from batches import TAU, healthy_views
from eigenbatch.errors import ParameterError
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn

COLLAPSED = (torch.ones(32, 8), torch.ones(32, 8))


def test_a_run_stops_once_the_diagnosis_came_often_enough_in_a_row() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    stop = StopOn("collapsing", patience=2)
    batches = [COLLAPSED, healthy_views(), *[COLLAPSED] * 4]  # early, one reading is a remark
    assert [stop(monitor(*batch)) for batch in batches] == [False] * 4 + [True] * 2
    assert stop.reasons == ("collapsing",)


def test_skipped_steps_neither_count_nor_interrupt() -> None:
    monitor = SpectralMonitor(TAU, every=2)
    stop = StopOn("collapsing", patience=2)
    assert [stop(monitor(*COLLAPSED)) for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("bad", ["row", "loss", "tau"])
def test_a_run_stops_on_nan_and_says_why(bad: str) -> None:
    tau = [TAU]
    monitor, stop = SpectralMonitor(lambda: tau[0], every=1, quiet=True), StopOn("not finite")
    z1, z2 = healthy_views()
    assert not stop(monitor(z1, z2, loss=None))
    if bad == "row":
        z1 = z1 * torch.nan
    if bad == "tau":
        tau[0] = float("nan")
    loss = torch.nan if bad == "loss" else None
    assert stop.reason == ""
    assert [stop(monitor(z1, z2, loss=loss)) for _ in range(2)] == [False, True]
    assert stop.reason.startswith("not finite (")
    assert stop.reason.endswith("at step 2")


def test_an_untrained_encoder_is_no_reason_to_stop() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    stop = StopOn("stuck at chance", patience=1)
    assert not stop(monitor(*COLLAPSED))


def test_other_diagnoses_do_not_stop() -> None:
    stop = StopOn("temperature too high", patience=1)
    assert not stop(SpectralMonitor(TAU)(*COLLAPSED))


@pytest.mark.parametrize(
    ("names", "patience", "message"),
    [
        (("collapsd",), 1, r"no finding is called \['collapsd'\]"),
        ((), 1, "at least one finding"),
        (("healthy",), 1, "it cannot stop a run"),
        (("easy batches",), 1, "are remarks, never warnings"),
        (("collapsing",), 0, "patience of at least 1"),
    ],
)
def test_a_misspelt_condition_is_refused(names, patience: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        StopOn(*names, patience=patience)
