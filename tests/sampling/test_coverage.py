from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from eigenbatch.sampling.coverage import Buffer, FreshPools
from eigenbatch.sampling.order import ShuffledEpochs


@st.composite
def shapes(draw):
    """Sizes of data, pool and batch that fit together."""
    size = draw(st.integers(2, 60))
    capacity = draw(st.integers(1, size))
    return size, capacity, draw(st.integers(1, capacity))


def drawn(buffer, batch_size, batches, *, prefer_newest):
    """Batches of a buffer whose guests are chosen from one end: (entered, left) for every visit."""
    entered, visits = {}, []
    for batch in range(batches):
        offer = buffer.candidates(batch, batch_size)
        ids = offer.ids.tolist()
        assert len(set(ids)) == len(ids) >= batch_size >= offer.due
        for i in ids:
            entered.setdefault(i, batch)
        rest = ids[offer.due :]
        rest = rest[::-1] if prefer_newest else rest
        taken = ids[: offer.due] + rest[: batch_size - offer.due]
        assert len(set(taken)) == batch_size
        buffer.take(taken)
        visits += [(i, entered.pop(i), batch) for i in taken]
    return visits


@given(shapes(), st.booleans())
def test_an_epoch_gives_every_sample_one_turn_within_the_waiting_bound(shape, prefer_newest):
    size, capacity, batch_size = shape
    buffer = Buffer(ShuffledEpochs(size, 0), capacity, start=2 * size, stop=3 * size)
    visits = drawn(buffer, batch_size, size // batch_size, prefer_newest=prefer_newest)
    left = buffer.candidates(0, 0).ids.tolist()
    assert sorted([i for i, _, _ in visits] + left) == list(range(size))
    longest = max(last - first + 1 for _, first, last in visits)
    assert longest <= Buffer.max_wait(capacity, batch_size)


@given(shapes(), st.booleans())
def test_a_stream_treats_all_samples_alike_within_the_same_bound(shape, prefer_newest):
    size, capacity, batch_size = shape
    buffer = Buffer(ShuffledEpochs(size, 0), capacity, start=0)
    laps = 12
    batches = laps * size // batch_size
    visits = drawn(buffer, batch_size, batches, prefer_newest=prefer_newest)
    bound = Buffer.max_wait(capacity, batch_size)
    assert max(last - first + 1 for _, first, last in visits) <= bound
    counts = Counter(i for i, _, _ in visits)
    assert max(counts.values()) - min(counts[i] for i in range(size)) <= 3


def test_the_waiting_bound_is_reached_by_the_worst_selector():
    capacity, batch_size = 100, 10
    buffer = Buffer(ShuffledEpochs(10_000, 0), capacity, start=0)
    visits = drawn(buffer, batch_size, 200, prefer_newest=True)
    waits = [last - first + 1 for _, first, last in visits]
    assert max(waits) == Buffer.max_wait(capacity, batch_size) == 1 + (100 - 10) / 5


def test_an_emptying_buffer_leaves_less_and_less_to_choice():
    buffer = Buffer(ShuffledEpochs(100, 0), 100, start=0, stop=100)
    due = []
    for batch in range(10):
        offer = buffer.candidates(batch, 10)
        buffer.take(offer.ids[:10].tolist())
        due.append(offer.due)
    assert due == [5, 6, 7, 8, 9, 9, 10, 10, 10, 10]  # 10 - floor(5 * fill^2)


def test_a_loaded_buffer_continues_like_the_one_it_was_saved_from():
    epochs = ShuffledEpochs(30, 3)
    buffer, other = (Buffer(epochs, 20, start=0) for _ in range(2))
    drawn(buffer, 5, 11, prefer_newest=True)
    other.load_state_dict(buffer.state_dict())
    expected = drawn(buffer, 5, 11, prefer_newest=True)
    assert drawn(other, 5, 11, prefer_newest=True) == expected


def test_orders_depend_on_seed_and_epoch_only_and_are_permutations():
    orders = {
        (seed, epoch): tuple(ShuffledEpochs(50, seed).order(epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 16
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    again = ShuffledEpochs(50, 2)
    again.set_epoch(3)
    assert tuple(again) == orders[2, 3]


def test_fresh_pools_are_distinct_ids_drawn_evenly():
    pools = FreshPools(ShuffledEpochs(40, 0), 10, epoch=0)
    counts = torch.zeros(40)
    for batch in range(2000):
        ids = pools.candidates(batch, 5).ids
        assert len(ids.unique()) == 10
        counts[ids] += 1
    # Each count is binomial(2000, 1/4): mean 500, standard deviation 19.4.
    assert (counts - 500).abs().max() < 5 * 19.4
