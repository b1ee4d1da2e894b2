"""An online probe in a plain Hugging Face Trainer, whose model is called by keywords."""

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from eigenbatch.errors import ParameterError
from eigenbatch.integrations.transformers import SpectralTrainerCallback
from eigenbatch.monitor import OnlineProbe, SpectralMonitor
from eigenbatch.runs import read_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
CLASSES, STEPS, BATCH = 4, 20, 32


class Clusters(Dataset):
    """Points around four centres, with the centre as label."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (STEPS * BATCH,), generator=generator)
        centres = torch.randn(CLASSES, 8, generator=generator)
        self.x = centres[self.labels] + 0.2 * torch.randn(STEPS * BATCH, 8, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.labels[index]}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        nn.init.eye_(self.layer.weight)

    def forward(self, x, labels=None):
        return {"sentence_embedding": normalize(self.layer(x))}


class TwoViews(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        inputs["x"] = inputs["x"] + 0.1
        z1, z2 = (model(**inputs)["sentence_embedding"] for _ in range(2))
        return cross_entropy(z1 @ z2.T / 0.2, torch.arange(len(z1)))


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = state.global_step == self.step


def trained(path, *, stop=None, resume=False, attach=False, labels=lambda inputs: inputs["labels"]):
    torch.manual_seed(0)
    probe = OnlineProbe(CLASSES)
    monitor = SpectralMonitor(0.2, every=5, quiet=True, strict=True)
    callback = SpectralTrainerCallback(monitor, probe=probe, labels=labels, record=path / "run")
    args = TrainingArguments(
        str(path), per_device_train_batch_size=BATCH, num_train_epochs=1, save_steps=10, seed=1,
        report_to="none", disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
        learning_rate=1e-3, logging_steps=5,
    )  # fmt: skip
    trainer = TwoViews(Model(), args, train_dataset=Clusters(), callbacks=[callback, StopAt(stop)])
    if attach:
        callback.attach(trainer)
    trainer.train(resume_from_checkpoint=resume)
    logged = [line["online_knn"] for line in trainer.state.log_history if "online_knn" in line]
    return logged, probe.state_dict()


@pytest.mark.parametrize("attach", [False, True])
def test_classes_that_are_apart_are_found_and_written_with_readings(tmp_path, attach):
    judged, state = trained(tmp_path, attach=attach)
    assert len(judged) == STEPS // 5 - 1  # readings but the first, which had nothing to judge by
    assert judged[-1] > 0.9
    assert len(state["right"]) == 2 * (STEPS - 1)  # every step is judged, not only readings
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assert [line["online_knn"] for line in recorded if "online_knn" in line] == judged


def test_shuffled_labels_stay_at_chance(tmp_path):
    judged, _ = trained(tmp_path, labels=lambda inputs: inputs["labels"].roll(1))
    assert judged[-1] < 0.5


def test_a_resumed_probe_knows_what_the_whole_run_knows(tmp_path):
    _, whole = trained(tmp_path / "whole")
    trained(tmp_path / "parts", stop=10)
    _, resumed = trained(tmp_path / "parts", resume=True)
    assert whole["right"] == resumed["right"]
    torch.testing.assert_close(whole["weight"], resumed["weight"])
    runs = [read_run(tmp_path / name / "run") for name in ("whole", "parts")]
    assert all(run.finished for run in runs)
    first, second = (run.series["online_knn"] for run in runs)
    assert first.step.tolist() == second.step.tolist()
    assert first.value.tolist() == pytest.approx(second.value.tolist())


def test_a_probe_without_labels_is_refused():
    with pytest.raises(ParameterError, match="belong together"):
        SpectralTrainerCallback(SpectralMonitor(0.2), probe=OnlineProbe(CLASSES))
