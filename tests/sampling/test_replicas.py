"""Two real processes over gloo: the same caches, the same global batches, disjoint shards."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sampling_toys import LeastSimilar, filled_cache, random_rows

from eigenbatch.errors import RowError, ShapeError
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.selectors.random import Random

pytestmark = pytest.mark.slow
SIZE, BATCH, EPOCHS = 62, 8, 2
COVERAGES = ("epoch", "stream", "free")
MIXED = (torch.float16, torch.float64)


def trained(coverage):
    """Batches of two epochs in which every batch is embedded anew, in one process or in many."""
    cache = filled_cache(SIZE)
    sampler = SpectralBatchSampler(cache, BATCH, LeastSimilar(), pool_size=32, coverage=coverage)
    batches = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(sampler, 1):
            ids = torch.tensor(batch)
            z = torch.sin(torch.outer(ids + 1.0, torch.arange(1.0, 9)) * (step + 100 * epoch))
            cache.update_synchronized(ids, z)
            batches.append(batch)
    return {"batches": batches, "length": len(sampler), "cache": cache.state_dict()}


def uneven_update(rank):
    """Rank 0 brings three rows, rank 1 one; both write id 4."""
    cache = EmbeddingCache(6, 8)
    ids = torch.tensor([4, 0, 5]) if rank == 0 else torch.tensor([4])
    cache.update_synchronized(ids, random_rows(len(ids), seed=rank))
    return cache.state_dict()


def two_tower_update(rank):
    """Each rank brings both towers of one sample; then rank 1 forgets the second."""
    cache = EmbeddingCache(6, 8, towers=2)
    z = random_rows(1, seed=rank), random_rows(1, seed=rank + 2)
    cache.update_synchronized(torch.tensor([rank]), *z)
    heard = ""
    try:
        cache.update_synchronized(torch.tensor([rank]), *z[: 2 - rank])
    except ShapeError as error:
        heard = str(error)
    return {"rows": cache.state_dict()["rows"], "heard": heard}


def mixed_update(rank, dtype):
    """Rank 0 brings float32, rank 1 float64 and then half precision."""
    cache = EmbeddingCache(6, 8, dtype=dtype)
    for step, other in enumerate((torch.float64, torch.float16)):
        z = random_rows(1, seed=rank + 2 * step).to(other if rank == 1 else torch.float32)
        cache.update_synchronized(torch.tensor([rank + 2 * step]), z)
    return cache.state_dict()


def refused_updates(rank):
    """What each process hears when only rank 1 makes a mistake."""
    cache, heard = EmbeddingCache(6, 8), []
    good = (torch.tensor([rank]), random_rows(1))
    for bad in (
        (torch.tensor([1, 2]), random_rows(1)),
        (torch.tensor([1]), random_rows(1, 7)),
        (torch.tensor([1.0]), random_rows(1)),
        (torch.tensor([1]), torch.zeros(1, 8)),
        (torch.tensor([6]), random_rows(1)),
    ):
        try:
            cache.update_synchronized(*(bad if rank == 1 else good))
        except ValueError as error:
            heard.append((type(error).__name__, str(error)))
    return {"heard": heard, "known": int(cache.filled.sum())}


def refused_types(rank):
    """The same when rank 1 gives what is no tensor: it is told so itself."""
    cache, heard = EmbeddingCache(6, 8, towers=2), []
    z, array = random_rows(1), random_rows(1).numpy()
    for bad in (([1], array, z), ([1], z, array), (["one"], z, z)):
        try:
            cache.update_synchronized(*(bad if rank == 1 else ([rank], z, z)))
        except (TypeError, ValueError) as error:
            heard.append(type(error).__name__)
    return {"heard": heard, "known": int(cache.filled.sum())}


def shared_file(directory):
    """Both processes open one file, whoever creates it."""
    cache = EmbeddingCache(6, 8, path=directory / "shared.bin")
    for seed in range(3):
        rank = dist.get_rank()
        cache.update_synchronized(torch.tensor([rank]), random_rows(1, seed=seed + rank))
    return {"ages": cache.age(range(6)).tolist(), "rows": cache.get([0, 1])}


def work(rank, directory):
    torch.set_num_threads(1)
    early = SpectralBatchSampler(filled_cache(16), 4, Random())
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
    results = {coverage: trained(coverage) for coverage in COVERAGES}
    results["early"] = list(early)
    results["uneven"] = uneven_update(rank)
    results["towers"] = two_tower_update(rank)
    results["mixed"] = {str(dtype): mixed_update(rank, dtype) for dtype in MIXED}
    results["refused"] = refused_updates(rank)
    results["refused types"] = refused_types(rank)
    results["shared"] = shared_file(directory)
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replicas")
    mp.spawn(work, (directory,), nprocs=2)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("coverage", COVERAGES)
def test_two_processes_train_on_the_batches_of_one(both, coverage):
    first, second = (results[coverage] for results in both)
    alone = trained(coverage)
    assert first["length"] == second["length"] == alone["length"] == SIZE // BATCH
    assert [len(batch) for batch in first["batches"]] == [BATCH // 2] * (EPOCHS * (SIZE // BATCH))
    together = [a + b for a, b in zip(first["batches"], second["batches"], strict=True)]
    assert together == alone["batches"]
    assert all(len(set(batch)) == BATCH for batch in together)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_the_caches_of_two_processes_are_identical_to_that_of_one(both, coverage):
    alone = trained(coverage)["cache"]
    for results in both:
        cache = results[coverage]["cache"]
        assert cache["tick"] == alone["tick"]
        assert torch.equal(cache["ticks"], alone["ticks"])
        assert torch.equal(cache["rows"], alone["rows"])


def test_processes_may_bring_different_numbers_of_rows_and_the_last_rank_wins(both):
    expected = EmbeddingCache(6, 8)
    rows = torch.cat([random_rows(3, seed=0), random_rows(1, seed=1)])
    expected.update(torch.tensor([4, 0, 5, 4]), rows)
    for results in both:
        assert torch.equal(results["uneven"]["rows"], expected.state_dict()["rows"])
        assert results["uneven"]["ticks"].tolist() == [1, 0, 0, 0, 1, 1]


def test_both_towers_are_sent_and_a_missing_one_is_heard_by_all(both):
    expected = EmbeddingCache(6, 8, towers=2)
    z1, z2 = (torch.cat([random_rows(1, seed=s + r) for r in range(2)]) for s in (0, 2))
    expected.update([0, 1], z1, z2)
    for results in both:
        assert torch.equal(results["towers"]["rows"], expected.state_dict()["rows"])
        assert "rank 1 has 1 ids and embeddings of shape (1, 8)" in results["towers"]["heard"]


@pytest.mark.parametrize("dtype", MIXED)
def test_processes_may_bring_different_dtypes_and_the_widest_is_sent(both, dtype):
    expected = EmbeddingCache(6, 8, dtype=dtype)
    rows = [random_rows(1, seed=seed) for seed in range(4)]
    expected.update(torch.tensor([0, 1]), torch.cat(rows[:2]).double())
    expected.update(torch.tensor([2, 3]), torch.cat([rows[2], rows[3].half().float()]))
    for results in both:
        assert torch.equal(results["mixed"][str(dtype)]["rows"], expected.state_dict()["rows"])


def test_a_mistake_of_one_process_is_heard_by_all_and_changes_nothing(both):
    first, second = (results["refused"] for results in both)
    assert first == second
    assert [name for name, _ in first["heard"]] == [
        *["ShapeError"] * 3,
        "RowError",
        "ParameterError",
    ]
    assert "rank 1 has 2 ids and embeddings of shape (1, 8)" in first["heard"][0][1]
    assert first["known"] == 0


def test_no_process_waits_for_one_that_gave_another_type(both):
    first, second = (results["refused types"] for results in both)
    assert first["heard"] == ["ShapeError"] * 3
    assert second["heard"] == ["ArgumentTypeError"] * 3
    assert first["known"] == second["known"] == 0


def test_processes_can_share_one_mapped_file(both):
    for results in both:
        assert results["shared"]["ages"] == [0, 0, -1, -1, -1, -1]
        expected = torch.nn.functional.normalize(
            torch.cat([random_rows(1, seed=s) for s in (2, 3)])
        )
        torch.testing.assert_close(results["shared"]["rows"].float(), expected, atol=1e-3, rtol=0)


def test_without_distributed_training_a_synchronised_update_is_a_plain_one():
    cache = EmbeddingCache(4, 8)
    cache.update_synchronized([2], random_rows(1))
    assert cache.age(range(4)).tolist() == [-1, -1, 0, -1]
    with pytest.raises(ShapeError, match="each id needs one row"):
        cache.update_synchronized([1, 2], random_rows(1))
    with pytest.raises(RowError, match="row 0 of z is zero"):
        cache.update_synchronized([1], torch.zeros(1, 8))


def test_a_sampler_made_before_the_process_group_finds_it_when_iteration_begins(both):
    together = [a + b for a, b in zip(*(results["early"] for results in both), strict=True)]
    assert together == list(SpectralBatchSampler(filled_cache(16), 4, Random()))
