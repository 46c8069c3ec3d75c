from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.errors import CurateError, InputError
from curate.text.phrases import normalised
from curate.text.vocabulary.build import BuildVocabulary, Vocabulary, frequent_pairs, is_term
from curate.text.vocabulary.build import given as read_given
from curate.text.vocabulary.terms import TermCounts, count_terms, merge_terms
from tests.text.wordnet.wordnets import tiny  # noqa: F401  (a fixture)

POOL = {"wordnet": False, "unigrams": None, "bigrams": None}
TEXTS = st.lists(st.none() | st.lists(st.sampled_from(["a", "b", "ice", "cream", ",", "&", "é"])).map(" ".join))


def built(texts: list[Any], **parameters: Any) -> tuple[dict[str, tuple[str, int | None]], dict[str, Any]]:
    """Entry -> source and count; the summary."""
    stage = BuildVocabulary(**parameters)
    kind = pa.list_(pa.string()) if any(isinstance(text, list) for text in texts) else pa.string()
    table = pa.table({"text": pa.array(texts, kind)})
    halves = [stage.partial(table.slice(0, 2)), stage.partial(table.slice(2))]
    artifact = stage.finish(stage.merge(iter(halves)))
    rows = artifact["entries"].to_pylist()
    assert [row["entry"] for row in rows] == sorted({row["entry"] for row in rows})
    return {row["entry"]: (row["source"], row["count"]) for row in rows}, artifact["summary"]


# --- counting ---------------------------------------------------------------------------------------------------------


def by_hand(texts: list[str | None]) -> tuple[Counter[str], Counter[str]]:
    unigrams, bigrams = Counter[str](), Counter[str]()
    for text in texts:
        words = normalised(text or "").split()
        unigrams.update({word for word in words if word.isalpha()})
        bigrams.update({f"{a} {b}" for a, b in pairwise(words) if a.isalpha() and b.isalpha()})
    return unigrams, bigrams


@given(TEXTS, st.integers(0, 5))
def test_counts_of_texts(texts: list[str | None], cut: int) -> None:
    counts = TermCounts.of(merge_terms([count_terms(part, str.isalpha, True) for part in (texts[:cut], texts[cut:])]))
    unigrams, bigrams = by_hand(texts)
    assert dict(counts.unigrams.iter_rows()) == unigrams
    assert dict(counts.bigrams.iter_rows()) == bigrams
    assert (counts.texts, counts.short) == (sum(text is not None for text in texts), 0)


@given(st.lists(st.lists(st.sampled_from("abcdefgh")).map(" ".join), min_size=1, max_size=6), st.integers(1, 4))
def test_pools_of_many_terms_are_counted_up_to_a_bound(texts: list[str], most: int) -> None:
    state = merge_terms((count_terms([text], str.isalpha, False) for text in texts), most)
    counts, true = TermCounts.of(state), by_hand(texts)[0]
    kept = dict(counts.unigrams.iter_rows())
    assert len(kept) <= most
    assert all(kept.get(word, 0) <= n <= kept.get(word, 0) + counts.short for word, n in true.items())


def test_a_text_counts_once() -> None:
    counts = TermCounts.of(count_terms(["dog dog dog", "dog, dog"], str.isalpha, True))
    assert dict(counts.unigrams.iter_rows()) == {"dog": 2}
    assert dict(counts.bigrams.iter_rows()) == {"dog dog": 1}


def test_words_that_do_not_count() -> None:
    assert not any(is_term(False, False, word) for word in ("the", "7", "2019", "x", "&"))
    assert all(is_term(False, False, word) for word in ("dog", "犬犬"))
    assert is_term(True, False, "the") and is_term(False, True, "2019")
    counts = TermCounts.of(count_terms(["x" * 200 + " dog"], str.isalpha, False))
    assert dict(counts.unigrams.iter_rows()) == {"dog": 1}


def test_pmi() -> None:
    """ice in 4 texts of 8, cream in 2, as a pair in 2: log(2 8 / (4 2)) = log 2."""
    texts = ["ice cream", "ice cream", "ice", "ice", "x", "x", "x", "x"]
    counts = TermCounts.of(count_terms(texts, str.isalpha, True))
    for pmi, pairs in ((math.log(2) - 1e-9, ["ice cream"]), (math.log(2) + 1e-9, [])):
        assert frequent_pairs(counts, 2, pmi)["term"].to_list() == pairs
    assert frequent_pairs(counts, 3, 0.0).is_empty()


# --- sources ----------------------------------------------------------------------------------------------------------


def test_words_and_pairs_of_the_pool() -> None:
    texts = [["Ice-cream for 2019", None], None, ["ice cream the ice"], ["a dog, cream"]]
    made, summary = built(texts, wordnet=False, unigrams=2, bigrams={"count": 2, "pmi": -1})
    assert made == {"ice": ("unigram", 2), "cream": ("unigram", 3), "ice cream": ("bigram", 2)}
    assert summary["texts"] == 3 and summary["entries"] == 3 and summary["short"] == 0
    assert "the" in built(texts, **POOL | {"unigrams": 1}, stop_words=True)[0]
    assert "2019" in built(texts, **POOL | {"unigrams": 1}, digits=True)[0]


def test_entries_of_a_file(tmp_path: Path) -> None:
    """Repeated, empty, equal and too long entries are counted and are not errors."""
    path = tmp_path / "entries.json"
    path.write_text(json.dumps(["Dog", "dog", "Dog", "", " !? ", "the", "ICE-cream", "ice cream", "w " * 21]))
    made, summary = built(["a dog, a dog", "dog"], **POOL | {"unigrams": 2}, entries=path)
    assert made == {"dog": ("given", 2), "ice cream": ("given", None), "the": ("given", None)}
    told = {"read": 9, "entries": 3, "empty": 2, "duplicate": 1, "merged": 2, "in_earlier_source": 0, "too_long": 1}
    assert summary["sources"]["given"] == told
    assert summary["sources"]["unigram"]["in_earlier_source"] == 1
    (text := tmp_path / "entries.txt").write_text("\ufeffDog\n\nice cream\r\n", encoding="utf-8")
    assert built([None], **POOL, entries=text)[0].keys() == {"dog", "ice cream"}


def test_wordnet_lemmas(tiny: Path) -> None:  # noqa: F811
    for name in ("index.adj", "index.adv"):
        (tiny / name).write_text("white a 1 0 1 1 00000000\n")
    made, summary = built([], **POOL | {"wordnet": True})
    assert {"hot dog", "t shirt", "sofa", "white", "paris"} <= made.keys()
    assert not {"a", "10"} & made.keys()
    assert summary["sources"]["wordnet"]["entries"] == len(made)
    stage = BuildVocabulary()
    assert stage.preflight() == [] and set(stage.identity()) == {"wordnet"}


def test_the_content_of_the_file_decides(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("dog\n")
    a, b = (BuildVocabulary(**POOL, entries=tmp_path / name) for name in ("a.txt", "b.txt"))
    assert a.parameters() == b.parameters() and a.identity() == b.identity()
    (tmp_path / "b.txt").write_text("cat\n")
    assert a.identity() != b.identity()


def test_lines_and_json_of_the_same_bytes_are_two_vocabularies(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.JSON", "a.txt")]
    for path in paths:
        path.write_text('["dog"]')
    assert [read_given(path) for path in paths] == [["dog"], ['["dog"]']]
    as_json, as_lines = (BuildVocabulary(**POOL, entries=path).identity() for path in paths)
    assert as_json != as_lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"dog": 1}', "holds a JSON dict; expected a list of strings"),
        ("a.json", b'["dog", 7]', "holds 7 at place 1; expected strings"),
        ("a.json", b"[dog", "is not a JSON list"),
        ("a.txt", b"\xff\xfe", "is not a UTF-8 text with one entry per line"),
        ("a.txt", None, "cannot read .*; give a JSON list or a .txt file"),
    ],
)
def test_files_of_other_formats(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read_given(path)
    assert "\n" not in str(raised.value)
    assert BuildVocabulary(**POOL, entries=path).preflight() == [str(raised.value)]


def test_a_vocabulary_without_entries() -> None:
    for texts in ([], [None], ["😀 !!"], ["rare words"]):
        with pytest.raises(CurateError, match=r"no entries from . texts; lower `unigrams`"):
            built(texts, wordnet=False, unigrams=5)
    with pytest.raises(ValidationError, match="no source of entries"):
        BuildVocabulary(**POOL)


def test_a_canary_needs_fewer_texts() -> None:
    small = BuildVocabulary(unigrams=100, bigrams={"count": 30}).scaled(0.1)
    assert (small.unigrams, small.bigrams and small.bigrams.count) == (10, 3)


def test_first_sources_keep_their_entries() -> None:
    made = Vocabulary()
    made.add("given", ["a b"])
    made.add("wordnet", ["A-B", "c"])
    assert made.source == {"a b": "given", "c": "wordnet"}
    table = made.table(pl.DataFrame({"term": ["c"], "count": [3]}))
    assert table.to_pylist()[1] == {"entry": "c", "source": "wordnet", "count": 3}


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in BuildVocabulary.model_fields.values())
