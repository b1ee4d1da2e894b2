"""Two real processes over gloo read the batch that one process would."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from batches import DIMENSION, TAU, healthy_views
from eigenbatch.core.spectrum import moments
from eigenbatch.monitor.monitor import SpectralMonitor
from eigenbatch.monitor.processes import ProcessGroup, total_moments

PAIRS = 48
METHODS = ("certified", "theorem", "proxy")


def views():
    return [z.double() for z in healthy_views(pairs=PAIRS)]


def shard(rank):
    part = slice(rank * PAIRS // 2, (rank + 1) * PAIRS // 2)
    return [z[part] for z in views()]


def read(views, **settings):
    reading = SpectralMonitor(TAU, strict=True, **settings)(*views)
    return reading.scalars() | {
        "predicted": reading.outlook.at_tau(0.4).ceiling,
        "names": [one.name for one in reading.findings],
    }


def cross_readings(shown, ids, *, loss=None, **settings):
    """Two readings of two towers: numbers, tower numbers, movement and names of findings."""
    monitor = SpectralMonitor(TAU, strict=True, every=1, **settings)
    for _ in range(2):
        reading = monitor(*shown, layout="cross", ids=ids, loss=loss)
    return reading.scalars() | {
        "moved": sum(reading.course.movement.values()),
        "repetition": reading.course.repetition,
        "claimed": reading.your_loss,
        "names": [one.name for one in reading.findings],
    }


def failures(rank):
    """What each process gets when only rank 1 holds an unreadable batch, and when shapes differ."""
    broken = shard(rank)
    if rank == 1:
        broken[0][3] = torch.nan
    heard = []
    for batch in (broken, [z[: 8 + rank] for z in shard(rank)]):
        try:
            SpectralMonitor(TAU, strict=True, sync=True)(*batch)
        except ValueError as error:
            heard.append(str(error))
    reading = SpectralMonitor(TAU, sync=True)(*broken)
    heard.append([one.name for one in reading.findings] == ["not finite"])
    reading = SpectralMonitor(TAU, sync=True)(*broken, layout="cross")
    heard.append([one.name for one in reading.findings] == ["not finite"])
    for tau, source in (
        (TAU, lambda: fails(rank, shard(rank))),
        (lambda: fails(rank, TAU), lambda: shard(rank)),
    ):
        try:
            SpectralMonitor(tau, strict=True, sync=True)(views=source)
        except Exception as error:
            heard.append(f"{type(error).__name__}: {error}")
    return heard


def differences(rank):
    """What each process hears when they call differently."""
    ids = torch.arange(PAIRS // 2)
    calls = {
        "tau": ({}, {"tau": TAU * (1 + rank)}),
        "loss": ({"loss": 1.0} if rank else {}, {}),
        "ids": ({"ids": ids} if rank else {}, {}),
        "lengths": ({"ids": ids[: len(ids) - rank]}, {}),
        "layout": ({"layout": ("paired", "cross")[rank]}, {}),
        "method": ({}, {"method": METHODS[rank]}),
        "step": ({"step": rank}, {}),
    }
    heard = {}
    for name, (arguments, settings) in calls.items():
        monitor = SpectralMonitor(**{"tau": TAU, "every": 1, **settings}, strict=True, sync=True)
        try:
            monitor(*shard(rank), **arguments)
        except ValueError as error:
            heard[name] = str(error)
    return heard


def fails(rank, value):
    if rank == 1:
        raise KeyError("z1")
    return value


def traffic(rank):
    """How many numbers the spectrum sends, and how many rows it gathers."""
    sent, gathered = [], []
    reduce, gather = dist.all_reduce, dist.all_gather
    dist.all_reduce = lambda tensor, **rest: (sent.append(tensor.numel()), reduce(tensor, **rest))
    dist.all_gather = lambda *_, **__: gathered.append(1)
    try:
        ranks = ProcessGroup(None)
        total = total_moments(moments(torch.cat(shard(rank))), ranks)
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather
    return {"sent": sent, "gathered": gathered, "count": total.count, "second": total.second}


def work(rank, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
    results = {method: read(shard(rank), method=method, sync=True) for method in METHODS}
    results["alone"] = read(shard(rank))
    dtype = (torch.float32, torch.float64)[rank]
    results["mixed"] = read([z.to(dtype) for z in shard(rank)], method="theorem", sync=True)
    ids = torch.arange(PAIRS // 2)  # repeated only across the two processes
    results["cross"] = cross_readings(shard(rank), ids, loss=1.0 + rank, sync=True)
    results["failures"] = failures(rank)
    results["differences"] = differences(rank)
    results["traffic"] = traffic(rank)
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    mp.spawn(work, (directory,), nprocs=2)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_read_what_one_reads(both, method) -> None:
    alone = read(views(), method=method)
    for results in both:
        assert results[method].keys() == alone.keys()
        assert results[method].pop("names") == alone["names"]
        for name, value in results[method].items():
            assert value == pytest.approx(alone[name], rel=1e-9, abs=1e-12), name


@pytest.mark.slow
def test_two_processes_read_two_towers_as_one_does(both) -> None:
    ids = torch.arange(PAIRS // 2).repeat(2)
    alone = cross_readings(views(), ids, loss=1.5)
    assert alone["spectral/repeated_id_share"] == 1
    for results in both:
        assert results["cross"].keys() == alone.keys()
        assert results["cross"].pop("names") == alone["names"]
        for name, value in results["cross"].items():
            assert value == pytest.approx(alone[name], rel=1e-9, abs=1e-12), name


@pytest.mark.slow
def test_processes_may_hold_different_dtypes(both) -> None:
    alone = read(views(), method="theorem")
    for results in both:
        assert results["mixed"]["names"] == alone["names"]
        for name, value in results["mixed"].items():
            if name != "names":
                assert value == pytest.approx(alone[name], rel=1e-4, abs=1e-6), name
    first, second = (results["mixed"] for results in both)
    assert first == second


@pytest.mark.slow
def test_without_sync_each_process_reads_its_own_batch(both) -> None:
    first, second = (results["alone"]["spectral/loss"] for results in both)
    assert first != second
    assert first == pytest.approx(read(shard(0))["spectral/loss"])


@pytest.mark.slow
def test_a_batch_that_one_process_cannot_read_stops_all_and_blocks_none(both) -> None:
    (elsewhere, shapes, *silent, one, other), (here, same_shapes, *also_silent, a, b) = (
        results["failures"] for results in both
    )
    assert "another process holds a batch that cannot be read" in elsewhere
    assert "row 3 of z1 holds NaN" in here
    assert shapes == same_shapes
    assert "by rank: pairs 8, 9. sync=True needs" in shapes
    assert silent == also_silent == [True, True]  # of two views, of two towers
    assert a == b == "KeyError: 'z1'"  # views= failed there, then tau
    assert "another process holds a batch that cannot be read" in one
    assert "another process holds a batch that cannot be read" in other


@pytest.mark.slow
def test_processes_that_call_differently_are_told_so_and_none_waits(both) -> None:
    first, second = (results["differences"] for results in both)
    assert first.pop("lengths").startswith("another process holds a batch that cannot be read")
    assert "ids must hold 24 sample ids, got (23,)" in second.pop("lengths")
    assert first == second
    expected = {"tau": "tau 0.2, 0.4", "loss": "loss 0, 1", "ids": "ids 0, 1", "step": "step 0, 1",
                "layout": "layout 0, 1", "method": "method 0, 1"}  # fmt: skip
    assert first.keys() == expected.keys()
    for name, text in expected.items():
        assert f"by rank: {text}" in first[name]


@pytest.mark.slow
def test_the_spectrum_sends_moments_and_gathers_no_rows(both) -> None:
    expected = moments(torch.cat(views()))
    for results in both:
        traffic = results["traffic"]
        assert traffic["sent"] == [DIMENSION**2 + DIMENSION + 1]
        assert traffic["gathered"] == []
        assert traffic["count"] == 2 * PAIRS
        torch.testing.assert_close(traffic["second"], expected.second)
