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
    subprocess.run(
        [*torchrun, "--nproc-per-node=2", script], env=environment, check=True, timeout=240
    )
