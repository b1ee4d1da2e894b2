import pytest
import torch
from batches import TAU, healthy_views

from eigenbatch.errors import ParameterError
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.stopping import StopOn

COLLAPSED = (torch.ones(32, 8), torch.ones(32, 8))


def test_a_run_stops_once_the_diagnosis_came_often_enough_in_a_row() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    stop = StopOn("collapsing", patience=2)
    batches = [COLLAPSED, healthy_views(), COLLAPSED, COLLAPSED, COLLAPSED]
    assert [stop(monitor(*batch)) for batch in batches] == [False, False, False, True, True]
    assert stop.reasons == ("collapsing",)


def test_skipped_steps_neither_count_nor_interrupt() -> None:
    monitor = SpectralMonitor(TAU, every=2)
    stop = StopOn("collapsing", patience=2)
    assert [stop(monitor(*COLLAPSED)) for _ in range(3)] == [False, False, True]


def test_an_untrained_encoder_is_no_reason_to_stop() -> None:
    monitor = SpectralMonitor(TAU, every=1)
    stop = StopOn("stuck at chance", "mean-dominated", patience=1)
    assert not stop(monitor(*COLLAPSED))


def test_other_diagnoses_do_not_stop() -> None:
    stop = StopOn("temperature too high", patience=1)
    assert not stop(SpectralMonitor(TAU)(*COLLAPSED))


@pytest.mark.parametrize(
    ("names", "patience", "message"),
    [
        (("collapsd",), 1, r"no diagnosis is called \['collapsd'\]"),
        ((), 1, "at least one diagnosis"),
        (("collapsing",), 0, "patience of at least 1"),
    ],
)
def test_a_misspelt_condition_is_refused(names, patience: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        StopOn(*names, patience=patience)
