import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Property-based tests try the same examples on every machine: a failure is never a matter of luck.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # two processes test at once: more threads wait for each other
