import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import key_words, make_key
from distill.data.order import epoch_order

counts = st.lists(st.integers(1, 7), min_size=1, max_size=9)


def order_of(sizes: list[int], *, seed: int = 0, epoch: int = 0, lanes: int = 3, window_shards: int = 2):
    shards = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    keys = key_words([make_key("t", f"{shard}/{row}") for shard, row in zip(shards, rows, strict=True)])
    order = epoch_order(keys, shards, rows, seed=seed, epoch=epoch, lanes=lanes, window_shards=window_shards)
    return order, shards


@given(counts, st.integers(0, 3), st.integers(0, 3), st.integers(1, 12), st.integers(1, 4))
def test_every_sample_once(sizes, seed, epoch, lanes, window_shards):
    order, _ = order_of(sizes, seed=seed, epoch=epoch, lanes=lanes, window_shards=window_shards)
    assert sorted(order.tolist()) == list(range(sum(sizes)))


@given(st.lists(st.just(5), min_size=2, max_size=12), st.integers(1, 4), st.integers(1, 3))
def test_few_tars_are_in_use_at_once(sizes, lanes, window_shards):
    order, shards = order_of(sizes, lanes=lanes, window_shards=window_shards)
    first = {shard: int(np.argmax(shards[order] == shard)) for shard in range(len(sizes))}
    last = {shard: int(np.flatnonzero(shards[order] == shard)[-1]) for shard in range(len(sizes))}
    in_use = [sum(first[s] <= place <= last[s] for s in first) for place in range(len(order))]
    assert max(in_use) <= lanes * window_shards


def test_epochs_and_seeds_differ_and_repeat():
    sizes = [10] * 6
    same, _ = order_of(sizes, seed=1, epoch=2)
    assert np.array_equal(same, order_of(sizes, seed=1, epoch=2)[0])
    assert not np.array_equal(same, order_of(sizes, seed=1, epoch=3)[0])
    assert not np.array_equal(same, order_of(sizes, seed=2, epoch=2)[0])


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_lanes_take_turns(lanes):
    order, shards = order_of([8] * 4, lanes=lanes, window_shards=1)
    for start in range(0, len(order), lanes):
        assert len(set(shards[order[start : start + lanes]])) == lanes
