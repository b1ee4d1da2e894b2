"""A new file in a room is found without an entry in a list."""

import subprocess
import sys
from pathlib import Path

DATA = """
from dataclasses import dataclass
from eigenbatch.train.data.sets.digits import DigitsConfig

@dataclass(frozen=True, kw_only=True)
class MondayConfig(DigitsConfig, name="monday"):
    day: int = 1
"""


def test_a_data_set_in_a_new_file_is_known_to_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "added.py").write_text(DATA)
    program = (
        "import sys\n"
        "from eigenbatch.train.data import sets\n"
        "from eigenbatch.train.launch import configured\n"
        "sets.__path__.append(sys.argv[1])\n"
        "sets.load_all()\n"
        "print(configured(None, 'monday', None, ['data.day=2']).data.day)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"
