from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.hashing import keys_of_words
from curate.release.keys import Keys, words_of

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40)
"""Few different keys, of which many share their first half."""


def words(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.uint64).reshape(-1, 2)


@given(PAIRS, PAIRS)
def test_keys_are_found_with_their_lines(held: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    keys = Keys(words(held))
    assert len(keys) == len(set(held))
    for pair, place in zip(asked, keys.find(words(asked)).tolist(), strict=True):
        lines = [line for line, other in enumerate(held) if other == pair]
        found = [] if place < 0 else sorted(keys.order[keys.edges[place] : keys.edges[place + 1]].tolist())
        assert found == lines


@given(PAIRS, st.integers(0, 5))
def test_words_of_a_column(held: list[tuple[int, int]], skipped: int) -> None:
    keys = pa.chunked_array([keys_of_words(words(held)), keys_of_words(words(held))], pa.string())
    assert np.array_equal(words_of(keys.slice(skipped)), words([*held, *held])[skipped:])


@pytest.mark.parametrize("keys", [["ab"], ["0" * 33], ["x" * 32], [None, "0" * 32], [None]])
def test_what_is_not_a_key_is_an_error(keys: list[str | None]) -> None:
    with pytest.raises(ValueError, match=r"."):
        words_of(pa.chunked_array([keys], pa.string()))


@given(PAIRS, PAIRS)
def test_keys_that_others_lack(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    lacking = sorted(set(first) - set(second))
    assert Keys(words(first)).without(Keys(words(second))) == keys_of_words(words(lacking))
