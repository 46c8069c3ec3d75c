"""A greedy cover: exact counts, the same rows in any order and more of them for a larger quota, and a good value."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.select.balance.cover import cover
from curate.core.hashing import key_words, make_key


def rows_of(count: int, seed: int, groups: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((groups, 8))
    vectors = centres[rng.integers(0, groups, count)] + 0.3 * rng.standard_normal((count, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), key_words([make_key("cover", str(number)) for number in range(count)])


def value(vectors: np.ndarray, taken: np.ndarray) -> float:
    return float((vectors @ vectors[taken].T).max(1).mean())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(0, 100), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_neither_order_nor_quota_change_what_is_taken(count: int, quota: int, most_rows: int, seed: int) -> None:
    vectors, words = rows_of(count, seed)
    taken = cover(vectors, words, quota, 7, most_rows)
    assert len(set(taken.tolist())) == len(taken) == min(quota, count)
    order = np.random.default_rng(seed).permutation(count)
    assert set(order[cover(vectors[order], words[order], quota, 7, most_rows)]) == set(taken)
    assert set(taken) <= set(cover(vectors, words, quota + 3, 7, most_rows))


def test_it_covers_better_than_chance_and_nearly_as_well_as_plain_greedy() -> None:
    vectors, words = rows_of(400, 0, groups=12)
    best, similar = np.full(400, -1.0), vectors @ vectors.T
    greedy = []
    for _ in range(30):
        gains = np.maximum(similar, best).sum(1)
        gains[greedy] = -np.inf
        greedy.append(int(gains.argmax()))
        best = np.maximum(best, similar[greedy[-1]])
    chance = max(value(vectors, np.random.default_rng(seed).choice(400, 30, replace=False)) for seed in range(20))
    plain, ours = value(vectors, np.array(greedy)), value(vectors, cover(vectors, words, 30, 0))
    assert ours > chance
    assert plain - ours < 0.3 * (plain - chance)


def test_every_group_is_found_once_there_are_rows_enough() -> None:
    """Sizes are 200, 50, 25, 12, 6, 3: a random sample of 12 rows misses the last two more often than not."""
    groups = np.repeat(np.arange(6), [200, 50, 25, 12, 6, 3])
    vectors = np.eye(6, dtype=np.float32)[groups]
    _, words = rows_of(len(groups), 0)
    assert set(groups[cover(vectors, words, 12, 0)]) == set(range(6))
