"""A real Lightning trainer."""

import json
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from eigenbatch import Contrast, EmbeddingCache, Greedy, IndexedDataset, SpectralBatchSampler
from eigenbatch.errors import ParameterError
from eigenbatch.integrations.lightning import SpectralCallback
from eigenbatch.monitor import OnlineProbe
from eigenbatch.monitor.monitor import SpectralMonitor, StopOn
from eigenbatch.runs import read_run

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


def fit(module, callback, directory: Path, *, resume=None, **settings) -> pl.Trainer:
    rows = torch.randn(PAIRS * STEPS, 8, generator=torch.Generator().manual_seed(0))
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=callback if isinstance(callback, list) else [callback],
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"max_epochs": 1, "logger": False, "enable_checkpointing": False} | settings),
    )
    trainer.fit(module, DataLoader(TensorDataset(rows), PAIRS), ckpt_path=resume)
    return trainer


def test_every_kth_batch_is_read_and_logged(tmp_path: Path) -> None:
    taken = []
    callback = SpectralCallback(SpectralMonitor(TAU, every=5, strict=True), sinks=[taken.append])
    trainer = fit(SimCLR(), callback, tmp_path)
    assert [reading.step for reading in taken] == [0, 5, 10]
    expected = taken[-1].gradient
    assert trainer.callback_metrics["spectral/gradient"].item() == pytest.approx(expected, rel=1e-6)
    assert taken[0].input_dtype is not None


def test_another_layout_and_other_names(tmp_path: Path) -> None:
    taken = []
    callback = SpectralCallback(
        SpectralMonitor(TAU, strict=True),
        embeddings=lambda outputs: (outputs["image"], outputs["text"]),
        layout=Contrast.cross,
        sinks=[taken.append],
    )
    fit(SimCLR(keys=("image", "text")), callback, tmp_path)
    assert taken[0].negatives == PAIRS - 1


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
    assert trainer.global_step == 5
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
    assert trainer.callback_metrics["sharp/tau"] == pytest.approx(0.1)
    assert trainer.callback_metrics["soft/tau"] == pytest.approx(0.5)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    states = torch.load(checkpoint, weights_only=False)["callbacks"]
    assert sum("SpectralCallback" in name for name in states) == 2


class Remembering(pl.loggers.logger.Logger):
    """Keeps what was logged, by step."""

    name, version = "remembering", 0

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def log_metrics(self, metrics, step=None) -> None:
        if "spectral/gradient" in metrics:
            self.steps.append(step)

    def log_hyperparams(self, *args, **kwargs) -> None:
        pass


def test_a_reading_is_logged_at_its_own_step_and_never_again(tmp_path: Path) -> None:
    logger = Remembering()
    callback = SpectralCallback(SpectralMonitor(TAU, every=5, strict=True))
    fit(SimCLR(), callback, tmp_path, logger=logger, log_every_n_steps=1)
    assert logger.steps == [1, 6, 11]


def test_a_finding_is_printed_once_beside_the_progress_bar(tmp_path: Path, capsys) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, every=2))
    fit(SimCLR(collapsed=True), callback, tmp_path)
    assert capsys.readouterr().out.count("critical: collapsing") == 1


def test_a_stopped_run_says_why_in_its_record(tmp_path: Path) -> None:
    stop = StopOn("collapsing", patience=2)
    callback = SpectralCallback(
        SpectralMonitor(TAU, every=2, quiet=True), stop_on=stop, record=tmp_path / "run"
    )
    fit(SimCLR(collapsed=True), callback, tmp_path)
    lines = lines_of(tmp_path / "run")
    assert "collapsing (sigma-hat" in lines[-1]["stopped"]
    assert {one["name"] for line in lines for one in line.get("findings", [])} >= {"collapsing"}


def test_the_recorded_loss_is_not_divided_for_accumulation(tmp_path: Path) -> None:
    losses = []
    for accumulate in (1, 4):
        torch.manual_seed(0)
        module, run = SimCLR(), tmp_path / str(accumulate)
        callback = SpectralCallback(SpectralMonitor(TAU, every=100, quiet=True), record=run)
        fit(module, callback, tmp_path, accumulate_grad_batches=accumulate)
        losses.append(next(line["loss"] for line in lines_of(run) if "loss" in line))
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize("layout", [Contrast.cross, Contrast.paired])
def test_a_monitor_that_reads_all_processes_takes_the_named_layouts(tmp_path, layout) -> None:
    taken = []
    monitor = SpectralMonitor(TAU, every=5, strict=True, sync=True)
    fit(SimCLR(), SpectralCallback(monitor, layout=layout, sinks=[taken.append]), tmp_path)
    assert (taken[0].first_tower is not None) == (layout == Contrast.cross)
    with pytest.raises(ParameterError, match="sync=True gathers two views or two towers"):
        SpectralCallback(monitor, layout=lambda a, b: Contrast.cross(b, a))


def test_a_sampler_that_lightning_would_replace_is_refused() -> None:
    sampler = SpectralBatchSampler(EmbeddingCache(8, 4), 4, Greedy())
    callback = SpectralCallback(SpectralMonitor(TAU), sampler=sampler)
    connector = SimpleNamespace(use_distributed_sampler=True)
    trainer = SimpleNamespace(world_size=2, _accelerator_connector=connector)
    with pytest.raises(ParameterError, match=r"2 processes: .*use_distributed_sampler=False"):
        callback.setup(trainer, None, "fit")
    callback.setup(trainer, None, "validate")
    connector.use_distributed_sampler = False
    callback.setup(trainer, None, "fit")


def test_a_finished_run_is_recorded_whole(tmp_path: Path) -> None:
    monitor = SpectralMonitor(TAU, every=5, quiet=True)
    fit(SimCLR(), SpectralCallback(monitor, record=tmp_path / "run"), tmp_path)
    lines = lines_of(tmp_path / "run")
    assert {line["step"] for line in lines} == {1, 6, 11}
    assert len(read_run(tmp_path / "run").metrics.records["findings"]) == 3
    assert lines[-1]["finished"] == 1


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_the_record_of_a_resumed_run_has_every_step_once(tmp_path: Path, caplog) -> None:
    class Fails(SimCLR):
        def training_step(self, batch, batch_idx):
            if batch_idx == 8:
                raise RuntimeError("power cut")
            return super().training_step(batch, batch_idx)

    def run(module, **settings):
        monitor = SpectralMonitor(TAU, every=1, quiet=True)
        saving = pl.callbacks.ModelCheckpoint(
            tmp_path, every_n_train_steps=6, save_top_k=-1, filename="at-{step}"
        )
        callback = SpectralCallback(monitor, record=tmp_path / "run")
        fit(module, [callback, saving], tmp_path, enable_checkpointing=True, **settings)

    def steps():
        return [line["step"] for line in lines_of(tmp_path / "run") if "spectral/loss" in line]

    with pytest.raises(RuntimeError, match="power cut"):
        run(Fails())
    run(SimCLR(), resume=tmp_path / "at-step=6.ckpt")
    assert steps() == list(range(1, STEPS + 1))
    run(SimCLR(), resume=tmp_path / f"at-step={STEPS}.ckpt", max_epochs=2)  # extended
    assert steps() == list(range(1, 2 * STEPS + 1))
    assert read_run(tmp_path / "run").finished
    assert "was logged after step" not in caplog.text


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


class Indexed(SimCLR):
    """Returns ids, remembers the batches it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def training_step(self, batch, batch_idx):
        ids, (rows,) = batch
        self.seen.append(ids.tolist())
        return super().training_step([rows], batch_idx) | {"ids": ids}


def selected(
    directory: Path, *, save_at: int = 10**9, resume: Path | None = None, workers: int = 0,
    **settings
):  # fmt: skip
    rows = torch.randn(PAIRS * STEPS, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    cache = EmbeddingCache(len(rows), 6)
    sampler = SpectralBatchSampler(cache, PAIRS, Greedy(), pool_size=4 * PAIRS, seed=3)
    callback = SpectralCallback(SpectralMonitor(TAU, every=5, quiet=True), sampler=sampler)
    module = Indexed()
    saving = pl.callbacks.ModelCheckpoint(
        directory, every_n_train_steps=save_at, save_top_k=-1, save_last=True, filename="at-{step}"
    )
    trainer = pl.Trainer(
        **({"max_epochs": 3} | settings), accelerator="cpu", callbacks=[callback, saving],
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=directory, use_distributed_sampler=False,
    )  # fmt: skip
    data = IndexedDataset(TensorDataset(rows))
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
    trainer.fit(module, loader, ckpt_path=resume, weights_only=False)
    return module, callback, cache


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize(("stop", "workers"), [(STEPS, 0), (STEPS, 1), (STEPS + 5, 0)])
def test_a_resumed_run_continues_with_the_same_batches_and_cache(
    tmp_path: Path, stop: int, workers: int
) -> None:
    """Workers draw before Lightning sets the epoch."""
    whole, _, cache = selected(tmp_path / "whole", save_at=stop, workers=workers)
    assert cache.filled.all()
    saved = tmp_path / "whole" / f"at-step={stop}.ckpt"
    second, callback, restored = selected(
        tmp_path / "resumed", save_at=stop, resume=saved, workers=workers
    )
    assert second.seen == whole.seen[stop:]
    assert torch.equal(restored.get(torch.arange(5)), cache.get(torch.arange(5)))
    assert callback.monitor.state_dict()["step"] == 3 * STEPS


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("limit", "stop"), [(None, STEPS + 3), (None, 2 * STEPS + 1), (STEPS // 2, STEPS // 2 + 2)]
)
def test_a_run_that_max_steps_ended_within_an_epoch_is_extended(
    tmp_path: Path, limit: int | None, stop: int, workers: int
) -> None:
    """Lightning counts that epoch as a whole one, and resumes it."""
    settings = {"max_epochs": -1, "workers": workers, "save_at": stop, "limit_train_batches": limit}
    steps = 3 * (limit or STEPS)
    whole, _, cache = selected(tmp_path / "whole", max_steps=steps, **settings)
    first, _, _ = selected(tmp_path / "first", max_steps=stop, **settings)
    second, _, restored = selected(
        tmp_path / "second", max_steps=steps, resume=tmp_path / "first" / "last.ckpt", **settings
    )
    assert first.seen + second.seen == whole.seen
    assert torch.equal(restored.age(), cache.age())


def test_a_step_with_nan_is_a_finding_also_with_a_cache(tmp_path: Path) -> None:
    class Broken(Indexed):
        def training_step(self, batch, batch_idx):
            outputs = super().training_step(batch, batch_idx)
            return outputs | {"z1": outputs["z1"] * torch.nan} if batch_idx == 5 else outputs

    rows = torch.randn(PAIRS * STEPS, 8, generator=torch.Generator().manual_seed(0))
    cache = EmbeddingCache(len(rows), 6)
    sampler = SpectralBatchSampler(cache, PAIRS, Greedy())
    readings = []
    callback = SpectralCallback(
        SpectralMonitor(TAU, every=1, quiet=True), sampler=sampler, sinks=[readings.append]
    )
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback], logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=tmp_path, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(Broken(), DataLoader(IndexedDataset(TensorDataset(rows)), batch_sampler=sampler))
    named = [[one.name for one in reading.findings] for reading in readings]
    assert [names == ["not finite"] for names in named] == [step == 5 for step in range(STEPS)]
    assert (~cache.filled).sum() == PAIRS


def test_an_online_probe_is_logged_recorded_and_saved(tmp_path: Path) -> None:
    class Labelled(SimCLR):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) | {
                "labels": batch[0][:, 0].sign().long().clamp(min=0)
            }

    probe = OnlineProbe(2)
    callback = SpectralCallback(
        SpectralMonitor(TAU, every=4, quiet=True), probe=probe, record=tmp_path / "run"
    )
    fit(Labelled(), callback, tmp_path)
    found = read_run(tmp_path / "run").series["online_linear"].value
    assert found[-1] > 0.6  # the label is the sign of an input
    state = callback.state_dict()
    other = SpectralCallback(SpectralMonitor(TAU, every=4, quiet=True), probe=OnlineProbe(2))
    other.load_state_dict(state)
    assert torch.equal(other.state_dict()["probe"]["weight"], state["probe"]["weight"])


def test_a_probe_without_labels_is_explained(tmp_path: Path) -> None:
    callback = SpectralCallback(SpectralMonitor(TAU, quiet=True), probe=OnlineProbe(2))
    with pytest.raises(ParameterError, match='must return "labels"'):
        fit(SimCLR(), callback, tmp_path)
