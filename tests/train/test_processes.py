"""Several processes: the same batches, views of their own, and a clear word when one dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eigenbatch.runs import RunDirectory
from eigenbatch.train.checkpoint_file import load_checkpoint
from small_runs import facts

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "views_of_ranks.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ALONE = {name: value for name, value in os.environ.items() if "PYTEST" not in name}


def notes(tmp_path, name, processes, *, stop=99, resume="no"):
    launcher = [sys.executable] if processes == 1 else [*TORCHRUN, str(processes)]
    ended = subprocess.run(
        [*launcher, str(SCRIPT), str(tmp_path / str(processes)), name, str(stop), resume],
        env=ALONE | {"OMP_NUM_THREADS": "1"}, check=False, timeout=240, capture_output=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr.decode()
    return [
        json.loads((tmp_path / f"{processes}-{name}-{rank}.json").read_text())
        for rank in range(processes)
    ]


def test_processes_share_batches_draw_their_own_views_and_resume_with_them(tmp_path):
    ((ids, views),) = notes(tmp_path, "whole", 1)
    (ids0, views0), (ids1, views1) = notes(tmp_path, "whole", 2)
    for whole, first, second in zip(ids, ids0, ids1, strict=True):
        assert whole == first + second
    assert all(a != b for a, b in zip(views0, views1, strict=True))
    assert all(a != b for a, b in zip(views, views0, strict=True))

    for path in tmp_path.glob("2"):
        path.rename(tmp_path / "kept")
    begun = notes(tmp_path, "begun", 2, stop=3)
    ended = notes(tmp_path, "ended", 2, resume="yes")
    for rank, (whole_ids, whole_views) in enumerate([(ids0, views0), (ids1, views1)]):
        assert begun[rank][0] + ended[rank][0] == whole_ids
        assert begun[rank][1] + ended[rank][1] == whole_views


DIES = """
import os, signal, sys
from pathlib import Path
from eigenbatch.errors import RunError
from eigenbatch.train import Observer, Run, override, train

class Die(Observer):
    def on_step(self, training, step):
        if training.fabric.global_rank == 1 and training.step == 2:
            os.kill(os.getpid(), signal.SIGKILL)

run = override(Run(), ["batches.batch_size=240", "encoder.width=4", "budget.epochs=3"])
try:
    train(run, Path(sys.argv[1]), accelerator="cpu", observers=[Die()])
except RunError as error:
    Path(sys.argv[1] + ".said").write_text(str(error))
    os._exit(2)
"""


def test_the_death_of_another_process_is_explained(tmp_path):
    (tmp_path / "script.py").write_text(DIES)
    port = 20_000 + os.getpid() % 20_000
    world = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run")],
            env=ALONE | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    assert processes[1].wait(timeout=120) == -9
    assert processes[0].wait(timeout=120) == 2
    assert "another process of this run ended" in (tmp_path / "run.said").read_text()


KILLED = """
import os, sys
from pathlib import Path
from eigenbatch.train import Observer, Run, override, train

class Kill(Observer):
    def on_step(self, training, step):
        if training.step == int(sys.argv[2]):
            os._exit(9)  # sudden death: nothing is flushed, no handler runs

run = override(Run(), ["batches.batch_size=240", "encoder.width=4", "budget.epochs=3",
                       "batches.selector=greedy-16", "method.dim=16", "data.workers=1"])
path = Path(sys.argv[1])
train(run, path, accelerator="cpu", devices=1, observers=[Kill()], resume=path.exists())
"""


def test_a_run_killed_several_times_ends_with_the_same_weights(tmp_path):
    (tmp_path / "script.py").write_text(KILLED)

    def call(name, step):
        return subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), str(tmp_path / name), str(step)],
            env=ALONE | {"OMP_NUM_THREADS": "1"}, timeout=240, capture_output=True, check=False,
        ).returncode  # fmt: skip

    assert call("whole", 0) == 0
    assert [call("killed", step) for step in (3, 7, 13, 0)] == [9, 9, 9, 0]
    states = [
        load_checkpoint(tmp_path / name / "checkpoint.pt", print) for name in ("whole", "killed")
    ]
    for name, weight in states[0]["method"].items():
        assert torch.equal(weight, states[1]["method"][name]), name
    assert facts(RunDirectory(tmp_path / "whole")) == facts(RunDirectory(tmp_path / "killed"))
