"""Kernels of balance against naive references and known values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import make_key, ranks
from curate.kernels.entries import tail_count
from curate.select.balance import (
    any_probability,
    drawn_copies,
    log_missed,
    power_mean,
    rarest,
    repeat_factor,
    solve_threshold,
    take_probability,
    uniform,
)

COUNTS = st.lists(st.integers(1, 10**9), min_size=1, max_size=40).map(lambda values: np.array(values, dtype=np.int64))
TEXTS = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True).map(sorted), max_size=12)


def pairs(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(item, entry) pairs of texts given as lists of entries."""
    item = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    return item.astype(np.int64), np.array([entry for text in texts for entry in text], dtype=np.int64)


@given(TEXTS, st.lists(st.floats(0, 1), min_size=10, max_size=10))
def test_a_text_is_taken_if_any_entry_takes_it(texts: list[list[int]], chances: list[float]) -> None:
    item, entry = pairs(texts)
    found = any_probability(log_missed(np.array(chances))[entry], item, len(texts))
    assert found == pytest.approx([1 - math.prod(1 - chances[e] for e in text) for text in texts], abs=1e-12)


def test_certain_texts_are_exact_and_rare_probabilities_do_not_vanish() -> None:
    item = np.array([0, 0, 1, 1])
    assert any_probability(log_missed(np.array([1.0, 1e-9, 1e-18, 1e-18])), item, 3).tolist() == [1.0, 2e-18, 0.0]
    assert uniform(np.array([0, 2**64 - 1], dtype=np.uint64)).tolist() == [0.0, 1 - 2.0**-53]
    assert drawn_copies(np.array([1.0, 0.0]), np.array([1 - 2.0**-53, 0.0])).tolist() == [1, 0]


@given(COUNTS, st.floats(0.5, 1e9), st.floats(0.5, 1e9))
def test_a_larger_t_takes_more_of_every_entry_and_all_of_the_tail(counts: np.ndarray, t: float, u: float) -> None:
    small, large = take_probability(counts, min(t, u)), take_probability(counts, max(t, u))
    assert np.all(small <= large)
    assert np.all(small[counts <= min(t, u)] == 1)
    assert np.all(small * counts <= np.maximum(min(t, u), 1e-9) * (1 + 1e-12))


@given(COUNTS, st.floats(0.01, 0.99))
def test_the_tail_holds_its_share_as_closely_as_it_can(counts: np.ndarray, share: float) -> None:
    t = tail_count(counts, share)
    assert t in counts
    distance = {
        value: abs(counts[counts < value].sum() - share * counts.sum())
        for value in counts.tolist()
        if value > counts.min() or counts.min() == counts.max()
    }
    assert distance[t] == min(distance.values())


def test_tails_of_small_pools() -> None:
    assert tail_count(np.zeros(3, dtype=np.int64), 0.06) == 0
    assert tail_count(np.array([100] * 9 + [30, 20, 10]), 0.06) == 100
    assert tail_count(np.array([100] * 9 + [30, 20, 10]), 0.03) == 30
    assert tail_count(np.array([50, 9, 2, 2, 1, 1, 1, 1]), 0.06) == 2
    assert tail_count(np.array([5, 2, 1, 1, 1, 1]), 0.06) == 2  # not 1, which has no entries below it
    assert tail_count(np.array([7, 7, 7]), 0.06) == 7
    assert tail_count(np.array([1, 0, 1]), 0.06) == 1


@given(TEXTS)
def test_the_rarest_is_the_largest(texts: list[list[int]]) -> None:
    item, entry = pairs(texts)
    assert rarest(entry, item, len(texts), -1).tolist() == [max(text, default=-1) for text in texts]


@given(TEXTS, st.floats(0.1, 2))
def test_the_mean_count_has_the_mean_factor(texts: list[list[int]], exponent: float) -> None:
    item, entry = pairs(texts)
    counts = 3 ** np.arange(1, 11)
    stands = power_mean(counts[entry], item, len(texts), exponent)
    for text, stand in zip(texts, stands.tolist(), strict=True):
        if text:
            assert (7 / stand) ** exponent == pytest.approx(np.mean((7 / counts[text]) ** exponent))
        else:
            assert math.isnan(stand)


def test_factors_by_counts() -> None:
    counts = np.array([1, 25, 100, 400, 1600, 160_000])
    assert repeat_factor(counts, 100, 400, 0.5, 0.1, 5).tolist() == [5, 2, 1, 1, 0.5, 0.1]
    assert repeat_factor(counts, 100, 100, 1, 0, 9).tolist() == [9, 4, 1, 0.25, 1 / 16, 1 / 1600]
    assert repeat_factor(counts, 0, np.inf, 1, 0, 9).tolist() == [1] * 6


@given(COUNTS, st.data(), st.floats(0.2, 2), st.sampled_from([0.0, 0.01, 0.3]), st.integers(1, 6))
def test_the_threshold_meets_the_target(
    counts: np.ndarray, data: st.DataObject, exponent: float, least: float, most: int
) -> None:
    items = np.array(data.draw(st.lists(st.integers(0, 10**6), min_size=len(counts), max_size=len(counts))))
    items[0] += 1
    share = data.draw(st.floats(least or 1e-4, most))
    t = solve_threshold(counts, items, share * items.sum(), exponent, least, most)
    given_ = items @ repeat_factor(counts, t, t, exponent, least, most)
    assert given_ == pytest.approx(share * items.sum(), rel=1e-9)


@given(st.lists(st.tuples(st.floats(0, 6), st.floats(0, 6)), min_size=1, max_size=20), st.integers(0, 2**32))
def test_copies_are_monotone(expected: list[tuple[float, float]], seed: int) -> None:
    fewer, more = np.sort(np.array(expected), axis=1).T
    draw = np.random.default_rng(seed).random(len(expected))
    small, large = drawn_copies(fewer, draw), drawn_copies(more, draw)
    assert np.all(small <= large)
    assert np.all((np.floor(more) <= large) & (large <= np.ceil(more)))


def test_draws_have_the_expected_mean() -> None:
    draw = uniform(ranks(3, [make_key("draws", "")], np.arange(100_000)))
    assert draw.min() >= 0 and draw.max() < 1
    for expected in (0.003, 0.5, 2.7):
        copies = drawn_copies(np.full(len(draw), expected), draw)
        part = expected - math.floor(expected)
        deviation = math.sqrt(part * (1 - part) * len(draw))
        assert abs(copies.sum() - expected * len(draw)) < 4 * deviation
