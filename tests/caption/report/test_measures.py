from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.caption.report.measures import SEGMENT, Measures, Shift, shifts

WORDS = st.lists(st.sampled_from(["red", "car", "two", "dogs", "in", "the", "rain", "at", "night"]), max_size=60)


def test_variety_is_measured_within_segments() -> None:
    once = Measures.of([" ".join(f"w{number}" for number in range(SEGMENT))])
    assert (once.types, once.distinct_2, once.distinct_3) == (1000, 1, 1)
    twice = Measures.of([" ".join(f"w{number}" for number in range(SEGMENT))] * 2)
    assert twice.types == once.types  # not halved by the second text
    half = Measures.of(["a b"] * (SEGMENT // 2))
    assert half.types == 2
    assert half.distinct_2 == pytest.approx(1 / (SEGMENT // 2))  # no pair spans two texts
    assert half.distinct_3 == 0


def test_few_words_have_no_variety() -> None:
    few = Measures.of(["a red car", None])
    assert (few.types, few.distinct_2, few.texts, few.words) == (None, None, 1, 3)


def test_nothing_is_measured_of_nothing() -> None:
    none = Measures.of([None])
    assert (none.texts, none.words, none.repeated, none.loops, none.quantile(0.5)) == (0, None, None, 0, None)


def test_repetitions_and_loops_are_found() -> None:
    found = Measures.of(["a red car and " * 9, "A red car in the rain at night.", "ha ha ha"])
    assert found.loops == 1
    assert found.repeated == pytest.approx((8 / 9) / 3, abs=0.02)


@given(st.lists(WORDS, max_size=12))
def test_figures_are_in_their_ranges(texts: list[list[str]]) -> None:
    found = Measures.of([" ".join(text) for text in texts])
    assert found.texts == len(texts)
    assert found.lengths.tolist() == [len(text) for text in texts]
    for share in (found.repeated, found.distinct_2, found.distinct_3):
        assert share is None or 0 <= share <= 1
    assert found.with_word == {word: sum(word in text for text in texts) for text in texts for word in text}


@given(st.lists(WORDS, max_size=40), st.randoms())
def test_the_number_of_segments_does_not_depend_on_where_texts_end(texts: list[list[str]], random: object) -> None:
    words = [word for text in texts for word in text]
    joined, split = Measures.of([" ".join(words)]), Measures.of([" ".join(text) for text in texts])
    assert (joined.types is None) == (len(words) < SEGMENT) == (split.types is None)
    assert joined.types == split.types


def test_words_that_became_more_or_less_frequent() -> None:
    before = Measures.of(["sale boat", "sale lamp", "sale dogs", "dogs"])
    after = Measures.of(["photo of dogs", "photo with a lamp", "photo", "boat"])
    risen, fallen = shifts(before, after, 2)
    assert risen == [Shift("photo", 0, 0.75), Shift("with", 0, 0.25)]
    assert fallen == [Shift("sale", 0.75, 0), Shift("dogs", 0.5, 0.25)]
    assert shifts(before, Measures.of([]), 2) == ([], [])


def test_lengths_are_of_words_of_any_script() -> None:
    assert Measures.of(["un café noir", "貓在椅子上"]).lengths.tolist() == [3, 5]
    assert np.issubdtype(Measures.of([]).lengths.dtype, np.integer)
