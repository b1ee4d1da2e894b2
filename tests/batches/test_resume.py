"""Continued batches are those of the uninterrupted run, also with loaders that draw ahead."""

import io

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from toys import Numbers, two_towers

from eigenbatch import (
    EmbeddingCache,
    Greedy,
    IndexedDataset,
    Neighbours,
    PoolMax,
    Schedule,
    SpectralBatchSampler,
)
from eigenbatch.batches import RankSteady
from eigenbatch.errors import StateError

# torchdata 0.11 calls it in the constructor of its loader.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SIZE, BATCH, EPOCHS, FILL_AT = 60, 6, 3, 5
PLANNERS = {
    "neighbours": Neighbours,
    "greedy": Greedy,
    "schedule": lambda: Schedule(PoolMax(), Neighbours(), RankSteady(0.5)),
}
WORKERS = pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["in_process", "two_workers"]
)


class Run:
    """A training run that embeds every batch anew, so that each plan depends on all before."""

    def __init__(self, planner="neighbours", *, workers=0, drop_last=True, size=SIZE, horizon=24):
        self.cache = EmbeddingCache(size, 8, towers=2)
        self.sampler = SpectralBatchSampler(
            self.cache, BATCH, PLANNERS[planner](), drop_last=drop_last, horizon=horizon
        )
        self.loader = StatefulDataLoader(
            IndexedDataset(Numbers(size)), batch_sampler=self.sampler, num_workers=workers
        )
        self.epoch = self.step = 0

    def train(self, steps=None):
        """Batches of ids until `steps` are done, or to the end of the last epoch."""
        batches = []
        while self.epoch < EPOCHS:
            self.sampler.set_epoch(self.epoch)
            for ids, _ in self.loader:
                self.learn(ids)
                batches.append(ids.tolist())
                if len(batches) == steps:
                    return batches
            self.epoch += 1
        return batches

    def learn(self, ids):
        """Rows that depend on ids and time; all are embedded at one step."""
        self.step += 1
        rows = two_towers(self.cache.size, seed=self.step)
        self.cache.update(ids, *rows[ids].unbind(1))
        if self.step == FILL_AT:
            everything = [(torch.arange(self.cache.size), rows)]
            self.cache.fill(lambda batch: batch.unbind(1), everything, progress=False)

    def save(self):
        file = io.BytesIO()
        state = {
            "loader": self.loader.state_dict(), "cache": self.cache.state_dict(),
            "epoch": self.epoch, "step": self.step,
        }  # fmt: skip
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved):
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.loader.load_state_dict(state["loader"])
        self.cache.load_state_dict(state["cache"])
        self.epoch, self.step = state["epoch"], state["step"]
        return self


def interrupted(cuts, **arguments):
    """The batches of a run that is stopped after each of `cuts` steps and taken up by a new one."""
    run, batches = Run(**arguments), []
    for steps in cuts:
        batches += run.train(steps)
        run = Run(**arguments).load(run.save())
    return batches + run.train()


@WORKERS
@pytest.mark.parametrize("planner", PLANNERS)
def test_a_run_resumed_twice_continues_the_same_batches(planner, workers):
    whole = Run(planner, workers=workers).train()
    assert len(whole) == EPOCHS * SIZE // BATCH
    assert interrupted([3, 10, 4], planner=planner, workers=workers) == whole


@WORKERS
@pytest.mark.parametrize("cut", [1, 4, 5, 9, 10, 11])
def test_a_run_may_be_cut_anywhere_around_a_fill_and_the_end_of_an_epoch(cut, workers):
    assert interrupted([cut], workers=workers) == Run(workers=workers).train()


def test_a_short_last_batch_survives_a_resume():
    arguments = {"drop_last": False, "size": SIZE + 5}
    assert interrupted([10], **arguments) == Run(**arguments).train()


@WORKERS
def test_a_run_saved_between_two_epochs_continues_with_the_second(workers):
    run = Run(workers=workers)
    first = [run.learn(ids) or ids.tolist() for ids, _ in run.loader]
    run.epoch = 1
    resumed = Run(workers=workers).load(run.save())
    assert first + resumed.train() == Run(workers=workers).train()


@pytest.mark.slow
def test_batches_that_workers_drew_ahead_are_repeated_not_lost():
    """A plain DataLoader does not count: the sampler is told how many batches came out."""

    def loader_of(run):
        return DataLoader(run.loader.dataset, batch_sampler=run.sampler, num_workers=2)

    whole, run, expected, seen = Run(), Run(), [], []
    for ids, _ in loader_of(whole):
        whole.learn(ids)
        expected.append(ids.tolist())
    for ids, _ in loader_of(run):
        run.learn(ids)
        seen.append(ids.tolist())
        if len(seen) == 3:
            break
    assert run.sampler.state_dict()["consumed"] > 3
    state, cache = run.sampler.state_dict(consumed=3), run.cache.state_dict()
    resumed = Run()
    resumed.sampler.load_state_dict(state)
    resumed.cache.load_state_dict(cache)
    resumed.step = run.step
    for ids, _ in loader_of(resumed):
        resumed.learn(ids)
        seen.append(ids.tolist())
    assert seen == expected


def test_a_state_taken_early_stays_good_while_the_run_goes_on():
    sampler = Run().sampler
    batches = iter(sampler)
    first = [next(batches) for _ in range(4)]
    state = sampler.state_dict()
    rest = list(batches)
    sampler.load_state_dict(state)
    assert list(sampler) == rest
    sampler.load_state_dict(state)
    assert list(sampler) == rest
    assert list(sampler) == first + rest  # a resumed epoch is resumed once


def test_the_plan_in_force_is_restored_for_loggers():
    run = Run()
    run.train(FILL_AT + 1)  # planned when all samples were known
    resumed = Run()
    resumed.sampler.load_state_dict(run.sampler.state_dict())
    assert resumed.sampler.plan == run.sampler.plan
    assert resumed.sampler.plan.known
    damaged = run.sampler.state_dict() | {"plan": {"batches": 3}}
    with pytest.raises(StateError, match="plan"):
        Run().sampler.load_state_dict(damaged)


def test_a_resumed_sampler_does_not_write_into_the_state_it_was_given():
    sampler = Run().sampler
    next(batches := iter(sampler))
    state = sampler.state_dict()
    order, progress = state["order"].clone(), state["progress"].clone()
    other = Run().sampler
    other.load_state_dict(state)
    list(other)
    assert torch.equal(state["order"], order)
    assert torch.equal(state["progress"], progress)
    assert len(list(batches)) == len(sampler) - 1


def test_numbers_of_numpy_are_saved_as_plain_ones():
    cache = EmbeddingCache(np.int64(40), np.int64(4), towers=np.int64(2))
    sampler = SpectralBatchSampler(cache, np.int64(4), Neighbours(), horizon=np.int64(20))
    file = io.BytesIO()
    torch.save({"cache": cache.state_dict(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    known = torch.load(file, weights_only=True)
    cache.load_state_dict(known["cache"])
    sampler.load_state_dict(known["sampler"])


class OnGPU(torch.Tensor):
    """As if on a device of its own: it can only be copied to the CPU."""

    def to(self, *arguments, **_):
        assert "cpu" in arguments
        return self.as_subclass(torch.Tensor).clone()


def test_a_state_that_was_loaded_onto_a_gpu_is_restored():
    run = Run()
    next(iter(run.sampler))
    state = run.sampler.state_dict()
    other = Run()
    other.sampler.load_state_dict(state | {"order": state["order"].as_subclass(OnGPU)})
    assert list(other.sampler) == list(run.sampler)[1:]
