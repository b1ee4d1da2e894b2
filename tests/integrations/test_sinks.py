import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import normalize

from eigenbatch.core.contrast import Contrast
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.sinks import JsonLines, TensorBoard, WeightsAndBiases
from eigenbatch.monitor.measure import read_batch
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.reading import Reading


def readings(count: int = 3) -> list[Reading]:
    monitor = SpectralMonitor(0.2, every=1, strict=True)
    taken = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        z = normalize(torch.randn(2, 32, 16, generator=generator))
        taken.append(monitor(z[0], normalize(z[0] + 0.5 * z[1])))
    return taken


def test_json_lines_hold_every_scalar_of_every_reading(tmp_path: Path) -> None:
    path = tmp_path / "run" / "readings.jsonl"
    sink = JsonLines(path)
    taken = readings()
    for reading in taken:
        sink(reading)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    for line, reading in zip(lines, taken, strict=True):
        assert {name: line[name] for name in reading.scalars()} == reading.scalars()
        assert line["findings"] == [asdict(one) for one in reading.findings]


def test_json_lines_are_appended_to_an_earlier_run(tmp_path: Path, caplog) -> None:
    path = tmp_path / "readings.jsonl"
    for reading in readings(2):
        JsonLines(path)(reading)
    assert len(path.read_text().splitlines()) == 2
    assert "is appended" not in caplog.text
    again = JsonLines(path)
    for reading in readings(2):
        again(reading)
    assert caplog.text.count("holds readings up to step 1, and step 0 is appended") == 1


def test_tensorboard_receives_scalars_and_the_diagnosis(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    taken = readings()
    with SummaryWriter(str(tmp_path)) as writer:
        sink = TensorBoard(writer)
        for reading in taken:
            sink(reading)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = events.Scalars("spectral/gradient")
    assert [event.step for event in written] == [0, 1, 2]
    for event, reading in zip(written, taken, strict=True):
        assert event.value == pytest.approx(reading.gradient, rel=1e-6)
    texts = events.Tensors("spectral/findings/text_summary")
    assert len(texts) == 1, "the diagnosis did not change, so it is written once"
    assert taken[0].findings[0].name in str(texts[0].tensor_proto)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb.*")
def test_weights_and_biases_receives_scalars_offline(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    taken = readings()
    with wandb.init(mode="offline", dir=str(tmp_path), project="test", settings=settings) as run:
        sink = WeightsAndBiases(run)
        for reading in taken:
            run.log({"train/loss": 1.0})
            sink(reading)
        summary = {
            name: run.summary[name] for name in ("spectral/gradient", "spectral/step", "train/loss")
        }
        names = run.summary["spectral/findings"]
    assert summary["spectral/gradient"] == pytest.approx(taken[-1].gradient)
    assert (summary["spectral/step"], summary["train/loss"]) == (2, 1.0)
    assert names == taken[-1].findings[0].name
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb")), "the run was written to disk"


def test_a_reading_outside_a_monitor_has_no_step_to_be_logged_at() -> None:
    z = torch.eye(6)
    reading = read_batch(Contrast.paired(z, z), 0.2)
    with pytest.raises(ParameterError, match="no step"):
        TensorBoard(SimpleNamespace(add_scalar=None))(reading)


def test_json_lines_of_a_reading_outside_a_monitor_are_numbered_from_zero(tmp_path: Path) -> None:
    z = torch.eye(6)
    sink = JsonLines(tmp_path / "readings.jsonl")
    for _ in range(2):
        sink(read_batch(Contrast.cross(z, z), 0.2))
    lines = [json.loads(line) for line in (tmp_path / "readings.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    for line in lines:
        assert all(math.isfinite(v) for name, v in line.items() if name.startswith("spectral"))


def test_json_lines_of_an_unreadable_batch_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    z = torch.full((6, 4), torch.nan)
    JsonLines(path)(SpectralMonitor(0.2, quiet=True)(z, z))
    line = json.loads(path.read_text())
    assert (line["step"], line["spectral/readable"], line["eigenvalues"]) == (0, 0.0, [])
    assert [one["name"] for one in line["findings"]] == ["not finite"]
