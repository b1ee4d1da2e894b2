import subprocess
import sys
from pathlib import Path


def test_layers_import_only_from_those_before_them():
    program = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [program], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout
