"""The batches that a SentenceTransformerTrainer asks HardBatches for, and those it trained on."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from eigenbatch.errors import ParameterError
from eigenbatch.processes import rank_and_world
from eigenbatch.sampling.sampler import SpectralBatchSampler

logger = logging.getLogger("eigenbatch")


class _RandomOrder(Sampler[int]):
    """Passes the epoch on: with several processes accelerate tells it to the innermost sampler.

    It is no `RandomSampler`, because accelerate puts its own in place of those.
    """

    def __init__(
        self, dataset: Any, generator: torch.Generator, tell: Callable[[int], None]
    ) -> None:
        self.generator, self._tell = generator, tell
        self._order = RandomSampler(dataset, generator=generator)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def set_epoch(self, epoch: int) -> None:
        self._tell(epoch)


class DrawnBatches(BatchSampler):
    """Batches of one data set: random ones, or those of a sampler, remembered as they are drawn.

    The trainer asks for batches of every data set, to train and to evaluate. Which of them it
    trains on is known when training begins: only that one gets a sampler.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        drop_last: bool,
        *,
        model: torch.nn.Module,
        generator: torch.Generator | None,
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed) if generator is None else generator
        order = _RandomOrder(dataset, generator, self.set_epoch)
        super().__init__(order, batch_size, drop_last)
        self.dataset, self.seed, self._model = dataset, seed, model
        self.chosen: SpectralBatchSampler | None = None
        self.drawn: list[list[int]] = []  # of this epoch, since it began or was resumed
        self.consumed = 0  # of those, by this process
        self._skipped = 0  # of the next iteration, by this process
        self._warned = False

    def __iter__(self) -> Iterator[list[int]]:
        if self.chosen is None:
            yield from super().__iter__()
            self._check_evaluating()
            return
        self.drawn, self.consumed, self._skipped = [], self._skipped, 0
        for ids in self.chosen:
            self.drawn.append(ids)
            yield ids

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before an epoch."""
        if self.chosen is not None:
            self.chosen.set_epoch(epoch)

    def next_ids(self) -> list[int]:
        """Ids of the batch that this process trains on now.

        accelerate lets every process draw all batches and keeps every world-th for each.
        """
        rank, world = rank_and_world()
        place = self.consumed * world + rank
        self.consumed += 1
        return self.drawn[place] if place < len(self.drawn) else []

    def state_dict(self) -> dict[str, Any]:
        """The sampler after the batches that were trained on; a loader draws ahead of them."""
        assert self.chosen is not None
        ahead = max(len(self.drawn) - self.consumed * rank_and_world()[1], 0)
        return self.chosen.state_dict(self.chosen.state_dict()["consumed"] - ahead)

    def skip(self, batches: int) -> None:
        """The trainer will skip so many batches of each process in the next iteration."""
        self._skipped = batches

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the sampler; what the trainer will skip is drawn again, as it is recorded."""
        assert self.chosen is not None
        if self._skipped:
            skipped = self._skipped * rank_and_world()[1]
            if (consumed := state.get("consumed")) != skipped:
                raise ParameterError(
                    f"the checkpoint was saved after {consumed} batches of an epoch, but the "
                    f"trainer would skip {skipped}, perhaps because the number of processes or of "
                    "accumulated batches was changed: resume with ignore_data_skip=True"
                )
            state = state | {"consumed": 0}
        self.chosen.load_state_dict(state)

    def _check_evaluating(self) -> None:
        """The trainer puts a model into evaluation mode before it evaluates."""
        if self._model.training and not self._warned:
            self._warned = True
            logger.warning(
                "an epoch was trained on random batches, because the trainer does not know that "
                "HardBatches is also a callback: pass callbacks=[hard]"
            )


def drawn_batches_of(loader: Any) -> DrawnBatches:
    """Ours among the samplers that the trainer and accelerate put around each other."""
    sampler = getattr(loader, "batch_sampler", None)
    while sampler is not None and not isinstance(sampler, DrawnBatches):
        if hasattr(sampler, "batch_samplers"):
            raise ParameterError(
                "HardBatches trains on one Dataset, got a DatasetDict: join its parts with "
                "datasets.concatenate_datasets(list(parts.values()))"
            )
        sampler = getattr(sampler, "batch_sampler", None)
    if sampler is None:
        raise ParameterError(
            "the trainer does not train on the batches of this HardBatches: pass it in the "
            "training arguments too, batch_sampler=hard, and train on a Dataset with a length"
        )
    return sampler
