from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.text.phrases import Phrases, normalised, normalised_all
from curate.text.vocabulary.trie import LONGEST_WORDS, WordTrie

WORDS = ["ice", "cream", "a", "é", "и", "&", "ice-cream", "I.C.E.", ", ", "\n", "\0", "|", "😀"]
WORDS += ["x" * letters for letters in (7, 8, 9, 16, 17, 30)]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join) | st.text(max_size=12), max_size=8)
ENTRIES = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), max_size=12)


def plain(entries: list[str]) -> list[str]:
    return sorted({entry for entry in normalised_all(entries) if entry})


def found(entries: list[str], texts: list[str | None]) -> list[tuple[int, str]]:
    text, entry = WordTrie(entries).find(texts)
    return [(int(t), entries[e]) for t, e in zip(text, entry, strict=True)]


def by_substrings(entries: list[str], texts: list[str | None]) -> list[tuple[int, str]]:
    """The plain loop: an entry between two spaces, in a text between two spaces."""
    said = [f" {normalised(text or '')} " for text in texts]
    return [(t, entry) for t, text in enumerate(said) for entry in entries if f" {entry} " in text]


@settings(max_examples=60)
@given(ENTRIES, TEXTS)
def test_the_same_as_a_loop_over_all_entries(entries: list[str], texts: list[str]) -> None:
    entries = plain(entries)
    assert found(entries, texts) == by_substrings(entries, texts)


@settings(max_examples=60)
@given(ENTRIES, TEXTS)
def test_the_same_as_the_automaton(entries: list[str], texts: list[str]) -> None:
    entries = plain(entries)
    text, entry = Phrases(entries, longest=False).find(texts)
    assert found(entries, texts) == sorted({(t, entries[e]) for t, e in zip(text.tolist(), entry, strict=True)})


def test_overlapping_entries_on_word_boundaries() -> None:
    entries = plain(["ice", "cream", "ice cream", "cream cone", "con", "Paris, Texas"])
    texts = ["Ice-cream cones", None, "ICE CREAM CONE", "icecream", "paris texas", "Paris, Texas!"]
    assert found(entries, texts) == [
        (0, "cream"), (0, "ice"), (0, "ice cream"), (2, "cream"), (2, "cream cone"), (2, "ice"), (2, "ice cream"),
        (5, "paris | texas"),
    ]  # fmt: skip


def test_no_entry_and_no_text() -> None:
    assert found([], ["a text"]) == []
    assert found(["a"], []) == []


def test_entries_that_no_step_reaches_are_refused() -> None:
    longest = " ".join(["a"] * LONGEST_WORDS)
    assert found([longest], [f"b {longest} c"]) == [(0, longest)]
    for entry in (f"{longest} a", ""):
        with pytest.raises(ValueError, match="without words, or with more"):
            WordTrie([entry])


def test_many_entries_that_hash_alike() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(200)]
    entries = plain([" ".join(words[i] for i in row) for row in rng.integers(0, 200, (5000, 2))])
    texts = [" ".join(words[i] for i in row) for row in rng.integers(0, 200, (50, 20))]
    assert found(entries, texts) == by_substrings(entries, texts)


@pytest.mark.parametrize("unit", ["a", "a ", "a, ", " "])
def test_a_megabyte_takes_no_longer_for_what_it_says(unit: str) -> None:
    trie = WordTrie([" ".join(["a"] * length) for length in range(1, 5)])
    began = time.process_time()
    trie.find([unit * (1_000_000 // len(unit))])
    assert time.process_time() - began < 5  # a tenth of it is usual; what grows with the square takes hours
