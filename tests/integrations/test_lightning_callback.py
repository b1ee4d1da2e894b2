"""A real Lightning trainer."""

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from eigenbatch import Contrast
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.lightning import SpectralCallback
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.stopping import StopOn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]

TAU, PAIRS, STEPS = 0.2, 16, 12


class SimCLR(pl.LightningModule):
    def __init__(
        self,
        *,
        collapsed: bool = False,
        keys: tuple[str, str] = ("z1", "z2"),
        skipped: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 6)
        self.collapsed, self.keys, self.skipped = collapsed, keys, skipped
        self.logged: list[dict[str, float]] = []

    def training_step(self, batch, batch_idx):
        if batch_idx in self.skipped:
            return None
        views = [batch[0] + 0.1 * k * torch.sin(batch[0]) for k in (1, 2)]
        z1, z2 = (normalize(self.encoder(view)) for view in views)
        if self.collapsed:
            z1, z2 = (torch.ones_like(z) + 0 * z for z in (z1, z2))
        loss = -(z1 * z2).sum(1).mean()
        return {"loss": loss, self.keys[0]: z1, self.keys[1]: z2}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(module, callback, directory: Path, **settings) -> pl.Trainer:
    rows = torch.randn(PAIRS * STEPS, 8, generator=torch.Generator().manual_seed(0))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=callback if isinstance(callback, list) else [callback],
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"logger": False, "enable_checkpointing": False} | settings),
    )
    trainer.fit(module, DataLoader(TensorDataset(rows), PAIRS))
    return trainer


def test_every_kth_batch_is_read_and_logged(tmp_path: Path) -> None:
    taken = []
    callback = SpectralCallback(SpectralMonitor(TAU, every=5, strict=True), sinks=[taken.append])
    trainer = fit(SimCLR(), callback, tmp_path)
    assert [reading.step for reading in taken] == [0, 5, 10]
    expected = taken[-1].gradient.measured
    assert trainer.callback_metrics["spectral/gradient"].item() == pytest.approx(expected, rel=1e-6)
    assert taken[0].inputs is not None


def test_another_layout_and_other_names(tmp_path: Path) -> None:
    taken = []
    callback = SpectralCallback(
        SpectralMonitor(TAU, strict=True),
        embeddings=lambda outputs: (outputs["image"], outputs["text"]),
        layout=Contrast.cross,
        sinks=[taken.append],
    )
    fit(SimCLR(keys=("image", "text")), callback, tmp_path)
    assert taken[0].softmax.negatives == PAIRS - 1


def test_a_step_that_returns_no_embeddings_says_what_to_return(tmp_path: Path) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, strict=True))
    with pytest.raises(ParameterError, match="training_step must return"):
        fit(SimCLR(keys=("a", "b")), callback, tmp_path)


@pytest.mark.parametrize("layout", [None, Contrast.cross])
def test_embeddings_that_cannot_be_found_are_logged_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, layout
) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, every=2), layout=layout)
    assert fit(SimCLR(keys=("a", "b")), callback, tmp_path).global_step == STEPS
    assert "training_step must return" in caplog.text


def test_embeddings_are_looked_for_only_when_a_reading_is_due(tmp_path: Path) -> None:
    seen = []

    def embeddings(outputs):
        seen.append(1)
        return outputs["z1"], outputs["z2"]

    monitor = SpectralMonitor(TAU, every=5, strict=True)
    fit(SimCLR(), SpectralCallback(monitor, embeddings=embeddings), tmp_path)
    assert len(seen) == 3


@pytest.mark.filterwarnings("ignore:.*returned `None`.*")
@pytest.mark.parametrize("layout", [None, Contrast.cross])
def test_a_batch_that_lightning_skips_is_no_step_of_the_monitor(tmp_path: Path, layout) -> None:
    taken = []
    monitor = SpectralMonitor(TAU, every=2, strict=True)
    callback = SpectralCallback(monitor, layout=layout, sinks=[taken.append])
    fit(SimCLR(skipped=(0, 1, 7)), callback, tmp_path)
    assert monitor.state_dict()["step"] == STEPS - 3
    assert [reading.step for reading in taken] == [0, 2, 4, 6, 8]


def test_a_run_is_stopped_on_a_chosen_diagnosis(tmp_path: Path) -> None:
    stop = StopOn("collapsing", patience=2)
    callback = SpectralCallback(SpectralMonitor(TAU, every=2), stop_on=stop)
    trainer = fit(SimCLR(collapsed=True), callback, tmp_path)
    assert trainer.global_step == 3
    assert stop.reasons == ("collapsing",)


def test_a_healthy_run_is_not_stopped(tmp_path: Path) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, every=2), stop_on=StopOn("collapsing"))
    assert fit(SimCLR(), callback, tmp_path).global_step == STEPS


def test_the_monitors_state_travels_with_the_checkpoint(tmp_path: Path) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, every=5))
    trainer = fit(SimCLR(), callback, tmp_path)
    path = tmp_path / "run.ckpt"
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=False)["callbacks"]
    (state,) = saved.values()
    restored = SpectralCallback(SpectralMonitor(TAU, every=5))
    restored.load_state_dict(state)
    assert restored.monitor.state_dict() == callback.monitor.state_dict()
    assert state["step"] == STEPS


def test_two_monitors_in_one_trainer_keep_their_numbers_and_states_apart(tmp_path: Path) -> None:
    callbacks = [
        SpectralCallback(SpectralMonitor(tau, every=3, strict=True), name=name)
        for name, tau in (("sharp", 0.1), ("soft", 0.5))
    ]
    trainer = fit(SimCLR(), callbacks, tmp_path, enable_checkpointing=True)
    assert trainer.logged_metrics["sharp/tau"] == pytest.approx(0.1)
    assert trainer.logged_metrics["soft/tau"] == pytest.approx(0.5)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    states = torch.load(checkpoint, weights_only=False)["callbacks"]
    assert sum("SpectralCallback" in name for name in states) == 2
