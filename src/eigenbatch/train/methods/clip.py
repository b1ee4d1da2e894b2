"""CLIP: two towers, a symmetric InfoNCE and a learned temperature (Radford et al. 2021)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eigenbatch.core.contrast import Contrast
from eigenbatch.processes import rank_and_world
from eigenbatch.train.batch import Batch
from eigenbatch.train.gather import gather_rows
from eigenbatch.train.methods.method import Method, Outcome, unit

SMALLEST_TAU = 0.01


class CLIP(Method):
    """Each side of a pair has its own encoder and head.

    The loss is the mean of both directions of cross-entropy over the global batch. The temperature
    is learned as its logarithm and kept above 0.01, as published.
    """

    def __init__(
        self,
        encoders: Sequence[nn.Module],
        heads: Sequence[nn.Module],
        tau: float = 0.07,
        *,
        learn_tau: bool = True,
    ) -> None:
        super().__init__(encoders[0], heads[0])
        self.second_encoder, self.second_head = encoders[1], heads[1]
        self.log_scale = nn.Parameter(torch.tensor(-math.log(tau)), requires_grad=learn_tau)

    @property
    def tau(self) -> float:  # type: ignore[override]
        """The temperature now."""
        return max(SMALLEST_TAU, math.exp(-float(self.log_scale.detach())))

    def forward(self, batch: Batch) -> Outcome:
        """Symmetric loss of this process's b pairs against the B pairs of all."""
        z1 = unit(self.head(self.encoder(batch.first)))  # (b, d)
        z2 = unit(self.second_head(self.second_encoder(batch.second)))  # (b, d)
        keys1, keys2 = gather_rows(z1), gather_rows(z2)  # (B, d)
        with torch.no_grad():  # the parameter itself: a clamped function of it has no gradient
            self.log_scale.clamp_(max=-math.log(SMALLEST_TAU))
        scale = self.log_scale.exp()
        rank, _ = rank_and_world()
        positive = torch.arange(len(z1), device=z1.device) + rank * len(z1)  # (b,) index into keys
        forth = cross_entropy(scale * z1 @ keys2.T, positive)
        back = cross_entropy(scale * z2 @ keys1.T, positive)
        all1, all2 = keys1.detach(), keys2.detach()
        return Outcome(
            loss=(forth + back) / 2,
            embeddings=z1.detach(),
            second=z2.detach(),
            contrast=lambda: Contrast.cross(all1, all2),
        )

    def embed(self, inputs: Tensor, side: int = 0) -> Tensor:
        """Unit embeddings of one side, for retrieval."""
        if side:
            return unit(self.second_head(self.second_encoder(inputs)))
        return unit(self.head(self.encoder(inputs)))
