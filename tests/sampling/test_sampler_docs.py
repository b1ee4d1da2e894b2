"""What docs/sampler.md shows is what runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "sampler.md"


def block(title):
    """The code shown under a title."""
    found = re.search(rf'```python title="{title}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found, f"{PAGE} shows no {title}"
    return found[1]


def test_the_plain_loop_runs_and_selects(capsys):
    names = {}
    exec(compile(block("train.py"), "train.py", "exec"), names)
    assert names["cache"].filled.all()
    last = names["sampler"].last
    assert (last.epoch, last.batch, last.unknown) == (2, 31, 0)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 3
    assert all(float(words[3]) > 1.2 * float(words[5]) for words in shown)  # selection shows


def test_the_distributed_recipe_runs_under_torchrun(tmp_path):
    script = tmp_path / "train_ddp.py"
    script.write_text(block("train_ddp.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(4):
        done = subprocess.run(
            [*torchrun, "--nproc-per-node=2", script],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        # On a busy machine a thread of torch's gloo may end the process while Python exits.
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
