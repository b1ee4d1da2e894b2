"""Continued batches are those of the uninterrupted run, while the cache keeps changing."""

import copy
import io

import numpy as np
import pytest
import torch
from sampling_toys import Alternating, LeastSimilar, Numbers, filled_cache
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from eigenbatch.errors import ParameterError
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.indexed import IndexedDataset
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.neighbours import Neighbours
from eigenbatch.selectors.random import Random

# torchdata 0.11 calls it in the constructor of its loader.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SIZE, BATCH, POOL, EPOCHS = 60, 6, 30, 3
COVERAGES = ("epoch", "stream", "free")


class Run:
    """A training run that embeds every batch anew, so that each choice depends on all before."""

    def __init__(self, coverage="epoch", *, workers=0, selector=None, drop_last=True, size=SIZE):
        self.cache = filled_cache(size)
        self.sampler = SpectralBatchSampler(
            self.cache,
            BATCH,
            selector or LeastSimilar(),
            pool_size=POOL,
            coverage=coverage,
            drop_last=drop_last,
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
        """Rows that depend on ids and time."""
        self.step += 1
        self.cache.update(ids, torch.sin(torch.outer(ids + 1.0, torch.arange(1.0, 9)) * self.step))

    def save(self):
        file = io.BytesIO()
        state = {
            "loader": self.loader.state_dict(),
            "cache": self.cache.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
        }
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


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize(
    "workers", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["in_process", "two_workers"]
)
def test_a_run_resumed_twice_continues_the_same_batches(coverage, workers):
    whole = Run(coverage, workers=workers).train()
    assert len(whole) == EPOCHS * SIZE // BATCH
    assert interrupted([13, 4], coverage=coverage, workers=workers) == whole


@pytest.mark.parametrize("cut", [1, 9, 10, 11])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_may_be_cut_anywhere_around_the_end_of_an_epoch(cut, workers):
    arguments = {"coverage": "stream", "workers": workers}
    assert interrupted([cut], **arguments) == Run(**arguments).train()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_saved_between_two_epochs_goes_on_with_the_second(workers):
    arguments = {"coverage": "stream", "selector": Alternating()}
    run = Run(workers=workers, **arguments)
    first = [run.learn(ids) or ids.tolist() for ids, _ in run.loader]
    run.epoch = 1
    arguments["selector"] = Alternating()
    resumed = Run(workers=workers, **arguments).load(run.save())
    assert first + resumed.train() == Run(**arguments | {"selector": Alternating()}).train()


def test_a_short_last_batch_survives_a_resume():
    arguments = {"drop_last": False, "size": SIZE + 5}
    assert interrupted([10], **arguments) == Run(**arguments).train()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_memory_of_a_selector_is_resumed_with_the_sampler(workers):
    whole = Run(selector=Alternating(), workers=workers).train()
    run = Run(selector=Alternating(), workers=workers)
    first = run.train(7)
    resumed = Run(selector=Alternating(), workers=workers).load(run.save())
    assert first + resumed.train() == whole


def test_without_set_epoch_a_run_cut_at_the_end_of_an_epoch_repeats_it_like_the_whole_run():
    def batches(loader):
        return [ids.tolist() for ids, _ in loader]

    whole, cut = Run(), Run()
    first, second = batches(whole.loader), batches(whole.loader)
    assert batches(cut.loader) == first
    resumed = Run().load(cut.save())
    assert batches(resumed.loader) == second


@pytest.mark.slow
def test_batches_that_workers_drew_ahead_are_repeated_not_lost():
    """A plain DataLoader does not count: the sampler is told how many batches came out."""

    def loader_of(run):
        return DataLoader(run.loader.dataset, batch_sampler=run.sampler, num_workers=2)

    whole = Run()
    expected = []
    for ids, _ in loader_of(whole):
        whole.learn(ids)
        expected.append(ids.tolist())

    run, seen = Run(), []
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


@pytest.mark.parametrize("coverage", COVERAGES)
def test_a_state_taken_early_stays_good_while_the_run_goes_on(coverage):
    sampler = Run(coverage).sampler
    batches = iter(sampler)
    first = [next(batches) for _ in range(4)]
    state = sampler.state_dict()
    rest = list(batches)
    sampler.load_state_dict(state)
    assert list(sampler) == rest
    sampler.load_state_dict(state)
    assert list(sampler) == rest
    assert list(sampler) == first + rest  # a resumed epoch is resumed once


def test_a_resumed_sampler_does_not_write_into_the_state_it_was_given():
    sampler = Run().sampler
    next(batches := iter(sampler))
    state = sampler.state_dict()
    before = state["journal"].clone()
    other = Run().sampler
    other.load_state_dict(state)
    list(other)
    assert torch.equal(state["journal"], before)
    assert len(list(batches)) == len(sampler) - 1


def test_another_number_of_processes_may_resume():
    def sampler(**replica):
        return SpectralBatchSampler(filled_cache(SIZE), BATCH, Random(), pool_size=POOL, **replica)

    whole = sampler()
    batches = iter(whole)
    next(batches)
    state = whole.state_dict()
    shards = [sampler(rank=rank, num_replicas=3) for rank in range(3)]
    for shard in shards:
        shard.load_state_dict(state)
    assert [a + b + c for a, b, c in zip(*shards, strict=True)] == list(batches)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": 1},
        {"pool_size": POOL + 1},
        {"coverage": "free"},
        {"drop_last": False},
        {"batch_size": BATCH + 1},
        {"cache": filled_cache(SIZE + 1)},
    ],
)
def test_the_state_of_another_sampler_is_refused_and_changes_nothing(arguments):
    usual = {
        "cache": filled_cache(SIZE),
        "batch_size": BATCH,
        "selector": Random(),
        "pool_size": POOL,
    }
    sampler, other = SpectralBatchSampler(**usual), SpectralBatchSampler(**usual | arguments)
    sampler.set_epoch(1)
    next(iter(sampler))
    expected = list(other)
    with pytest.raises(StateError, match="belongs to a sampler with"):
        other.load_state_dict(sampler.state_dict())
    assert other.epoch == 0
    assert list(other) == expected


def test_a_state_with_the_memory_of_another_selector_is_refused_and_changes_nothing():
    sampler = Run(selector=Alternating()).sampler
    sampler.set_epoch(1)
    next(iter(sampler))
    other = Run(selector=Random()).sampler
    with pytest.raises(StateError, match="Alternating"):
        other.load_state_dict(sampler.state_dict())
    assert other.epoch == 0
    assert other.state_dict()["consumed"] == 0


def test_damaged_states_are_refused_and_change_nothing():
    sampler = Run().sampler
    list(sampler)
    good = sampler.state_dict(consumed=5)
    repeated = good["journal"].clone()
    repeated[1] = repeated[0]
    missing = good["journal"].clone()
    missing[3] = -1
    other = Run().sampler
    for journal, text in ((repeated, "not in the buffer"), (missing, "only 3 are recorded")):
        with pytest.raises(StateError, match=text):
            other.load_state_dict(good | {"journal": journal})
        assert other.state_dict()["consumed"] == 0
    with pytest.raises(StateError, match="belongs to a sampler with"):
        other.load_state_dict({})


@pytest.mark.parametrize("consumed", [-1, 4])
def test_more_batches_than_were_drawn_cannot_be_consumed(consumed):
    sampler = Run().sampler
    batches = iter(sampler)
    for _ in range(3):
        next(batches)
    with pytest.raises(ParameterError, match="between 0 and the 3 batches drawn in epoch 0"):
        sampler.state_dict(consumed=consumed)


def test_numbers_of_numpy_are_saved_as_plain_ones():
    cache = EmbeddingCache(np.int64(40), np.int64(4), towers=np.int64(2))
    sampler = SpectralBatchSampler(
        cache, np.int64(4), Neighbours(), pool_size=np.int64(20), unknown_share=np.float64(0.5)
    )
    file = io.BytesIO()
    torch.save({"cache": cache.state_dict(), "sampler": sampler.state_dict()}, file)
    file.seek(0)
    known = torch.load(file, weights_only=True)
    cache.load_state_dict(known["cache"])
    sampler.load_state_dict(known["sampler"])


class OnGPU(torch.Tensor):
    """As if on a device of its own: numpy cannot read it before it is on the CPU."""

    def numpy(self, **_):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def to(self, *arguments, **_):
        assert "cpu" in arguments
        return self.as_subclass(torch.Tensor).clone()


def test_a_state_that_was_loaded_onto_a_gpu_is_restored():
    run = Run()
    next(iter(run.sampler))
    state = run.sampler.state_dict()
    state["start"] = {
        name: value.as_subclass(OnGPU) if isinstance(value, torch.Tensor) else value
        for name, value in state["start"].items()
    }
    other = Run()
    other.sampler.load_state_dict(state)
    assert list(other.sampler) == list(run.sampler)[1:]


def test_a_stream_whose_epochs_end_early_is_resumed_after_what_workers_drew():
    """As with Lightning's limit_train_batches: a new epoch begins after the batches drawn ahead."""

    def made():
        sampler = SpectralBatchSampler(filled_cache(56), 8, Random(), coverage="stream")
        data = IndexedDataset(Numbers(56))
        return sampler, DataLoader(data, batch_sampler=sampler, num_workers=2)

    def trained(sampler, loader, epochs, states):
        for epoch in epochs:
            sampler.set_epoch(epoch)
            for batch, (ids, _) in enumerate(loader):
                yield ids.tolist()
                if batch == 2:
                    break
            states.append(copy.deepcopy(sampler.state_dict(consumed=3)))

    states = []
    whole = list(trained(*made(), range(3), states))
    sampler, loader = made()
    sampler.load_state_dict(states[0])
    assert list(trained(sampler, loader, [1, 2], [])) == whole[3:]
