"""A greedy cover: exact counts, the same rows in any order and more of them for a larger quota, and a good value."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import key_words, make_key
from curate.select.cover import CANDIDATES, NO_DIRECTION, cover, parts, sketches


def rows_of(count: int, seed: int, groups: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((groups, 8))
    vectors = centres[rng.integers(0, groups, count)] + 0.3 * rng.standard_normal((count, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), key_words([make_key("cover", str(number)) for number in range(count)])


def covered(
    vectors: np.ndarray, words: np.ndarray, quota: int, most_rows: int = 1024, candidates: int = CANDIDATES
) -> np.ndarray:
    pieces = parts(words, quota, 7, most_rows)
    return np.concatenate([part[cover(vectors[part], words[part], share, 7, candidates)] for part, share in pieces])


def value(vectors: np.ndarray, taken: np.ndarray) -> float:
    return float((vectors @ vectors[taken].T).max(1).mean())


@given(st.integers(1, 90), st.integers(0, 100), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_neither_order_nor_quota_change_what_is_taken(count: int, quota: int, most_rows: int, seed: int) -> None:
    vectors, words = rows_of(count, seed)
    taken = covered(vectors, words, quota, most_rows)
    assert len(set(taken.tolist())) == len(taken) == min(quota, count)
    order = np.random.default_rng(seed).permutation(count)
    assert set(order[covered(vectors[order], words[order], quota, most_rows)]) == set(taken)
    assert set(taken) <= set(covered(vectors, words, quota + 3, most_rows))


def test_it_covers_better_than_chance_and_nearly_as_well_as_plain_greedy() -> None:
    vectors, words = rows_of(400, 0, groups=12)
    best, similar = np.full(400, -1.0), vectors @ vectors.T
    greedy = []
    for _ in range(30):
        gains = np.maximum(similar, best).sum(1)
        gains[greedy] = -np.inf
        greedy.append(int(gains.argmax()))
        best = np.maximum(best, similar[greedy[-1]])
    draws = [np.random.default_rng(seed).choice(400, 30, replace=False) for seed in range(20)]
    chance = [value(vectors, draw) for draw in draws]
    plain, many = value(vectors, np.array(greedy)), value(vectors, covered(vectors, words, 30))
    few = value(vectors, covered(vectors, words, 30, candidates=2))
    assert np.mean(chance) < few < many < plain
    assert plain - many < 0.2 * (plain - np.mean(chance))
    assert few - np.mean(chance) > 0.2 * (plain - np.mean(chance))


def test_every_group_is_found_once_there_are_rows_enough() -> None:
    """Sizes are 200, 50, 25, 12, 6, 3: a random sample of 12 rows misses the last two more often than not."""
    groups = np.repeat(np.arange(6), [200, 50, 25, 12, 6, 3])
    vectors = np.eye(6, dtype=np.float32)[groups]
    _, words = rows_of(len(groups), 0)
    assert set(groups[covered(vectors, words, 12)]) == set(range(6))


@given(st.integers(2, 60), st.sampled_from([1e-6, 1.0, 1e6]), st.floats(0, 50), st.integers(0, 2**32 - 1))
def test_neither_threads_nor_a_shift_nor_a_scale_count(count: int, scale: float, shift: float, seed: int) -> None:
    """Whole numbers are added without error, in any order; only differences count."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-500, 500, (count, 7)).astype(np.float32)
    words = rows_of(count, seed)[1]
    taken = cover(points, words, count // 2, 0)
    columns = rng.permutation(7)
    assert np.array_equal(cover(points[:, columns], words, count // 2, 0), taken)
    moved = (points + np.float32(np.floor(shift))) * np.float32(2.0 ** np.floor(np.log2(scale)))
    assert np.array_equal(cover(moved, words, count // 2, 0), taken)


def test_equal_rows_and_rows_without_a_direction() -> None:
    words = rows_of(9, 0)[1]
    assert len(set(cover(np.ones((9, 3), np.float32), words, 4, 0).tolist())) == 4
    vectors = np.zeros((9, 3), np.float32)
    vectors[::2] = np.nan
    assert set(cover(vectors, words, 4, 0).tolist()) == {1, 3, 5, 7}
    assert set(cover(vectors, words, 5, 0).tolist()) > {1, 3, 5, 7}
    assert len(set(cover(np.full((9, 3), np.nan, np.float32), words, 3, 0).tolist())) == 3


def test_sketches_keep_distances_and_do_not_depend_on_the_rows_beside_them() -> None:
    vectors = np.random.default_rng(3).standard_normal((300, 1280)).astype(np.float32)
    vectors[100:] += 2 * vectors[:1]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = sketches(vectors).astype(np.float64)
    scale = (found**2).sum(1).mean()
    error = found @ found.T / scale - vectors @ vectors.T
    assert np.abs(error).mean() < 0.08 and abs(error.mean()) < 0.03
    assert np.array_equal(np.concatenate([sketches(vectors[:7]), sketches(vectors[7:])]), found)
    assert np.array_equal(sketches(vectors[::-1])[::-1], found)
    vectors[4, 9] = np.nan
    assert (sketches(vectors)[4] == NO_DIRECTION).all() and np.array_equal(sketches(vectors)[5:], found[5:])
    assert found.min() > NO_DIRECTION
