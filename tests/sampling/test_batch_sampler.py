import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_toys import LeastSimilar, Newest, Recording, filled_cache, random_rows

from eigenbatch.core.spectrum import participation_ratio
from eigenbatch.errors import ArgumentTypeError, NumericalWarning, ParameterError, ShapeError
from eigenbatch.sampling import epoch_pass
from eigenbatch.sampling.cache import EmbeddingCache
from eigenbatch.sampling.errors import StateError
from eigenbatch.sampling.sampler import SpectralBatchSampler
from eigenbatch.sampling.selection import Selection
from eigenbatch.selectors.constraints import OnePerGroup
from eigenbatch.selectors.duplicates import NoNearDuplicates
from eigenbatch.selectors.greedy import Greedy
from eigenbatch.selectors.neighbours import Neighbours
from eigenbatch.selectors.random import Random
from returns import WRONG

COVERAGES = ("epoch", "stream", "free")


def flat(batches):
    return [i for batch in batches for i in batch]


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    extra=st.integers(0, 30),
    drop_last=st.booleans(),
    coverage=st.sampled_from(COVERAGES),
)
def test_exactly_len_batches_of_distinct_ids_come_out(size, batch_size, extra, drop_last, coverage):
    batch_size = min(batch_size, size)
    sampler = SpectralBatchSampler(
        filled_cache(size),
        batch_size,
        Newest(),
        pool_size=batch_size + extra,
        coverage=coverage,
        drop_last=drop_last,
    )
    batches = list(sampler)
    assert (
        len(batches)
        == len(sampler)
        == (size // batch_size if drop_last else -(-size // batch_size))
    )
    assert all(len(set(batch)) == len(batch) for batch in batches)
    full = len(batches) if drop_last or coverage != "epoch" else size // batch_size
    assert all(len(batch) == batch_size for batch in batches[:full])
    if coverage == "epoch":
        assert len(set(flat(batches))) == len(flat(batches))
        if not drop_last:
            assert sorted(flat(batches)) == list(range(size))


def test_ids_are_plain_integers():
    batches = list(SpectralBatchSampler(filled_cache(10), 4, Random()))
    assert {type(i) for i in flat(batches)} == {int}


def test_streams_reach_every_sample_although_an_epoch_does_not_divide():
    sampler = SpectralBatchSampler(filled_cache(25), 10, Newest(), pool_size=20, coverage="stream")
    seen = []
    for epoch in range(10):  # 20 of 25 samples each
        sampler.set_epoch(epoch)
        seen += flat(sampler)
    counts = torch.bincount(torch.tensor(seen), minlength=25)
    assert len(seen) == 200
    assert counts.min() >= 8 - 2
    assert counts.max() <= 8 + 1


@pytest.mark.parametrize("coverage", COVERAGES)
def test_batches_depend_on_seed_and_epoch_only(coverage):
    def batches(seed, epoch):
        sampler = SpectralBatchSampler(filled_cache(60), 8, Random(), coverage=coverage, seed=seed)
        torch.manual_seed(torch.seed() % 1000)  # the global generator has no say
        sampler.set_epoch(epoch)
        return list(sampler)

    first = batches(1, 2)
    assert first == batches(1, 2)
    assert first != batches(1, 3)
    assert first != batches(2, 2)


@pytest.mark.parametrize("coverage", COVERAGES)
def test_returning_to_an_epoch_repeats_it(coverage):
    sampler = SpectralBatchSampler(filled_cache(60), 8, Random(), coverage=coverage)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert list(sampler) == second
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_the_global_generator_is_neither_read_nor_seeded():
    sampler = SpectralBatchSampler(filled_cache(60), 8, Random())
    before = torch.random.get_rng_state()
    list(sampler)
    assert torch.equal(torch.random.get_rng_state(), before)


class Seeds(Random):
    """Random rows, and a note of every generator."""

    def __init__(self):
        self.seen = []

    def __call__(self, pool, batch_size, *, generator=None):
        self.seen.append(generator.initial_seed())
        return super().__call__(pool, batch_size, generator=generator)


def test_every_batch_has_a_generator_of_its_own():
    selector = Seeds()
    for seed in range(2):
        sampler = SpectralBatchSampler(
            filled_cache(60), 8, selector, coverage="free", pool_size=20, seed=seed
        )
        for epoch in range(2):
            sampler.set_epoch(epoch)
            list(sampler)
    assert len(set(selector.seen)) == len(selector.seen) == 2 * 2 * len(sampler)


def test_set_epoch_reaches_the_batches_through_the_inner_sampler():
    sampler, other = (SpectralBatchSampler(filled_cache(60), 8, Random()) for _ in range(2))
    sampler.set_epoch(5)
    other.sampler.set_epoch(5)
    assert other.epoch == 5
    assert list(other) == list(sampler)


def test_free_coverage_offers_the_whole_pool_to_the_selector():
    selector, cache = Recording(), filled_cache(100)
    sampler = SpectralBatchSampler(cache, 8, selector, pool_size=40, coverage="free")
    batches = list(sampler)
    assert [tuple(pool.shape) for pool in selector.pools] == [(40, 8)] * len(batches)


def test_selection_raises_the_effective_rank_where_samples_may_be_left_out():
    cache = EmbeddingCache(1000, 16)
    skewed = random_rows(1000, 16) * torch.arange(1, 17) ** -1.0
    cache.update(torch.arange(1000), skewed)

    def mean_rank(selector):
        sampler = SpectralBatchSampler(cache, 50, selector, coverage="free")
        ranks = [participation_ratio(cache.get(batch)) for batch in sampler]
        return sum(ranks) / len(ranks)

    assert mean_rank(LeastSimilar()) > 1.5 * mean_rank(Random())


def test_no_selector_beats_the_data_on_average_when_every_sample_is_used():
    """tr(S^2) is convex: its mean over the batches is at least that of the whole data."""
    cache = EmbeddingCache(1000, 16, dtype=torch.float64)
    skewed = random_rows(1000, 16).double() * torch.arange(1, 17) ** -1.0
    cache.update(torch.arange(1000), skewed)
    for selector in (LeastSimilar(), Random(), Newest()):
        sampler = SpectralBatchSampler(cache, 50, selector)
        inverse = [1 / participation_ratio(cache.get(batch)) for batch in sampler]
        mean_inverse = sum(inverse) / len(inverse)
        assert mean_inverse >= 1 / participation_ratio(cache.get(range(1000)))


def test_the_end_of_an_epoch_is_not_left_with_the_worst():
    """Over-represented at most twice, so tr(S^2) at most fourfold; without that bound, R is 1."""
    cache, rows = EmbeddingCache(2000, 32), random_rows(2000, 32)
    rows[:500] = rows[0] + 0.02 * rows[:500]  # a quarter of the data points one way
    cache.update(torch.arange(2000), rows)
    sampler = SpectralBatchSampler(cache, 50, LeastSimilar())
    ranks = [participation_ratio(cache.get(batch)) for batch in sampler]
    assert min(ranks) > participation_ratio(cache.get(range(2000))) / 4
    assert max(ranks) > 1.5 * participation_ratio(cache.get(range(2000)))


class TestUnknownSamples:
    def test_an_empty_cache_gives_a_plain_shuffled_epoch(self):
        selector = Recording()
        sampler = SpectralBatchSampler(EmbeddingCache(50, 4), 10, selector)
        batches = list(sampler)
        assert sorted(flat(batches)) == list(range(50))
        assert selector.pools == []
        assert sampler.last.unknown == 10
        assert math.isnan(sampler.last.participation_ratio)
        assert math.isnan(sampler.last.mean_age)

    def test_unknown_samples_go_first_and_the_selector_fills_the_rest(self):
        cache, selector = EmbeddingCache(100, 4), Recording()
        cache.update(torch.arange(97), random_rows(97, 4))
        sampler = SpectralBatchSampler(cache, 10, selector, pool_size=100, coverage="free")
        first = next(iter(sampler))
        assert {97, 98, 99} <= set(first)
        assert len(selector.pools[0]) == 97
        assert sampler.last.unknown == 3

    def test_a_batch_is_random_while_fewer_than_a_batch_is_known(self):
        cache, selector = EmbeddingCache(12, 4), Recording()
        cache.update(torch.arange(9), random_rows(9, 4))
        sampler = SpectralBatchSampler(cache, 10, selector, pool_size=12, coverage="free")
        assert {9, 10, 11} <= set(next(iter(sampler)))
        assert selector.pools == []

    def test_exploration_reaches_every_sample_of_a_free_pool(self):
        cache = EmbeddingCache(200, 4)
        sampler = SpectralBatchSampler(cache, 10, Newest(), coverage="free")
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for batch in sampler:
                cache.update(batch, random_rows(10, 4))
        assert cache.filled.all()


class TestStatistics:
    def test_before_and_after_are_those_of_the_cached_rows(self):
        cache = filled_cache(500, 16)
        sampler = SpectralBatchSampler(cache, 50, LeastSimilar(), coverage="free")
        for number, batch in enumerate(sampler):
            last = sampler.last
            assert (last.epoch, last.batch, last.ids.tolist()) == (0, number, batch)
            assert last.participation_ratio == pytest.approx(participation_ratio(cache.get(batch)))
            assert last.baseline_participation_ratio < last.participation_ratio
            assert last.seconds > 0
            assert last.unknown == 0

    def test_the_mean_age_counts_updates(self):
        cache = filled_cache(20)
        cache.update(torch.arange(10), random_rows(10))
        sampler = SpectralBatchSampler(cache, 20, Random())
        next(iter(sampler))
        assert sampler.last.mean_age == 0.5

    def test_statistics_are_those_of_the_batch_asked_for_although_later_ones_were_drawn(self):
        sampler = SpectralBatchSampler(filled_cache(60), 6, LeastSimilar(), coverage="free")
        expected = []
        for _ in sampler:
            expected.append(sampler.last.scalars())
        assert [sampler.statistics(batch) for batch in range(10)] == expected
        assert sampler.statistics(3) == {}  # asked for a later one since
        assert sampler.statistics(10) == {}

    def test_the_embeddings_that_statistics_need_are_few(self, monkeypatch):
        monkeypatch.setattr(epoch_pass, "NUMBERS", 3 * 2 * 6 * 8)  # of three batches
        cache = EmbeddingCache(60, 8, towers=2)
        cache.update(torch.arange(60), random_rows(60), random_rows(60, seed=1))
        sampler = SpectralBatchSampler(cache, 6, Random(), coverage="free")
        expected = []
        for _ in sampler:
            expected.append(sampler.last.scalars())
            held = [one for one in sampler._pass._statistics.values() if isinstance(one, Selection)]
            assert sum(one.rows.untyped_storage().nbytes() for one in held) <= 3 * 6 * 8 * 4
        assert [sampler.statistics(batch) for batch in range(10)] == expected

    def test_batches_repeated_after_a_resume_have_the_statistics_of_their_selection(self):
        sampler = SpectralBatchSampler(filled_cache(60), 6, LeastSimilar(), coverage="free")
        drawn = iter(sampler)
        for _ in range(5):
            next(drawn)
        state = sampler.state_dict(consumed=3)
        for _ in range(2):  # also when the resumed sampler is saved and resumed again
            resumed = SpectralBatchSampler(filled_cache(60), 6, LeastSimilar(), coverage="free")
            resumed.load_state_dict(state)
            state = resumed.state_dict(consumed=3)
        list(resumed)
        for batch in (3, 4):
            assert resumed.statistics(batch) == sampler.statistics(batch) != {}
        state["statistics"] = {3: {"sampler/seconds": "soon"}}
        with pytest.raises(StateError, match="statistics"):
            resumed.load_state_dict(state)

    def test_scalars_are_plain_numbers_under_one_prefix(self):
        sampler = SpectralBatchSampler(filled_cache(40), 8, Random())
        next(iter(sampler))
        scalars = sampler.last.scalars()
        assert all(name.startswith("sampler/") for name in scalars)
        assert {type(value) for value in scalars.values()} <= {float, int}


class TestShards:
    @pytest.mark.parametrize("coverage", COVERAGES)
    @pytest.mark.parametrize("drop_last", [True, False])
    def test_shards_are_disjoint_equal_parts_of_the_batch_of_one_process(self, coverage, drop_last):
        def batches(rank, replicas):
            return list(
                SpectralBatchSampler(
                    filled_cache(50),
                    12,
                    Random(),
                    pool_size=30,
                    coverage=coverage,
                    drop_last=drop_last,
                    rank=rank,
                    num_replicas=replicas,
                )
            )

        whole = batches(0, 1)
        shards = [batches(rank, 2) for rank in range(2)]
        assert [a + b for a, b in zip(*shards, strict=True)] == whole
        assert all(len(a) == len(b) for a, b in zip(*shards, strict=True))

    def test_no_process_gets_all_that_was_seated_first(self):
        cache = EmbeddingCache(200, 4)
        cache.update(torch.arange(100), random_rows(100, 4))
        sampler = SpectralBatchSampler(cache, 20, Random(), pool_size=20, coverage="free")
        unknown = [[i >= 100 for i in batch] for batch in sampler]
        first_half = sum(sum(batch[:10]) for batch in unknown)
        second_half = sum(sum(batch[10:]) for batch in unknown)
        assert 0.5 < first_half / second_half < 2  # about 50 each; 100 to 0 without a shuffle

    def test_a_short_last_batch_is_split_as_evenly_as_it_goes(self):
        last = [
            list(
                SpectralBatchSampler(
                    filled_cache(17), 6, Random(), drop_last=False, rank=rank, num_replicas=3
                )
            )[-1]
            for rank in range(3)
        ]
        assert sorted(map(len, last)) == [1, 2, 2]

    def test_a_last_batch_that_cannot_be_split_is_refused(self):
        with pytest.raises(ShapeError, match="1 samples for 2 processes: use drop_last=True"):
            SpectralBatchSampler(
                filled_cache(13), 6, Random(), drop_last=False, rank=0, num_replicas=2
            )


class Fixed:
    def __init__(self, *indices):
        self.indices = indices

    def __call__(self, pool, batch_size, *, generator=None):
        return torch.tensor(self.indices)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"batch_size": 21}, ShapeError, "batch_size is 21 but the cache has 20 samples"),
            ({"batch_size": 0}, ParameterError, "batch_size must be at least 1, got 0"),
            ({"pool_size": 3}, ShapeError, "pool_size is 3 but batch_size is 4"),
            ({"coverage": "all"}, ParameterError, "coverage must be one of"),
            ({"seed": -1}, ParameterError, "seed must be at least 0, got -1"),
            ({"rank": 0}, ParameterError, "both num_replicas and rank"),
            ({"rank": 2, "num_replicas": 2}, ParameterError, "rank must be in 0 ... 1, got 2"),
            ({"rank": 0, "num_replicas": 3}, ShapeError, "it is the global batch"),
        ],
    )
    def test_a_sampler_that_cannot_be_is_refused(self, arguments, error, text):
        with pytest.raises(error, match=text):
            SpectralBatchSampler(
                **{"cache": filled_cache(20), "batch_size": 4, "selector": Random()} | arguments
            )

    def test_a_negative_epoch_is_refused(self):
        sampler = SpectralBatchSampler(filled_cache(20), 4, Random())
        with pytest.raises(ParameterError, match="epoch must be at least 0, got -1"):
            sampler.set_epoch(-1)
        assert sampler.epoch == 0

    @pytest.mark.parametrize("returned", WRONG.values(), ids=WRONG)
    def test_a_selector_that_breaks_its_contract_is_told_what_to_return(self, returned):
        class Wrong:
            def __call__(self, pool, batch_size, *, generator=None):
                return returned

        sampler = SpectralBatchSampler(filled_cache(20), 3, Wrong(), pool_size=20, coverage="free")
        with pytest.raises(
            (ArgumentTypeError, ShapeError, ParameterError),
            match="must return 3 distinct indices below 20 as a LongTensor, but Wrong returned",
        ):
            next(iter(sampler))
        assert sampler.state_dict()["consumed"] == 0


class SameParity:
    """Samples of the parity of the oldest: needs to know who the rows are."""

    def bind(self, ids):
        parity = ids % 2
        return Fixed(*(parity == parity[0]).nonzero().squeeze(1)[:4].tolist())

    def __call__(self, pool, batch_size, *, generator=None):
        raise AssertionError("not bound")


def test_a_selector_that_needs_to_know_the_samples_is_told():
    sampler = SpectralBatchSampler(filled_cache(100), 4, SameParity(), coverage="free")
    assert all(len({i % 2 for i in batch}) == 1 for batch in sampler)


def test_a_forgotten_cache_update_is_said_once_after_an_epoch(caplog):
    sampler = SpectralBatchSampler(EmbeddingCache(40, 4), 10, Greedy())
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    said = [record.message for record in caplog.records if record.name == "eigenbatch"]
    assert len(said) == 1
    assert "call cache.update(ids, z)" in said[0]


def test_a_forgotten_set_epoch_is_said_once(caplog):
    sampler = SpectralBatchSampler(filled_cache(40), 12, Greedy(), drop_last=True)
    passes = [list(sampler) for _ in range(3)]
    assert passes[0] == passes[1]
    assert caplog.text.count("epoch 0 begins a second time") == 1
    resumed = SpectralBatchSampler(filled_cache(40), 12, Greedy(), drop_last=True)
    caplog.clear()
    next(iter(resumed))
    resumed.load_state_dict(resumed.state_dict(1))
    list(resumed)
    resumed.set_epoch(1)
    list(resumed)
    assert not caplog.text


def test_random_batches_and_updated_caches_are_not_warned_about(caplog):
    cache = EmbeddingCache(40, 4)
    for selector in (Random(), Greedy()):
        sampler = SpectralBatchSampler(cache, 10, selector)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for ids in sampler:
                cache.update(ids, torch.randn(10, 4))
    list(SpectralBatchSampler(EmbeddingCache(40, 4), 10, Random()))
    assert not caplog.records


@pytest.mark.parametrize("wrap", [lambda rule: rule, lambda rule: NoNearDuplicates(rule, 0.9)])
def test_groups_that_do_not_fit_the_data_are_refused_before_training(wrap):
    cache = EmbeddingCache(20, 4)
    with pytest.raises(ShapeError, match="groups has 19 entries, but the data set 20 samples"):
        SpectralBatchSampler(cache, 5, wrap(OnePerGroup(Random(), torch.arange(19))))
    few = torch.arange(20) % 4
    with pytest.raises(ShapeError, match="batches of 5 need as many groups, there are 4"):
        SpectralBatchSampler(cache, 5, wrap(OnePerGroup(Random(), few)), coverage="free")
    filling = OnePerGroup(Random(), few, shortfall="fill")
    for selector, coverage in [(filling, "free"), (OnePerGroup(Random(), few), "epoch")]:
        assert len(SpectralBatchSampler(cache, 5, wrap(selector), coverage=coverage)) == 4


@pytest.mark.filterwarnings("ignore:the batch has an effective rank")  # of overdue samples
@pytest.mark.parametrize("coverage", COVERAGES)
def test_a_literal_search_gives_short_batches_unless_every_sample_must_be_used(coverage):
    literal = Greedy(window=(2.0, 3.0), literal=True)
    sampler = SpectralBatchSampler(filled_cache(80), 20, literal, coverage=coverage)
    sizes = [len(set(batch)) for batch in sampler]
    assert all(size < 20 for size in sizes) if coverage == "free" else sizes == [20] * 4


def test_samples_left_out_by_drop_last_do_not_depend_on_the_embeddings():
    cache = filled_cache(70)
    left_out = []
    for selector in (Random(), Greedy(), Neighbours(1)):
        sampler = SpectralBatchSampler(cache, 20, selector)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            left_out.append(set(range(70)) - set(flat(sampler)))
    assert left_out[:3] == left_out[3:6] == left_out[6:]
    assert all(len(ids) == 10 for ids in left_out)
    assert left_out[0] != left_out[1] != left_out[2]


def test_what_was_made_in_inference_mode_is_used_outside():
    with torch.inference_mode():
        cache = filled_cache(40)
        sampler = SpectralBatchSampler(cache, 10, Greedy(), coverage="free")
        next(iter(sampler))
    cache.update(torch.arange(10), random_rows(10, seed=1))
    assert len(next(iter(sampler))) == 10


def test_a_sampler_begun_or_saved_in_inference_mode_goes_on_outside():
    begun = SpectralBatchSampler(filled_cache(40), 10, Greedy())
    batches = iter(begun)
    with torch.inference_mode():
        next(batches)
        state = begun.state_dict()
    assert len(list(batches)) == 3
    resumed = SpectralBatchSampler(filled_cache(40), 10, Greedy())
    with torch.inference_mode():
        resumed.load_state_dict(state)
    assert len(list(resumed)) == 3


def test_a_rule_is_kept_or_named_where_only_one_batch_is_known():
    groups, cache = torch.arange(40) // 2, filled_cache(40)
    rule = OnePerGroup(Random(), groups)
    sampler = SpectralBatchSampler(cache, 10, rule, coverage="free", pool_size=10)
    with pytest.raises(ShapeError, match="one row per group leaves"):
        list(sampler)
    with pytest.warns(NumericalWarning, match="filled at random"):
        batches = list(SpectralBatchSampler(cache, 10, rule, pool_size=10))
    assert rule.unkept == sum(len(groups[torch.tensor(one)].unique()) < 10 for one in batches)
