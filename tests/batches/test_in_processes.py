"""Real processes over gloo: the same plans, disjoint shards, and errors that all of them hear."""

import os
import subprocess
import sys
import textwrap
import time
from itertools import chain

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from toys import LeastSimilar, filled_cache, random_rows, two_towers

from eigenbatch import (
    Auto,
    EmbeddingCache,
    Greedy,
    Neighbours,
    Random,
    SpectralBatchSampler,
)
from eigenbatch.errors import ParameterError

pytestmark = pytest.mark.slow
SIZE, BATCH, EPOCHS = 62, 8, 3
PAIRS = two_towers(64, seed=5)
HELD_OUT, TRAINED = (lambda: PAIRS[:32].unbind(1)), (lambda: PAIRS[32:].unbind(1))
PLANNERS = {
    "random": Random,
    "neighbours": Neighbours,
    "greedy": Greedy,
    "least similar": LeastSimilar,
    "auto": lambda: Auto(0.1, held_out=HELD_OUT, trained=TRAINED),
}


def train(name, *, known=True, fill_at=None, epochs=EPOCHS, **arguments):
    """Batches of epochs in which every process stores the rows of its own share."""
    cache = filled_cache(SIZE, towers=2) if known else EmbeddingCache(SIZE, 8, towers=2)
    sampler = SpectralBatchSampler(cache, BATCH, PLANNERS[name](), **arguments)
    batches, step = [], 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in sampler:
            ids = torch.tensor(batch)
            step += 1
            cache.update(ids, *embedded(ids, step))
            batches.append(batch)
            if step == fill_at:
                parts = torch.split(torch.arange(SIZE), 5)  # 13: not one for each in the last round
                cache.fill(lambda ids: embedded(ids, 99), [(p, p) for p in parts], progress=False)
    return {"batches": batches, "plan": sampler.plan, "cache": cache, "sampler": sampler}


def embedded(ids, step):
    rows = torch.sin(torch.outer(ids + 1.0, torch.arange(1.0, 9)) * step)
    return rows, rows.roll(1, 1)


CASES = {
    **{name: {"name": name} for name in PLANNERS},
    "cold": {"name": "neighbours", "known": False},
    "filled": {"name": "neighbours", "known": False, "fill_at": 4},
    "parts": {"name": "neighbours", "horizon": 24},
    "short": {"name": "greedy", "drop_last": False},
    "groups": {"name": "neighbours", "groups": torch.arange(SIZE) // 2},
    "fresh": {"name": "greedy", "replace": True},
}


def gathered_rows(rank):
    """Each process knows some rows, some know the same one: the newest wins, of equals rank 0's."""
    cache = EmbeddingCache(6, 8)
    cache.update([0, 1 + rank], random_rows(2, seed=rank))  # all know sample 0, equally new
    if rank == 1:
        cache.update([3], random_rows(1, seed=9))
        cache.update([1], random_rows(1, seed=8))  # newer than what rank 0 has
    cache.gather()
    return cache.state_dict()


def errors(rank, world):
    """What every process hears when one of them is different."""
    heard = []

    def attempt(planner, cache=None, *, seed=0, arguments=None):
        sampler = SpectralBatchSampler(cache or filled_cache(64), 8, planner, seed=seed)
        try:
            next(iter(sampler))
            heard.append("nothing")
        except Exception as error:
            heard.append(str(error))

    def failing():
        raise RuntimeError("no embeddings today")

    attempt(Neighbours(), seed=int(rank == 1))
    attempt(Greedy() if rank == 1 else Neighbours())
    filled = filled_cache(64)
    if rank == 1:
        filled._counters[1] += 1
    attempt(Neighbours(), filled)
    attempt(Auto(0.1, held_out=failing if rank == 1 else HELD_OUT, trained=TRAINED))

    class Broken:
        def plan(self, rows, batch_size, *, generator=None):
            raise RuntimeError("cannot plan")

    attempt(Broken())
    dist.barrier()
    return heard


def work(rank, world, directory):
    torch.set_num_threads(1)
    early = SpectralBatchSampler(filled_cache(16), 4, Random())
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=world
    )
    results = {}
    for name, case in CASES.items():
        made = train(**case)
        results[name] = made["batches"]
        results[f"{name} plan"] = made["plan"].scalars(0) if made["plan"] else None
        made["cache"].gather()
        results[f"{name} cache"] = made["cache"].state_dict()
    half = train("neighbours", epochs=2, known=False, fill_at=4)
    half["cache"].gather()
    results["state"] = {
        "cache": half["cache"].state_dict(), "sampler": half["sampler"].state_dict(),
    }  # fmt: skip
    results["early"] = list(early)
    results["gathered"] = gathered_rows(rank)
    results["errors"] = errors(rank, world)
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (request.param, directory), nprocs=request.param)
    return [
        torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(request.param)
    ]


def together(ranks, name):
    """The global batches of several processes."""
    return [[*chain(*shares)] for shares in zip(*(one[name] for one in ranks), strict=True)]


@pytest.mark.parametrize("name", [name for name in CASES if name != "short"])
def test_several_processes_train_on_the_batches_of_one(ranks, name):
    alone = train(**CASES[name])
    assert together(ranks, name) == alone["batches"]
    sizes = {len(batch) for one in ranks for batch in one[name]}
    assert sizes == {BATCH // len(ranks)}


def test_a_short_last_batch_is_shared_too(ranks):
    assert together(ranks, "short") == train(**CASES["short"])["batches"]


@pytest.mark.parametrize("name", CASES)
def test_caches_of_several_processes_hold_after_a_gather_what_one_would_hold(ranks, name):
    alone = train(**CASES[name])["cache"].state_dict()
    for one in ranks:
        cache = one[f"{name} cache"]
        for part in ("rows", "ticks", "counters"):
            assert torch.equal(cache[part], alone[part])


@pytest.mark.parametrize("name", CASES)
def test_all_processes_have_the_same_plan(ranks, name):
    plans = [dict(one[f"{name} plan"]) for one in ranks]
    for plan in plans:
        plan.pop("sampler/seconds")
    if CASES[name]["name"] != "random":  # whose description is of the rows a process has
        assert all(plan == plans[0] for plan in plans)


def test_a_run_is_continued_with_another_number_of_processes(ranks):
    state = ranks[0]["state"]
    cache = EmbeddingCache(SIZE, 8, towers=2)
    cache.load_state_dict(state["cache"])
    sampler = SpectralBatchSampler(cache, BATCH, Neighbours())
    sampler.load_state_dict(state["sampler"])
    sampler.set_epoch(2)
    alone = train("neighbours", epochs=2, known=False, fill_at=4)
    alone["sampler"].set_epoch(2)
    assert list(sampler) == list(alone["sampler"])


def test_the_newest_row_wins_and_of_equals_the_lowest_ranks(ranks):
    expected = EmbeddingCache(6, 8)
    rows = {
        0: random_rows(2, seed=0)[:1], 1: random_rows(1, seed=8), 2: random_rows(2, seed=1)[1:],
        3: random_rows(1, seed=9),
    }  # fmt: skip
    if len(ranks) == 4:
        rows |= {4: random_rows(2, seed=3)[1:]}  # sample 3 of rank 2 is older than that of rank 1
    for one in ranks:
        cache = EmbeddingCache(6, 8)
        cache.load_state_dict(one["gathered"])
        for sample, row in rows.items():
            expected.update([sample], row)
            assert torch.equal(cache.get([sample]), expected.get([sample]))
        assert cache.updates == 3
        assert cache.age([5]).tolist() == [-1]


def test_a_difference_or_an_error_in_one_process_is_heard_by_all(ranks):
    for rank, one in enumerate(ranks):
        seed, planner, fills, auto, broken = one["errors"]
        assert "the samplers of the processes differ: seed is" in seed
        assert "planner is 'Greedy' here" in planner or "planner is 'Neighbours' here" in planner
        assert "fills of the cache is" in fills
        assert "no embeddings today" in auto
        assert "cannot plan" in broken
        assert auto.startswith("process 1 has failed: RuntimeError") == (rank != 1)
        assert broken.startswith("process 0 has failed: RuntimeError") == (rank != 0)


def test_a_sampler_made_before_the_process_group_finds_it_when_iteration_begins(ranks):
    assert together(ranks, "early") == list(SpectralBatchSampler(filled_cache(16), 4, Random()))


def test_without_distributed_training_a_gather_does_nothing():
    cache = filled_cache(6)
    before = cache.state_dict()
    cache.gather()
    assert all(torch.equal(cache.state_dict()[name], before[name]) for name in ("rows", "ticks"))


def test_a_process_that_dies_ends_the_others_within_seconds(tmp_path):
    """Under torchrun, as users start it: rank 1 is killed between two plans."""
    script = tmp_path / "loop.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal
        import torch, torch.distributed as dist
        from eigenbatch import EmbeddingCache, Neighbours, SpectralBatchSampler
        dist.init_process_group("gloo")
        cache = EmbeddingCache(64, 8, towers=2)
        sampler = SpectralBatchSampler(cache, 8, Neighbours())
        for epoch in range(1000):
            sampler.set_epoch(epoch)
            for step, ids in enumerate(sampler):
                cache.update(ids, torch.randn(4, 8), torch.randn(4, 8))
                if dist.get_rank() == 1 and (epoch, step) == (2, 3):
                    os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    assert time.monotonic() - begun < 60


class BatchSamplerShard:
    """Named like accelerate's, which gives every process some of the batches."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler


class DataLoaderDispatcher:
    """Named like accelerate's, which draws in one process only."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler


def test_processes_that_iterate_by_accelerates_rules_are_told(monkeypatch):
    monkeypatch.setattr("eigenbatch.batches.sampler.rank_and_world", lambda: (0, 2))
    monkeypatch.setitem(sys.modules, "accelerate", object())
    cache = filled_cache(16)
    with pytest.raises(ParameterError, match="shard=False"):
        next(iter(BatchSamplerShard(SpectralBatchSampler(cache, 4, Random()))))
    next(iter(BatchSamplerShard(SpectralBatchSampler(cache, 4, Random(), shard=False))))
    with pytest.raises(ParameterError, match="dispatch_batches=False"):
        next(iter(DataLoaderDispatcher(SpectralBatchSampler(cache, 4, Random(), shard=False))))
