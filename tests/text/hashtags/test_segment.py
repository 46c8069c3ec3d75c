from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curate.text.hashtags.segment import LONGEST_WORD, Segmenter, chunks, folded, split_at_case

KNOWN = "golden retriever dog dogs i love in the park new york youtube ice cream"
COUNTS = dict.fromkeys(KNOWN.split(), 100.0)
TAGS = st.text(max_size=30) | st.lists(st.sampled_from([*COUNTS, "GOLDEN", "Dog", "-", "_", "7", "ß", "é"])).map(
    "".join
)


@pytest.mark.parametrize(
    ("tag", "key", "words"),
    [
        ("#goldenRetriever", "goldenretriever", "golden retriever"),
        ("goldenretriever", "goldenretriever", "golden retriever"),
        ("golden-retriever", "golden retriever", "golden retriever"),
        ("GOLDEN_RETRIEVER", "golden retriever", "golden retriever"),
        ("GOLDENRETRIEVER", "goldenretriever", "golden retriever"),
        ("golden  retriever!", "golden retriever", "golden retriever"),
        ("#ILoveNewYork", "ilovenewyork", "i love new york"),
        ("dogsinthepark2019", "dogsinthepark2019", "dogs in the park 2019"),
        ("YouTube", "youtube", "youtube"),
        ("ice\u00adcream", "icecream", "ice cream"),
        ("&eacute;toile", "étoile", "étoile"),
        ("L'Été", "lété", "lété"),
        ("Straße", "strasse", "strasse"),
        ("ｇｏｌｄｅｎ", "golden", "golden"),
        ("xqzzt", "xqzzt", "xqzzt"),
        ("नमस्ते", "नमस्ते", "नमस्ते"),
        ("犬", "犬", "犬"),
        ("❤️", "", ""),
        ("#", "", ""),
        ("\ud800", "", ""),
    ],
)
def test_tags_and_their_words(tag: str, key: str, words: str) -> None:
    assert folded(tag) == key
    assert " ".join(Segmenter(COUNTS).words(tag)) == words


@given(TAGS)
@example("İ")
@example("ŉ")
@example("a\u0345b")
def test_words_join_to_the_tags_letters(tag: str) -> None:
    assert "".join(Segmenter(COUNTS).words(tag)) == folded(tag).replace(" ", "")


@given(TAGS)
def test_folding_twice_changes_nothing(tag: str) -> None:
    assert folded(folded(tag)) == folded(tag)


@given(st.text("abcABC", max_size=12))
def test_pieces_join_to_the_chunk(chunk: str) -> None:
    assert "".join(split_at_case(chunk)) == chunk


@given(st.text("abc", min_size=1, max_size=9), st.dictionaries(st.text("abc", min_size=1, max_size=4), st.just(5.0)))
def test_the_most_likely_words(run: str, counts: dict[str, float]) -> None:
    """Against all 2^(n-1) splits."""
    segmenter = Segmenter(counts)

    def cost(words: list[str]) -> float:
        return math.fsum(segmenter._cost_of(word) for word in words)

    ways = []
    for cuts in range(1 << (len(run) - 1)):
        edges = [0, *(at for at in range(1, len(run)) if cuts >> (at - 1) & 1), len(run)]
        words = [run[start:stop] for start, stop in pairwise(edges)]
        if all(len(word) <= segmenter._longest for word in words):
            ways.append(cost(words))
    assert cost(segmenter._cheapest(run)) == pytest.approx(min(ways))


def test_changes_of_case() -> None:
    told = {
        chunk: split_at_case(chunk) for chunk in ("goldenRetriever", "HTMLPage", "iPhone", "McDonald", "USA", "aB", "")
    }
    assert told == {
        "goldenRetriever": ["golden", "Retriever"],
        "HTMLPage": ["HTML", "Page"],
        "iPhone": ["iPhone"],
        "McDonald": ["Mc", "Donald"],
        "USA": ["USA"],
        "aB": ["aB"],
        "": [""],
    }


def test_long_unknown_runs_stay_whole() -> None:
    run = "q" * (3 * LONGEST_WORD)
    assert Segmenter(COUNTS).words(run) == [run]


def test_without_any_count() -> None:
    assert Segmenter({}).words("golden-retriever") == ["golden", "retriever"]


def test_the_work_is_linear_in_length_times_longest_word(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    cost_of = Segmenter._cost_of
    monkeypatch.setattr(Segmenter, "_cost_of", lambda self, word: tried.append(word) or cost_of(self, word))
    segmenter, tag = Segmenter(COUNTS), "goldenretrieverx" * 60
    segmenter.words(tag)
    assert len(tried) <= len(tag) * segmenter._longest


@pytest.mark.timeout(60)
def test_a_megabyte_is_linear() -> None:
    assert chunks("a" * 1_000_000) == ["a" * 1_000_000]
    assert folded("é-" * 500_000)
