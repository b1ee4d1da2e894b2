"""Batches of neighbours, searched in the whole cache and in every coverage."""

import sys
from types import SimpleNamespace

import pytest
import torch
from sampling_toys import Recording, filled_cache, random_rows
from torch.utils.data import DataLoader, TensorDataset

from eigenbatch import (
    Auto,
    EmbeddingCache,
    Greedy,
    IndexedDataset,
    Neighbours,
    NoNearDuplicates,
    Random,
    Schedule,
    SpectralBatchSampler,
)
from eigenbatch.errors import ArgumentTypeError, NumericalWarning, ParameterError, ShapeError
from eigenbatch.selectors import AfterBatches, EveryNth, OnLossPlateau

COVERAGES = ["epoch", "stream", "free"]


def paired_cache(size, dim=8):
    cache = EmbeddingCache(size, dim, towers=2)
    rows = random_rows(size, dim)
    cache.update(torch.arange(size), rows, rows + 0.1 * random_rows(size, dim, seed=1))
    return cache


def sampler_of(cache, selector, batch_size=20, **options):
    return SpectralBatchSampler(cache, batch_size, selector, **options)


def test_neighbours_search_the_whole_cache_unless_told_otherwise():
    assert sampler_of(filled_cache(1000), Neighbours()).pool_size == 1000
    assert sampler_of(filled_cache(1000), NoNearDuplicates(Neighbours())).pool_size == 1000
    assert sampler_of(filled_cache(1000), Neighbours(), pool_size=300).pool_size == 300
    assert sampler_of(filled_cache(1000), Greedy()).pool_size == 200
    large = EmbeddingCache(100_000, 4)
    assert sampler_of(large, Neighbours()).pool_size == 65_536
    assert sampler_of(large, Neighbours(), coverage="free").pool_size == 100_000
    assert sampler_of(large, Neighbours(), coverage="free", background=True).pool_size == 65_536
    larger = EmbeddingCache(2**18 + 1, 4)
    assert sampler_of(larger, Neighbours(), coverage="free").pool_size == 65_536
    assert sampler_of(filled_cache(1000), Neighbours(), coverage="stream").pool_size == 500


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schedule(Random(), Neighbours(4), AfterBatches(1)),
        lambda: EveryNth(Neighbours(4), 2, Neighbours(16)),
        lambda: OnLossPlateau(NoNearDuplicates(Neighbours(4)), Random()),
        lambda: NoNearDuplicates(Schedule(Schedule(), Neighbours(4))),
    ],
    ids=["schedule", "every nth", "plateau", "nested"],
)
def test_neighbours_inside_a_schedule_get_the_pool_and_the_seeds_of_neighbours(make):
    sampler = sampler_of(filled_cache(1000), make())
    alone = sampler_of(filled_cache(1000), Neighbours(4))
    assert sampler.pool_size == alone.pool_size
    assert sampler.max_wait == alone.max_wait
    assert sampler_of(filled_cache(1000), Schedule()).pool_size == 200  # nothing to search


def test_a_batch_of_one_seed_is_a_sample_and_its_nearest_of_all():
    cache = filled_cache(500)
    rows = torch.nn.functional.normalize(cache.get(range(500)).float())
    for batch in sampler_of(cache, Neighbours(1), coverage="free"):
        neighbourhoods = (rows[batch] @ rows.T).topk(20).indices.sort(1).values
        assert (neighbourhoods == torch.tensor(sorted(batch))).all(1).any()


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize(
    "make",
    [Neighbours, lambda: Neighbours(50), lambda: NoNearDuplicates(Neighbours(2), 0.9999),
     lambda: Auto(0.1), Random],
    ids=["neighbours", "more seeds than rows", "guarded", "auto", "random"],
)  # fmt: skip
class TestEveryCoverage:
    def test_batches_are_full_distinct_and_the_same_for_the_same_seed(self, coverage, make):
        draws = [
            list(sampler_of(paired_cache(210), make(), coverage=coverage, seed=4)) for _ in range(2)
        ]
        assert draws[0] == draws[1]
        assert [len(set(batch)) for batch in draws[0]] == [20] * 10
        if coverage == "epoch":
            assert len({i for batch in draws[0] for i in batch}) == 200

    def test_a_resumed_epoch_continues_with_the_same_batches(self, coverage, make):
        def draw(sampler, cache):
            for number, batch in enumerate(sampler):
                yield batch
                cache.update(batch, *(random_rows(20, seed=number + t) for t in range(2)))

        cache = paired_cache(200)
        sampler = sampler_of(cache, make(), coverage=coverage)
        drawn = draw(sampler, cache)
        for _ in range(4):
            next(drawn)
        state, rows = sampler.state_dict(), cache.state_dict()
        state["journal"], state["selector"] = state["journal"].clone(), dict(state["selector"])
        rest = list(drawn)
        # The fourth batch was drawn before the cache knew its embeddings.
        again = paired_cache(200)
        again.load_state_dict(rows)
        again.update(*_fourth(state))
        resumed = sampler_of(again, make(), coverage=coverage)
        resumed.load_state_dict(state)
        numbered = enumerate(resumed, start=4)
        got = []
        for number, batch in numbered:
            got.append(batch)
            again.update(batch, *(random_rows(20, seed=number + t) for t in range(2)))
        assert got == rest

    def test_processes_share_one_batch(self, coverage, make):
        parts = [
            list(sampler_of(paired_cache(200), make(), coverage=coverage, num_replicas=2, rank=r))
            for r in range(2)
        ]
        whole = list(sampler_of(paired_cache(200), make(), coverage=coverage))
        assert [a + b for a, b in zip(*parts, strict=True)] == whole


def _fourth(state):
    batch = state["journal"][3].long()
    return batch, *(random_rows(20, seed=3 + t) for t in range(2))


class Careless:
    """Searches the cache in place, but looks at rows that are no candidates."""

    searched, seeds = 65_536, 2

    def __call__(self, pool, batch_size, *, generator=None):
        return torch.arange(batch_size)

    def complete(self, offer, batch_size, *, generator=None):
        order = torch.randperm(len(offer), generator=generator)
        return torch.cat([offer.given, order[~torch.isin(order, offer.given)]])[:batch_size]


def test_a_selector_that_adds_barred_rows_is_named():
    sampler = sampler_of(filled_cache(400), Careless(), pool_size=150)
    with pytest.raises(ParameterError, match=r"Careless\.complete returned barred rows"):
        list(sampler)


@pytest.mark.parametrize("coverage", ["epoch", "stream"])
def test_a_guard_does_not_end_a_run_in_which_every_sample_is_used(coverage):
    cache = EmbeddingCache(300, 8)
    rows = random_rows(300)
    rows[:150] = rows[-1]  # more copies than there are batches
    cache.update(torch.arange(300), rows)
    guarded = NoNearDuplicates(Neighbours(4))
    sampler = sampler_of(cache, guarded, coverage=coverage, pool_size=60)
    with pytest.warns(NumericalWarning, match="said once"):
        batches = list(sampler)
    sampler.set_epoch(1)
    batches += list(sampler)  # a second warning would be an error
    assert [len(set(batch)) for batch in batches] == [20] * 30
    assert guarded.unkept > 1
    free = sampler_of(cache, NoNearDuplicates(Neighbours(4), -0.5), coverage="free")
    with pytest.raises(ShapeError, match='shortfall="fill"'):
        next(iter(free))


def test_an_epoch_of_neighbours_is_a_partition_into_hard_batches():
    cache = filled_cache(2000, 16)
    rows = torch.nn.functional.normalize(cache.get(range(2000)).float())

    def hardness(selector):
        batches = list(sampler_of(cache, selector, 50))
        assert sorted(i for batch in batches for i in batch) == list(range(2000))
        return torch.stack([(rows[b] @ rows[b].T).mean() for b in batches])

    hard, plain = hardness(Neighbours(2)), hardness(Random())
    assert hard[:30].min() > plain.max()
    assert hard.mean() > 3 * plain.mean()


def test_the_longest_waiting_samples_are_the_seeds_and_none_waits_for_ever():
    sampler = sampler_of(filled_cache(400), Neighbours(4), pool_size=100, coverage="stream")
    assert sampler.max_wait == 1 + 80 // 4
    seen = {}
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for batch in sampler:
            assert sampler.last.due == 4
            for sample in batch:
                seen[sample] = seen.get(sample, 0) + 1
    assert len(seen) == 400
    assert 4 <= min(seen.values()) <= max(seen.values()) <= 8


class TestUnknownShare:
    def test_batches_are_selected_from_the_first_known_rows_on(self):
        cache, selector = EmbeddingCache(400, 8), Recording()
        sampler = sampler_of(cache, selector, coverage="free", unknown_share=0.25, pool_size=400)
        unknown = []
        for batch in sampler:
            unknown.append(sampler.last.unknown)
            cache.update(batch, random_rows(20, seed=len(unknown)))
        assert unknown[0] == 20  # nothing is known yet
        assert unknown[2:] == [5] * 18
        assert len(selector.pools) >= 17

    @pytest.mark.parametrize("coverage", COVERAGES)
    def test_the_whole_cache_is_explored_at_that_share(self, coverage):
        cache = EmbeddingCache(200, 8)
        sampler = sampler_of(cache, Neighbours(2), 20, coverage=coverage, unknown_share=0.5)
        for epoch in range(4):
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert len(set(batch)) == 20
                cache.update(batch, random_rows(20, seed=epoch))
        assert cache.filled.all()

    def test_unknown_rows_are_no_neighbours(self):
        cache = EmbeddingCache(300, 8)
        cache.update(torch.arange(100), random_rows(100))
        sampler = sampler_of(cache, Neighbours(2), coverage="free", unknown_share=0.1)
        for batch in sampler:
            assert sum(sample >= 100 for sample in batch) == 2

    def test_a_share_outside_its_range_is_refused(self):
        with pytest.raises(ParameterError, match="unknown_share"):
            sampler_of(filled_cache(50), Random(), unknown_share=0)


class TestFill:
    def loader(self, size=50, **options):
        data = TensorDataset(random_rows(size, 6))
        return DataLoader(IndexedDataset(data), batch_size=8, **options)

    def test_one_pass_embeds_every_sample(self):
        cache, model = EmbeddingCache(50, 3), torch.nn.Linear(6, 3)
        seen = []
        added = cache.fill(
            lambda batch: model(batch[0]), self.loader(), progress=lambda *c: seen.append(c)
        )
        assert added == 50
        assert cache.filled.all()
        assert seen[0] == (8, 50)
        assert seen[-1] == (50, 50)
        rows = torch.nn.functional.normalize(model(random_rows(50, 6)))
        assert torch.allclose(cache.get(range(50)).float(), rows, atol=1e-3)

    def test_an_interrupted_pass_continues_where_it_was(self):
        cache, calls = EmbeddingCache(50, 6), []

        def embed(batch):
            calls.append(len(batch[0]))
            if len(calls) == 4:
                raise KeyboardInterrupt
            return batch[0]

        with pytest.raises(KeyboardInterrupt):
            cache.fill(embed, self.loader())
        assert int(cache.filled.sum()) == 24
        assert cache.fill(embed, self.loader()) == 26
        assert len(calls) == 4 + 4

    def test_two_towers_are_filled_by_pairs(self):
        cache = EmbeddingCache(50, 6, towers=2)
        cache.fill(lambda batch: (batch[0], -batch[0]), self.loader())
        assert torch.equal(cache.get(range(50)), -cache.get(range(50), tower=1))

    def test_a_list_is_a_pair_too(self):
        cache = EmbeddingCache(50, 6, towers=2)
        cache.fill(lambda batch: [batch[0], -batch[0]], self.loader())
        assert torch.equal(cache.get(range(50)), -cache.get(range(50), tower=1))

    @pytest.mark.parametrize(
        ("embed", "error", "message"),
        [
            (lambda batch: batch[0].tolist(), ArgumentTypeError, "embed must return"),
            (lambda batch: batch[0].numpy(), ArgumentTypeError, "ndarray of shape"),
            (lambda batch: None, ArgumentTypeError, "got None"),
            (lambda batch: batch[0][:5], ShapeError, r"shape \(5, 6\) for 8 ids"),
        ],
        ids=["rows", "array", "nothing", "too few"],
    )
    def test_what_embed_returned_is_named_if_it_is_no_embedding(self, embed, error, message):
        with pytest.raises(error, match=message):
            EmbeddingCache(50, 6).fill(embed, self.loader())

    def test_repeated_ids_are_counted_once(self):
        cache, seen = EmbeddingCache(4, 3), []
        batches = [(torch.tensor([0, 0, 1]), random_rows(3, 3))]
        assert cache.fill(lambda z: z, batches, progress=lambda *c: seen.append(c)) == 2
        assert seen == [(2, 4)]

    def test_a_bar_of_tqdm_follows_the_known_rows(self, monkeypatch):
        bars = []

        class Bar:
            def __init__(self, *, total, initial, **options):
                self.total, self.n, self.closed = total, initial, False
                bars.append(self)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                self.closed = True

            def update(self, count):
                self.n += count

        monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=Bar))
        cache = EmbeddingCache(50, 6)
        cache.update(range(8), random_rows(8, 6))
        assert cache.fill(lambda batch: batch[0], self.loader()) == 42
        assert [(bar.total, bar.n, bar.closed) for bar in bars] == [(50, 50, True)]
        cache.fill(lambda batch: batch[0], self.loader(), progress=False)
        assert len(bars) == 1

    def test_without_tqdm_nothing_is_shown(self, monkeypatch, capfd):
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        assert EmbeddingCache(50, 6).fill(lambda batch: batch[0], self.loader()) == 50
        assert capfd.readouterr() == ("", "")

    def test_a_loader_without_ids_is_named(self):
        with pytest.raises(ArgumentTypeError, match="loader must yield"):
            EmbeddingCache(50, 6).fill(lambda z: z, DataLoader(random_rows(50, 6), batch_size=8))


@pytest.mark.parametrize("coverage", ["epoch", "stream"])
def test_rows_used_in_place_give_the_batches_of_copied_rows(monkeypatch, coverage):
    def batches():
        guarded = NoNearDuplicates(Neighbours(), 0.9)
        guarded.unkept = 1  # so that the end of the epoch is not warned about
        return list(sampler_of(paired_cache(400), guarded, coverage=coverage, pool_size=150))

    in_place = batches()
    monkeypatch.setattr("eigenbatch.sampling.selection.COPIED", 0)
    assert in_place == batches()
