"""accelerate with two real processes: the watch, and hard batches for sentence-transformers."""

import logging
import os
import socket
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader

from eigenbatch import EmbeddingCache, SpectralMonitor, StopOn
from eigenbatch.integrations.accelerate import SpectralWatch
from eigenbatch.integrations.carried import StopTogether
from eigenbatch.integrations.sentence_transformers import HardBatches

pytestmark = pytest.mark.slow
PAIRS, DIM = 32, 8  # of both processes together
SIZE, BATCH, GROUPS, EPOCHS = 48, 4, 6, 3


def views():
    """Collapsed views: every reading has the same critical finding."""
    noise = torch.randn(2, PAIRS, DIM, generator=torch.Generator().manual_seed(0)).double()
    return torch.nn.functional.normalize(1 + 0.01 * noise, dim=2)


def shard(rank):
    return views()[:, rank * PAIRS // 2 : (rank + 1) * PAIRS // 2]


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def watched(rank, directory):
    """What one process hears, reads and caches until a finding stops it."""
    heard = Heard()
    logging.getLogger("eigenbatch").addHandler(heard)
    cache = EmbeddingCache(PAIRS, dim=DIM)
    monitor = SpectralMonitor(0.2, every=2, sync=True, strict=True)
    ids, reading = torch.arange(PAIRS).chunk(2)[rank], None
    with SpectralWatch(
        Accelerator(cpu=True),
        monitor,
        cache=cache,
        stop_on=StopOn("collapsing"),
        record=directory / "run",
    ) as watch:
        while not watch.should_stop:
            reading = watch(*shard(rank), ids=ids) or reading
    return {
        "heard": heard.texts,
        "step": reading.step,
        "loss": reading.loss,
        "anchors": reading.anchors,
        "cached": cache.get(ids),
    }


def stopped(rank):
    """The steps at which each process stops, and why, if only rank 1 has a finding."""
    monitor, stop = SpectralMonitor(0.2, every=1, quiet=True), StopTogether(StopOn("collapsing"))
    generator = torch.Generator().manual_seed(rank)
    healthy = torch.nn.functional.normalize(torch.randn(2, PAIRS, DIM, generator=generator), dim=2)
    for step in range(9):
        if stop(monitor(*(views() if rank == 1 else healthy))):
            return {"step": step, "reason": stop.reason}
    return None


class Words(nn.Module):
    """As a SentenceTransformer: samples of one group start close to each other, not as copies."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(GROUPS, DIM, generator=generator).repeat(SIZE // GROUPS, 1)
        self.rows = nn.Parameter(centres + 0.5 * torch.randn(SIZE, DIM, generator=generator))

    def get_embedding_dimension(self):
        return DIM

    def forward(self, features):
        return {"sentence_embedding": self.rows[features["ids"]]}


def begun(directory, step=0, *, size=SIZE):
    """Model, batches and loader of a training that begins, or is resumed after `step` steps."""
    model = Words()
    hard = HardBatches(model, encode_after=None)
    sampler = hard(range(size), batch_size=BATCH, drop_last=size == SIZE)
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)  # as the Trainer asks for
    accelerator = Accelerator(cpu=True, dataloader_config=seedable)
    loader = accelerator.prepare(DataLoader(range(size), batch_sampler=sampler))
    args = SimpleNamespace(
        output_dir=directory, ignore_data_skip=False, gradient_accumulation_steps=1
    )
    state = SimpleNamespace(
        global_step=step, is_world_process_zero=dist.get_rank() == 0, num_train_epochs=3,
        max_steps=3 * len(loader), is_local_process_zero=True,
    )  # fmt: skip
    hard.on_train_begin(args, state, None, train_dataloader=loader)
    return model, hard, sampler, loader, args, state


def steps(model, hard, loader, state, epoch):
    """Ids that this process trains on, step by step."""
    loader.set_epoch(epoch)
    hard.on_epoch_begin(None, state, None)
    for ids in loader:
        for _ in range(2):
            model({"ids": ids})
        state.global_step += 1
        hard.on_step_end(None, state, None)
        yield ids.tolist()


def trained(directory):
    """Ids that this process trains on, epoch by epoch, and all that were drawn in the last."""
    model, hard, sampler, loader, _, state = begun(directory)
    epochs = [list(steps(model, hard, loader, state, epoch)) for epoch in range(EPOCHS)]
    hard.on_train_end(None, state, None)
    hard.cache.gather()
    return {
        "epochs": epochs,
        "drawn": [hard.sampler.ids(batch) for batch in range(SIZE // BATCH)],
        "epoch": sampler.chosen.epoch,
        "cached": hard.cache.get(torch.arange(SIZE)),
    }


def completed(directory, size):
    """Least cosine of a cached row and its own, where accelerate completes the last batches."""
    model, hard, _, loader, _, state = begun(directory, size=size)
    for epoch in range(2):
        list(steps(model, hard, loader, state, epoch))
    hard.on_train_end(None, state, None)
    hard.cache.gather()
    known = hard.cache.filled.nonzero().squeeze(1)
    own = torch.nn.functional.normalize(model.rows.detach()[known])
    return len(known) / size, (hard.cache.get(known).float() * own).sum(1).min().item()


def interrupted(directory, *stops):
    """As `trained`, with two epochs; in the second the training is saved and resumed at `stops`."""
    model, hard, _, loader, args, state = begun(directory)
    first = list(steps(model, hard, loader, state, 0))
    second = []
    for stop in (*stops, SIZE // BATCH // 2):
        for ids in steps(model, hard, loader, state, 1):
            second.append(ids)
            if len(second) == stop:
                break
        if dist.get_rank() == 0:
            (directory / f"checkpoint-{state.global_step}").mkdir(parents=True)
        hard.on_save(args, state, None)
        dist.barrier()
        if stop in stops:
            model, hard, _, loader, args, state = begun(directory, state.global_step)
            loader = skip_first_batches(loader, stop)
    hard.cache.gather()
    return {"epochs": [first, second], "cached": hard.cache.get(torch.arange(SIZE))}


def work(rank, port, directory):
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    results = {
        "watch": watched(rank, directory),
        "stopped": stopped(rank),
        "hard": trained(directory),
        "whole": interrupted(directory / "whole"),
        "parts": interrupted(directory / "parts", 2, 3),
        "completed": [completed(directory, SIZE - BATCH), completed(directory, SIZE - 2)],
    }
    torch.save(results, directory / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (port, directory), nprocs=2)
    return [torch.load(directory / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_every_process_reads_the_whole_batch_and_stops_at_the_same_step(both):
    alone = SpectralMonitor(0.2, every=1, quiet=True)(*views())
    for results in both:
        assert results["watch"]["anchors"] == 2 * PAIRS
        assert results["watch"]["loss"] == pytest.approx(alone.loss)
    assert both[0]["watch"]["step"] == both[1]["watch"]["step"] == 4


def test_a_finding_in_one_process_stops_all_at_the_same_step(both):
    first, second = (results["stopped"] for results in both)
    assert first["step"] == second["step"] == 2
    assert "collapsing" in first["reason"] == second["reason"]


def test_only_the_first_process_speaks_and_says_a_finding_once(both):
    said, silent = (results["watch"]["heard"] for results in both)
    assert sum("critical: collapsing" in text for text in said) == 1
    assert sum("stopping: " in text for text in said) == 1
    assert silent == []


def test_the_watch_caches_the_rows_of_each_process(both):
    rows = torch.cat([results["watch"]["cached"] for results in both])
    torch.testing.assert_close(rows.double(), views()[0], atol=1e-3, rtol=0)


def test_hard_batches_are_drawn_alike_and_shared_out(both):
    first, second = (results["hard"] for results in both)
    assert first["drawn"] == second["drawn"]
    assert torch.equal(first["cached"], second["cached"])
    for ours, theirs in zip(first["epochs"], second["epochs"], strict=True):
        together = [i for batch in ours + theirs for i in batch]
        assert sorted(together) == list(range(SIZE))  # disjoint, and every sample once
    assert first["epoch"] == second["epoch"] == EPOCHS - 1  # accelerate passes it on
    assert first["epochs"][-1] == first["drawn"][::2]
    assert second["epochs"][-1] == first["drawn"][1::2]


def test_hard_batches_of_two_processes_become_neighbourhoods(both):
    def same_group(batches):
        pairs = [(a, b) for batch in batches for a in batch for b in batch if a < b]
        return sum(a % GROUPS == b % GROUPS for a, b in pairs) / len(pairs)

    for results in both:
        random, *_, chosen = results["hard"]["epochs"]
        assert same_group(random) < 0.3
        assert same_group(chosen) > 0.4


def test_batches_that_accelerate_completes_neither_block_nor_mix_embeddings(both):
    for results in both:
        for known, least in results["completed"]:
            assert known > 0.8
            assert least > 0.99


def test_hard_batches_resumed_twice_in_an_epoch_are_those_of_the_whole_one(both):
    for results in both:
        assert len(results["whole"]["epochs"][1]) == SIZE // BATCH // 2
        assert results["parts"]["epochs"] == results["whole"]["epochs"]
        assert torch.equal(results["parts"]["cached"], results["whole"]["cached"])
