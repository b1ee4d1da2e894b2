import threading

import pytest
import torch
from sampling_toys import Alternating, LeastSimilar, filled_cache, random_rows

from eigenbatch.sampling.sampler import SpectralBatchSampler

COVERAGES = ("epoch", "stream", "free")


def sampler_of(cache, selector, **arguments):
    return SpectralBatchSampler(cache, 6, selector, pool_size=30, **arguments)


def selection_threads():
    return [t for t in threading.enumerate() if t.name.startswith("eigenbatch-selection")]


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize("selector", [LeastSimilar, Alternating])
def test_batches_are_identical_while_the_cache_is_frozen(coverage, selector):
    cache = filled_cache(60)
    plain = sampler_of(cache, selector(), coverage=coverage)
    ahead = sampler_of(cache, selector(), coverage=coverage, background=True)
    for epoch in range(2):
        plain.set_epoch(epoch)
        ahead.set_epoch(epoch)
        assert list(ahead) == list(plain)


class Watching:
    """First rows; keeps what it saw and which thread it ran in."""

    def __init__(self):
        self.pools, self.threads = [], []

    def __call__(self, pool, batch_size, *, generator=None):
        self.pools.append(pool.clone())
        self.threads.append(threading.current_thread())
        return torch.arange(batch_size)


def test_a_batch_is_chosen_from_the_cache_as_it_was_one_batch_earlier():
    """Each step writes a new direction everywhere, so a pool shows how many updates it has seen."""
    seen = {}
    for background in (False, True):
        cache, selector = filled_cache(30, 40), Watching()
        for step, _ in enumerate(
            sampler_of(cache, selector, coverage="free", background=background)
        ):
            cache.update(torch.arange(30), torch.eye(40)[step].expand(30, 40))
        seen[background] = [int(pool[0].argmax()) for pool in selector.pools[2:]]
    assert seen[False] == [1, 2, 3]
    assert seen[True] == [0, 1, 2]


def test_selection_runs_in_a_thread_of_its_own_that_ends_with_the_epoch():
    selector = Watching()
    list(sampler_of(filled_cache(60), selector, background=True))
    assert threading.main_thread() not in selector.threads
    assert selection_threads() == []


def test_the_thread_ends_when_iteration_is_abandoned():
    batches = iter(sampler_of(filled_cache(60), LeastSimilar(), background=True))
    next(batches)
    assert len(selection_threads()) == 1
    batches.close()
    assert selection_threads() == []


class Failing:
    def __call__(self, pool, batch_size, *, generator=None):
        raise RuntimeError("no such direction")


def test_an_error_in_the_thread_surfaces_where_batches_are_asked_for():
    sampler = sampler_of(filled_cache(60), Failing(), background=True)
    with pytest.raises(RuntimeError, match="no such direction"):
        next(iter(sampler))
    assert selection_threads() == []
    assert sampler.state_dict()["consumed"] == 0


@pytest.mark.parametrize("selector", [LeastSimilar, Alternating])
def test_a_frozen_run_resumes_identically(selector):
    cache = filled_cache(60)
    sampler = sampler_of(cache, selector(), background=True)
    batches = iter(sampler)
    for _ in range(3):
        next(batches)
    state = sampler.state_dict()
    state["journal"] = state["journal"].clone()  # as a checkpoint file would
    state["selector"] = dict(state["selector"])
    rest = list(batches)
    other = sampler_of(cache, selector(), background=True)
    other.load_state_dict(state)
    assert list(other) == rest


def test_statistics_belong_to_the_batch_that_was_handed_out():
    cache = filled_cache(60)
    sampler = sampler_of(cache, LeastSimilar(), background=True)
    for batch in sampler:
        assert sampler.last.ids.tolist() == batch
        cache.update(batch, random_rows(len(batch)))


def test_a_choice_that_nobody_asked_for_leaves_no_trace_in_the_selector():
    """Three batches of every epoch are used, in the foreground and ahead."""
    seen = {}
    for background in (False, True):
        sampler = sampler_of(filled_cache(60), Alternating(), background=background)
        seen[background] = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            batches = iter(sampler)
            seen[background] += [next(batches) for _ in range(3)]
            batches.close()
    assert seen[True] == seen[False]
