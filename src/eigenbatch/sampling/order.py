"""Keyed randomness: each order and each batch has its own generator, so none has to be saved."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from eigenbatch.checks import whole

ORDER, POOL, BATCH = 0, 1, 2  # what the numbers are for


def key(purpose: int, seed: int, epoch: int, batch: int = 0) -> np.random.SeedSequence:
    """Numbers drawn from this depend on the four values only, and are the same in every process."""
    return np.random.SeedSequence((purpose, seed, epoch, batch))


def generator_of(sequence: np.random.SeedSequence) -> torch.Generator:
    """A torch generator on the CPU with a key of its own."""
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


class ShuffledEpochs(Sampler[int]):
    """All ids, in an order that depends on seed and epoch only."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, whole(seed, "seed", least=0), 0
        self.ahead = 0  # epochs that a trainer counts more than were drawn

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration."""
        self.epoch = max(0, whole(epoch, "epoch", least=0) - self.ahead)

    def order(self, epoch: int) -> Tensor:
        """(size,) int32 permutation of the ids."""
        generator = generator_of(key(ORDER, self.seed, epoch))
        return torch.randperm(self.size, generator=generator, dtype=torch.int32)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self.epoch).tolist())

    def __len__(self) -> int:
        return self.size
