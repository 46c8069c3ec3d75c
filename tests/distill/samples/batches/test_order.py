from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import key_words, make_key, ranks, ranks_of_words
from distill.samples.batches import track
from distill.samples.batches.order import EpochOrder
from distill.samples.sources.index import Index

counts = st.lists(st.integers(0, 7), min_size=1, max_size=9).filter(any)


def samples(sizes: list[int]):
    """(keys as words, shard, row) of each sample."""
    shards = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.concatenate([np.arange(size) for size in sizes])
    return key_words([make_key("t", f"{shard}/{row}") for shard, row in zip(shards, rows, strict=True)]), shards, rows


def make_order(
    sizes: list[int], *, seed: int = 0, epoch: int = 0, lanes: int = 3, window_shards: int = 2
) -> EpochOrder:
    words, shards, rows = samples(sizes)

    def shuffled(window, number):
        places = np.flatnonzero(np.isin(shards, window))
        return places[np.argsort(ranks_of_words(seed, words[places], number, shards[places], rows[places]))]

    cut = {"lanes": lanes, "window_shards": window_shards}
    return EpochOrder(np.array(sizes), shuffled, seed=seed, epoch=epoch, **cut)


def order_of(sizes: list[int], **more):
    return make_order(sizes, **more).take(np.arange(sum(sizes))), samples(sizes)[1]


def by_definition(sizes: list[int], *, seed: int, epoch: int, lanes: int, window_shards: int):
    """The complete order, computed directly from the definition in the module's docstring."""
    words, shards, rows = samples(sizes)
    present, shard_of = np.unique(shards, return_inverse=True)
    lanes = min(lanes, len(present))
    shard_ranks = ranks(seed, [make_key("shard", str(shard)) for shard in present], epoch)
    turn = np.argsort(np.argsort(shard_ranks, kind="stable"), kind="stable")[shard_of]
    lane, window = turn % lanes, turn // lanes // window_shards
    by_lane = np.lexsort((ranks_of_words(seed, words, epoch, shards, rows), window, lane))
    lane = lane[by_lane]
    place = np.arange(len(lane)) - np.searchsorted(lane, np.arange(lanes))[lane]
    return by_lane[np.lexsort((lane, place))]


@given(counts, st.integers(0, 3), st.integers(0, 3), st.integers(1, 12), st.integers(1, 4), st.randoms())
def test_any_part_equals_that_part_of_the_complete_order(sizes, seed, epoch, lanes, window_shards, random):
    how = {"seed": seed, "epoch": epoch, "lanes": lanes, "window_shards": window_shards}
    whole, order = by_definition(sizes, **how), make_order(sizes, **how)
    assert len(order) == sum(sizes)
    assert np.array_equal(order.take(np.arange(len(order))), whole)
    some = np.array(random.sample(range(len(order)), random.randint(1, len(order))))
    assert np.array_equal(make_order(sizes, **how).take(some), whole[some])
    shards = samples(sizes)[1]
    assert [order.place(shards[sample], sample) for sample in whole[some]] == some.tolist()


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


def test_new_epochs_of_a_small_source_keep_the_order_of_a_large_one(monkeypatch):
    made = []

    def order(counts, *given, **more):
        made.append((len(counts), more["epoch"]))
        return EpochOrder(counts, *given, **more)

    monkeypatch.setattr(track, "EpochOrder", order)

    def dataset(shards: int, each: int) -> SimpleNamespace:
        words, shard, rows = samples([each] * shards)
        index = Index({"key": words, "duplicate_set": words, "shard": shard, "row": rows}, "")
        return SimpleNamespace(index=index, tars=[str(number) for number in range(shards)])

    sources = [dataset(8, 50), dataset(1, 2)]
    starts = np.cumsum([0, *(len(source.index) for source in sources)])
    mixture = SimpleNamespace(sources=sources, starts=starts)
    drawn = track.Track(
        [track.Source(mixture, number, lambda rows: rows >= 0) for number in (0, 1)], shares=[0.5, 0.5], seed=0,
        images=int(starts[-1]), lengths=lambda rows, _: np.ones_like(rows), packing=track.Packing(lookahead=2),
    )  # fmt: skip
    assert sum(1 for _ in drawn.packed(drawn.start())) == 402
    assert made.count((8, 0)) == 1
    assert sorted(epoch for shards, epoch in made if shards == 1) == list(range(101))
