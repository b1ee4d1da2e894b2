"""What the bench trains: a small encoder and the scale of its logits."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from benchmarks.diagnosis_bench.cases import Case


class Encoder(nn.Module):
    """A backbone and a two-layer head."""

    def __init__(self, case: Case, shape: tuple[int, ...], width: int = 128) -> None:
        super().__init__()
        self.end, self.dimension = case.end, case.dimension
        if len(shape) == 3 and shape[1] > 8:
            norms = [nn.BatchNorm2d(c) if case.norm else nn.Identity() for c in (16, 32)]
            self.backbone = nn.Sequential(
                nn.Conv2d(shape[0], 16, 3, 2, 1), norms[0], nn.ReLU(),
                nn.Conv2d(16, 32, 3, 2, 1), norms[1], nn.ReLU(),
                nn.Flatten(), nn.LazyLinear(width), nn.ReLU(),
            )  # fmt: skip
        else:
            norm = nn.BatchNorm1d(width) if case.norm else nn.Identity()
            self.backbone = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), norm, nn.ReLU())
        norm = nn.BatchNorm1d(width) if case.norm else nn.Identity()
        out = 4 if case.end == "rank4" else case.dimension
        self.head = nn.Sequential(nn.Linear(width, width), norm, nn.ReLU(), nn.Linear(width, out))
        if case.end == "rank4":
            self.head.append(nn.Linear(4, case.dimension, bias=False))
        self.backbone(torch.zeros(2, *shape))

    def forward(self, x: Tensor) -> Tensor:
        """(n, dimension) embeddings, not normalised."""
        z = self.head(self.backbone(x))
        if self.end == "relu":
            z = z.relu()
        if self.end == "scaled":
            z = z * (1 + 11 * one_hot(torch.tensor(0), self.dimension))
        return z


class Scale(nn.Module):
    """What logits are multiplied by, learned or not, and the temperature the monitor is told."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(1 / case.tau).log(), requires_grad=case.learned)
        self.case = case

    def forward(self) -> Tensor:
        """The scale, or tau itself if the case multiplies where it should divide."""
        return torch.tensor(self.case.tau) if self.case.loss == "multiplied" else self.log.exp()

    def told_tau(self) -> Tensor:
        """1 / scale, unless the case gives the monitor another temperature."""
        return torch.tensor(self.case.told_tau) if self.case.told_tau else 1 / self.log.exp()
