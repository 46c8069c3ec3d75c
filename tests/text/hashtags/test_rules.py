from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.text.hashtags.lexicon import Lexicon, inflects, one_edit_apart
from curate.text.hashtags.rules import Edit, Row, Settings, map_tags

NOUNS = {
    "dog": "dog.n.01", "dogs": "dog.n.01", "hound": "dog.n.01", "golden retriever": "golden_retriever.n.01",
    "color": "color.n.01", "colour": "color.n.01", "building": "building.n.01", "swimming": "swimming.n.01",
    "crane": "crane.n.04", "cook": "cook.n.01", "picture": "picture.n.01", "pattern": "form.n.03",
    "orange": "orange.n.01", "quick": "quick.n.01", "house": "house.n.01",
}  # fmt: skip
VERBS = {
    "building": "build.v.01",
    "swimming": "swim.v.01",
    "swim": "swim.v.01",
    "cook": "cook.v.01",
    "picture": "picture.v.01",
}
PART = dict.fromkeys(NOUNS, "n") | dict.fromkeys(("swim", "swimming", "cook"), "v")
PART |= dict.fromkeys(("quick", "colour", "fluffy"), "")
LEMMAS = {
    "dog.n.01": ("dog", "hound"), "color.n.01": ("color", "colour"), "swim.v.01": ("swim",), "form.n.03": ("form",),
    "golden_retriever.n.01": ("golden retriever",), "crane.n.04": ("crane",), "building.n.01": ("building",),
    "cook.v.01": ("cook",), "picture.n.01": ("picture",), "orange.n.01": ("orange",), "house.n.01": ("house",),
}  # fmt: skip
WORDS = "dog dogs golden retriever old house color building swimming pattern the"
WEIGHTS = dict.fromkeys(WORDS.split(), 10.0)
NAMED = {verb: frozenset([synset]) for verb, synset in VERBS.items()}
LEXICON = Lexicon(NOUNS, VERBS, PART, WEIGHTS, LEMMAS, NAMED)


def rows_of(
    counts: dict[str, int], hints: dict[str, str] | None = None, edits: dict[str, Edit] | None = None, **settings: Any
) -> dict[str, Row]:
    rows = map_tags(counts, hints or {}, {}, LEXICON, Settings(**settings), edits or {})
    assert [row.tag for row in rows] == sorted(counts, key=lambda tag: (-counts[tag], tag))
    assert all(row.count == counts[row.tag] for row in rows)
    return {row.tag: row for row in rows}


def decisions(counts: dict[str, int], **others: Any) -> dict[str, tuple[str | None, str, str]]:
    return {tag: (row.canonical, row.kind, row.how) for tag, row in rows_of(counts, **others).items()}


def test_synonyms_plurals_and_spellings_are_one_tag() -> None:
    counts = {"dogs": 5, "hound": 3, "goldenretriever": 2, "golden retriever": 1, "colour": 4, "color": 9}
    assert decisions(counts) == {
        "dogs": ("dog", "noun", "synset"),
        "hound": ("dog", "noun", "synset"),
        "goldenretriever": ("golden retriever", "noun", "synset"),
        "golden retriever": ("golden retriever", "noun", "word"),
        "colour": ("color", "noun", "synset"),
        "color": ("color", "noun", "word"),
    }
    assert rows_of(counts)["goldenretriever"].words == "golden retriever"


def test_the_lemma_that_the_pool_uses_most_is_the_name() -> None:
    assert {row.canonical for row in rows_of({"dog": 2, "dogs": 2, "hound": 3}).values()} == {"dog"}
    assert {row.canonical for row in rows_of({"dog": 2, "hound": 3}).values()} == {"hound"}
    assert rows_of({"pattern": 1})["pattern"].canonical == "form.n.03"  # no lemma reads as this synset first


def test_nouns_and_actions() -> None:
    counts = dict.fromkeys(("building", "swimming", "swim", "cook", "picture", "orange", "quick", "fluffy", "the"), 1)
    assert decisions(counts) == {
        "building": ("building", "noun", "word"),  # a thing, although the verb is more frequent
        "swimming": ("swim", "action", "synset"),
        "swim": ("swim", "action", "word"),
        "cook": ("cook", "action", "word"),  # a person, and the verb is more frequent
        "picture": ("picture", "noun", "word"),
        "orange": ("orange", "noun", "word"),
        "quick": (None, "unmapped", "adjective"),
        "fluffy": (None, "unmapped", "adjective"),
        "the": (None, "unmapped", "adjective"),
    }


def test_heads() -> None:
    counts = {"old house": 1, "oldhouse": 1, "house 7": 1}
    hints = {"oldhouse": "old house"}
    assert {tag: row[0] for tag, row in decisions(counts).items()} == {
        "old house": "house",
        "oldhouse": None,
        "house 7": None,
    }
    assert decisions(counts, hints=hints)["oldhouse"] == ("house", "noun", "head")
    assert decisions(counts, heads="all")["oldhouse"] == ("house", "noun", "head")
    assert decisions(counts, heads="none")["old house"] == (None, "unmapped", "unknown")


def test_spelling_follows_a_far_more_frequent_tag() -> None:
    counts = {
        "picture": 100,
        "pictuer": 5,
        "picturre": 5,
        "picure": 6,
        "qicture": 1,
        "pitcure": 1,
        "dogg": 1,
        "dog": 99,
    }
    found = decisions(counts, spelling=20)
    mended = {tag for tag, (canonical, _, how) in found.items() if how == "spelling" and canonical == "picture"}
    assert mended == {"pictuer", "picturre", "pitcure"}
    assert all(how != "spelling" for *_, how in decisions(counts, spelling=None).values())


def test_rare_canonical_tags_are_dropped() -> None:
    counts = {"dog": 2, "hound": 2, "house": 3, "picture": 1}
    edits = {"picture": Edit("house", None)}
    found = decisions(counts, least_count=4, edits=edits)
    assert found["dog"] == ("dog", "noun", "word")
    assert found["house"] == ("house", "noun", "word")
    assert decisions(counts, least_count=5)["house"] == (None, "unmapped", "rare")


def test_edits_win() -> None:
    edits = {
        "dogs": Edit(None, "unmapped"),
        "minecraft": Edit("game"),
        "swim": Edit("dog"),
        "dog": Edit("dog", "noun"),
        "nowhere": Edit("x"),
        "house": Edit("housing", "action"),
    }
    found = decisions({"dog": 9, "dogs": 5, "minecraft": 3, "swim": 1, "house": 1}, edits=edits)
    assert found == {
        "dog": ("dog", "noun", "word"),  # an edit without effect
        "dogs": (None, "unmapped", "edit"),
        "minecraft": ("game", "noun", "edit"),
        "swim": ("dog", "noun", "edit"),
        "house": ("housing", "action", "edit"),
    }


def test_no_tags() -> None:
    assert rows_of({}) == {}


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        ("ab", "ab", False),
        ("ab", "ba", True),
        ("ab", "abc", True),
        ("abc", "axc", True),
        ("abcd", "badc", False),
        ("", "a", True),
        ("abc", "c", False),
    ],
)
def test_one_letter_apart(a: str, b: str, answer: bool) -> None:
    assert one_edit_apart(a, b) is answer and one_edit_apart(b, a) is answer


@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_one_apart_is_one_edit(a: str, b: str) -> None:
    letters = "ab"
    edited = {a[:i] + a[i + 1 :] for i in range(len(a))}
    edited |= {a[:i] + c + a[i + 1 :] for i in range(len(a)) for c in letters}
    edited |= {a[:i] + c + a[i:] for i in range(len(a) + 1) for c in letters}
    edited |= {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(len(a) - 1)}
    assert one_edit_apart(a, b) is (b in edited and a != b)


def test_inflections() -> None:
    assert inflects("boxes", "box", "noun") and inflects("making", "make", "action") and inflects("dog", "dog", "noun")
    assert not inflects("making", "make", "noun") and not inflects("cat", "dog", "noun")
