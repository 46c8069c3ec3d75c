"""Phrases against a naive matcher that compares words one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.text.phrases import Phrases, normalised, normalised_all

WORDS = st.sampled_from(["a", "b", "ab", "ba", "É", "é", "犬", "ﬁ", "1"])
GLUE = st.sampled_from(
    [" ", "  ", "-", "_", ", ", "|", "\0", "\n", " - ", "\u200b", "\u00a0", "&", "' ", "\ud800", "❤️"]
)
LINES = st.lists(st.tuples(WORDS, GLUE), max_size=12).map(lambda parts: "".join(w + g for w, g in parts))


def by_words(phrases: list[str], texts: list[str], longest: bool) -> list[tuple[int, int]]:
    """(text, phrase) by comparing words at every position."""
    wanted: dict[tuple[str, ...], int] = {}
    for number, phrase in enumerate(phrases):
        wanted.setdefault(tuple(words(phrase)), number)
    wanted.pop((), None)
    found = []
    for row, text in enumerate(texts):
        told = words(text)
        start = 0
        while start < len(told):
            lengths = [n for n in range(1, len(told) - start + 1) if tuple(told[start : start + n]) in wanted]
            chosen = lengths[-1:] if longest else lengths
            found += [(row, wanted[tuple(told[start : start + n])]) for n in chosen]
            start += chosen[0] if longest and chosen else 1
    return found


def words(text: str) -> list[str]:
    return normalised(text).split()


def pairs(phrases: Phrases, texts: Any) -> list[tuple[int, int]]:
    rows, found = phrases.find(texts)
    assert rows.dtype == found.dtype == np.int32
    return list(zip(rows.tolist(), found.tolist(), strict=True))


@given(st.lists(LINES, max_size=8), st.lists(LINES, max_size=6), st.booleans())
@example(["a b", "b", "a"], ["a b a", "b", "", "ab"], True)
def test_matches_equal_a_comparison_of_words(phrases: list[str], texts: list[str], longest: bool) -> None:
    made = Phrases(phrases, longest=longest)
    assert sorted(pairs(made, texts)) == sorted(by_words(phrases, texts, longest))


@given(st.lists(LINES, min_size=2, max_size=6))
def test_batches_do_not_matter(texts: list[str]) -> None:
    made = Phrases(["a", "a b", "é", "b | a"], longest=True)
    alone = [(row, phrase) for row, text in enumerate(texts) for _, phrase in pairs(made, [text])]
    assert pairs(made, texts) == alone
    assert normalised_all(texts) == [normalised(text) for text in texts]


@given(st.text())
@example("ﷺ a ﬁ Ⅷ ｄｏｇ")
def test_normalised_text_stays(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ice-Cream, please!", "ice cream | please"),
        ("St. Bernard's dogs", "st bernard s dogs"),
        ("AT&T C# 50%", "at & t c # 50 %"),
        ("sofa - blue", "sofa | blue"),
        ("Résumé RE\u0301SUME\u0301", "résumé résumé"),
        ("ＤＯＧ™ ﬁsh\u00ad\u200dhook", "dog fishhook"),
        ("dog❤️cat", "dog | cat"),
        ("Straße", "strasse"),
        ("(a) «b»\n…", "a | b"),
        ("हिन्दी", "हिन्दी"),
        ("...", ""),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_texts_may_be_arrow_null_or_nothing() -> None:
    made = Phrases(["dog", "hot dog"], longest=True)
    texts = ["a hot dog", None, "dog, dog", "hot-dog\0dog"]
    expected = [(0, 1), (2, 0), (2, 0), (3, 1), (3, 0)]
    assert pairs(made, texts) == pairs(made, pa.array(texts)) == pairs(made, pa.chunked_array([texts])) == expected
    assert pairs(made, []) == pairs(made, [None, ""]) == pairs(Phrases([], longest=False), texts) == []


def test_the_first_of_equal_phrases_is_found_and_empty_ones_never() -> None:
    assert pairs(Phrases(["", "!", "Ice Cream", "ice-cream"], longest=True), ["ice_cream !"]) == [(0, 2)]


def test_all_or_the_longest() -> None:
    phrases = ["new york", "york", "new york city", "city hall", "hall"]
    text = ["New York City Hall"]
    assert pairs(Phrases(phrases, longest=True), text) == [(0, 2), (0, 4)]
    assert pairs(Phrases(phrases, longest=False), text) == [(0, 0), (0, 2), (0, 1), (0, 3), (0, 4)]


@pytest.mark.parametrize("unit", ["a", " ", ", ", "a ", "é,", "\0", "&", "|a", "\u0301", "ﷺ"])
def test_a_megabyte_of_anything(unit: str) -> None:
    text = unit * (2**20 // len(unit.encode()))
    made = Phrases(["a", "a a", "a b"], longest=True)
    assert pairs(made, ["a", text, "a"])[-1] == (2, 0)
