"""What a selector may not return, for a batch of 3 from a pool of 20."""

import numpy as np
import torch

WRONG = {
    "list": [0, 1, 2],
    "tuple": (0, 1, 2),
    "none": None,
    "number": 3,
    "text": "012",
    "array": np.arange(3),
    "floats": torch.tensor([0.0, 1.0, 2.0]),
    "mask": torch.arange(20) < 3,
    "int32": torch.arange(3, dtype=torch.int32),
    "matrix": torch.arange(3).view(1, 3),
    "scalar": torch.tensor(3),
    "too_few": torch.tensor([0, 1]),
    "none_at_all": torch.tensor([], dtype=torch.int64),
    "too_many": torch.arange(4),
    "repeated": torch.tensor([0, 0, 1]),
    "too_large": torch.tensor([0, 1, 20]),
    "negative": torch.tensor([-1, 0, 1]),
}
