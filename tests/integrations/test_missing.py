import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

HIDE = """
import sys
for name in ("lightning", "transformers", "torchmetrics", "wandb", "tensorboard"):
    sys.modules[name] = None
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + code], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("package", ["lightning", "transformers", "torchmetrics"])
def test_an_absent_package_names_the_command_that_installs_it(package: str) -> None:
    done = python(f"import eigenbatch.integrations.{package}")
    assert done.returncode == 1
    assert f"this adapter needs {package}: pip install 'eigenbatch[integrations]'" in done.stderr


def test_monitor_and_sinks_work_without_any_of_them() -> None:
    done = python(
        "import torch, eigenbatch.integrations.sinks\n"
        "from eigenbatch.monitor.monitor import SpectralMonitor\n"
        "print(SpectralMonitor(0.1)(torch.eye(8), torch.eye(8)).findings[0].name)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "identical views"
