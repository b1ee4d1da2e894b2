"""Short runs give the losses and batches that they gave when they were recorded.

On a processor with the same instructions the numbers must be bit-identical; elsewhere sums are
rounded differently and losses must agree to a thousandth. Recorded anew on 2026-11-19, when epochs
began to be planned at once. Where a change is meant to change runs, raise MADE_BY of the part that
changed and record again:

    OMP_NUM_THREADS=1 PYTHONPATH=tests python tests/train/test_golden.py
"""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from eigenbatch.runs import read_run
from eigenbatch.train.loop import Observer
from eigenbatch.train.run import Run
from eigenbatch.train.settings import override
from eigenbatch.train.trainer import made_by
from small_runs import StopAfter, start

pytestmark = pytest.mark.slow
FILE = Path(__file__).parent / "golden_runs.json"
STORED = json.loads(FILE.read_text())
BASE = [
    "data.train_size=512", "batches.batch_size=64", "batches.pool_size=256",
    "batches.replace=true", "budget.epochs=2", "encoder.width=8", "method.dim=32", "seed=3",
]  # fmt: skip
MOCO = ["method=moco", "method.queue_size=128", "method.momentum=0.9"]
RUNS = {
    "simclr-random": [],
    "simclr-greedy": ["batches.selector=greedy-64"],
    "simclr-p3-epoch": ["batches.selector=p3", "batches.replace=false"],
    "simclr-whitening": ["method.whiten_period=4", "method.tau=0.1"],
    "simclr-lars": [
        "optimizer=lars", "optimizer.lr=0.6", "optimizer.weight_decay=1e-6",
        "batches.replace=false", "batches.selector=neighbours", "batches.fill_cache=yes",
        "batches.fill_step=4",
    ],
    "moco-random": [*MOCO, "optimizer=sgd", "optimizer.lr=0.03"],
    "moco-mixed-greedy": [*MOCO, "method.negatives=mixed", "batches.selector=greedy-64"],
    "moco-distance": [
        *MOCO, "method.queue_size=1200", "method.negatives=distance", "batches.selector=p1",
        "budget.epochs=3",
    ],
    "supcon-random": ["method=supcon"],
    "supcon-resnet": [
        "method=supcon", "encoder=resnet18", "batches.selector=p2", "budget.epochs=1",
        "batches.fill_cache=yes", "batches.fill_step=3",
    ],
}  # fmt: skip


class Seen(Observer):
    def __init__(self):
        self.ids, self.losses = [], []

    def on_step(self, training, step):
        self.ids.append(step.ids.tolist())
        self.losses.append(float(step.outcome.loss))


@pytest.mark.parametrize("resumed", [False, True], ids=["whole", "resumed"])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_losses_and_batches_it_always_gave(tmp_path, name, resumed):
    run, seen = override(Run(), [*BASE, *RUNS[name]]), Seen()
    if resumed:
        start(run, tmp_path, observers=[seen, StopAfter(3)])
    start(run, tmp_path, observers=[seen], resume=resumed)
    expected = STORED["runs"][name]
    if torch.backends.cpu.get_cpu_capability() != STORED["capability"]:
        assert seen.losses[:4] == pytest.approx(expected["losses"][:4], rel=1e-3)
        return
    assert seen.losses == expected["losses"]
    assert hashlib.sha256(json.dumps(seen.ids).encode()).hexdigest() == expected["ids"]
    record = read_run(tmp_path)
    assert {key: record.final(key) for key in expected["final"]} == expected["final"]


def test_runs_that_differ_are_made_by_another_version():
    """Whoever keeps runs pairs those of one version only."""
    assert STORED["made_by"] == made_by(), "raise MADE_BY of the part that changed and record again"


def recorded(name, path):
    """What a run gives, as the file has it."""
    seen = Seen()
    start(override(Run(), [*BASE, *RUNS[name]]), path, observers=[seen])
    finals = ["knn", "rankme", "linear", "linear_5_labels", "linear_sgd"]
    record = read_run(path)
    return {
        "losses": seen.losses,
        "ids": hashlib.sha256(json.dumps(seen.ids).encode()).hexdigest(),
        "first_ids": seen.ids[0][:8],
        "final": {key: record.final(key) for key in finals},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in the tests
    with TemporaryDirectory() as folder:
        runs = {name: recorded(name, Path(folder) / name) for name in RUNS}
    capability = torch.backends.cpu.get_cpu_capability()
    stored = {"capability": capability, "made_by": made_by(), "runs": runs}
    FILE.write_text(json.dumps(stored, indent=1) + "\n")
