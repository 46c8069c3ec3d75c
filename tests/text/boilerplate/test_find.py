from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench.kit.texts import alt_texts
from curate.core.contracts import Artifact, Batch
from curate.core.errors import CurateError
from curate.core.hashing import make_key
from curate.text.boilerplate.find import Boilerplate
from curate.text.boilerplate.kernels import PhraseLimits, Stripper, boilerplate, spans, words_of
from curate.text.boilerplate.strip import Strip

NOUNS = ("dog", "cat", "house", "tree", "river", "bride", "car", "bridge", "sofa", "puppy", "garden", "road", "lake")
OTHERS = NOUNS[5:] + NOUNS[:5]
LIMITS = PhraseLimits(shortest=2, longest=8, least_count=5, least_neighbours=6, least_edge=0.75)


def table(texts: list[str | None], start: int = 0) -> pa.Table:
    keys = [make_key("texts", str(start + place)) for place in range(len(texts))]
    return pa.table({"key": keys, "text": pa.array(texts, pa.string())})


def learned(texts: list[str | None], cuts: tuple[int, ...] = (), **parameters: Any) -> Artifact:
    stage = Boilerplate(**parameters)
    edges = [0, *cuts, len(texts)]
    return stage.finish(stage.merge(stage.partial(table(texts).slice(a, b - a)) for a, b in pairwise(edges)))


def phrases(artifact: Artifact) -> set[tuple[str, str]]:
    rows = artifact["phrases"].to_pylist()
    return {(row["phrase"], row["place"]) for row in rows}


def stripped(texts: list[str | None], artifact: Artifact | None = None, **parameters: Any) -> list[Any]:
    stage = Strip(**parameters)
    stage.setup({} if artifact is None else {"boilerplate": artifact})
    columns = stage.process(Batch(table(texts)))
    assert list(columns) == [stage.output] == stage.schema().names
    return columns[stage.output]


POOL: list[str | None] = [
    *(f"Image for {noun}" for noun in NOUNS),
    *(f"{one} and {other} — Royalty Free Stock Photo #{len(one)}" for one, other in zip(NOUNS, OTHERS, strict=True)),
    *(f"{one} or {other} | Royalty Free Stock Photo" for one, other in zip(NOUNS[:8], OTHERS, strict=False)),
    *(f"New York {noun}" for noun in ["Times"] * 2 + ["City"] * 4),
    *(f"black and white {noun}" for noun in NOUNS),
    *(f"{one}, black and white {other}" for one, other in zip(NOUNS, OTHERS, strict=True)),
    None,
    "",
]


def test_frequent_ends_with_many_neighbours_are_boilerplate() -> None:
    artifact = learned(POOL, least_neighbours=6)
    assert phrases(artifact) == {
        ("image for", "prefix"),
        ("royalty free stock photo #", "suffix"),
        ("royalty free stock photo", "suffix"),
    }
    [first, *_] = artifact["phrases"].to_pylist()
    assert first["count"] == len(NOUNS) and first["share"] == len(NOUNS) / artifact["summary"]["texts"]
    assert first["edge"] == 1.0 and words_of(first["example"])


def test_phrases_anywhere_in_a_text_are_content() -> None:
    texts = [words_of(text or "") for text in POOL]
    found = {(" ".join(phrase.words), phrase.place) for phrase in boilerplate(texts, LIMITS)}
    assert ("black and white", "prefix") not in found
    loose = boilerplate(texts, LIMITS._replace(least_edge=0.0))
    assert ("black and white", "prefix") in {(" ".join(phrase.words), phrase.place) for phrase in loose}


def test_a_repeated_text_counts_once() -> None:
    texts: list[str | None] = ["a song about love"] * 50 + ["a song about hate"] * 50
    assert phrases(learned(texts)) == set()
    assert phrases(learned(texts, whole=True)) == {("a song about love", "whole"), ("a song about hate", "whole")}


def test_longer_phrases_leave_shorter_ones_what_they_do_not_explain() -> None:
    texts = [f"clip art by someone {noun}" for noun in NOUNS] + [f"clip art by {noun} {noun}" for noun in NOUNS[:6]]
    limits = LIMITS._replace(least_neighbours=2)
    found = {" ".join(phrase.words) for phrase in boilerplate([words_of(text) for text in texts], limits)}
    assert found == {"clip art by someone", "clip art by"}
    found = {" ".join(phrase.words) for phrase in boilerplate([words_of(text) for text in texts[:-3]], limits)}
    assert found == {"clip art by someone"}


@given(st.permutations([f"{noun} for sale" for noun in NOUNS[:9]] + ["", None, "for sale"]), st.data())
def test_however_rows_are_cut(texts: list[str | None], data: st.DataObject) -> None:
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(texts)), max_size=3))))
    for sample in (4, 100):
        settings = {"least_count": 2, "least_neighbours": 2, "sample": sample}
        whole, parts = learned(texts, **settings), learned(texts, cuts, **settings)
        assert whole["phrases"].equals(parts["phrases"]) and whole["summary"] == parts["summary"]
        assert whole["summary"]["texts"] == min(sample, 10)


@pytest.mark.parametrize("texts", [[], [None, None], ["", "😀", "!!"], ["one"]])
def test_pools_without_phrases(texts: list[str | None]) -> None:
    artifact = learned(texts, whole=True)
    assert artifact["phrases"].num_rows == 0 and artifact["summary"]["phrases"] == 0
    assert stripped(["a dog"], artifact) == ["a dog"]


EXAMPLES = [
    ('Image for: "red dress"', '"red dress"'),
    ("IMAGE FOR Image for dress", "dress"),
    ("Blue sky — Stock Photo #1214233", "Blue sky"),
    ("Blue sky (2010). Stock photo stock photo", "Blue sky (2010)."),
    ("image-for sky's stock/photo", "sky's"),
    ("a stock photo of image for sky", "a stock photo of image for sky"),
    ("images for sky", "images for sky"),
    ("image for पानी stock photo", "पानी"),
    ("café\u0301 stock photo", "café\u0301"),
    ("  untouched - ", "  untouched - "),
    ("image for stock photo", ""),
    ("Only this", ""),
    ("😀 !", "😀 !"),
]


@pytest.mark.parametrize(("text", "left"), EXAMPLES)
def test_stripping(text: str, left: str) -> None:
    stripper = Stripper([("image", "for")], [("stock", "photo"), ("stock", "photo", "#")], [("only", "this")])
    assert stripper.strip(text) == left
    assert not left or stripper.strip(left) == left


@given(
    st.lists(st.sampled_from(["image", "for", "Stock", "photo", "12", " ", " — ", "(", ")", '"', "क", "ि", "x"])).map(
        " ".join
    )
)
def test_stripped_text_is_a_part_of_the_text_and_idempotent(text: str) -> None:
    stripper = Stripper([("image", "for")], [("stock", "photo"), ("#",)])
    left = stripper.strip(text)
    assert left in text and stripper.strip(left) in (left, "")
    kept, all_words = words_of(left), words_of(text)
    assert any(all_words[start : start + len(kept)] == kept for start in range(len(all_words) - len(kept) + 1))


def test_words_are_whole_in_scripts_with_vowel_signs() -> None:
    assert [word for word, _, _ in spans("किताब, e\u0301te\u0301 don't 12 كِتَاب")] == [
        "किताब",
        "e\u0301te\u0301",
        "don't",
        "#",
        "كِتَاب",
    ]


@pytest.mark.parametrize("piece", ["image for ", "stock photo ", "a", "'", "a'", "\u0301", "😀", "\ud800", "12 ", "\0"])
@pytest.mark.timeout(60)
def test_a_megabyte_is_linear(piece: str) -> None:
    """A fifth of a second if linear, hours if quadratic."""
    stripper = Stripper([("image", "for")], [("stock", "photo")])
    text = piece * (1_000_000 // len(piece))
    assert stripper.strip(text) in ("", text)


def test_the_stage() -> None:
    artifact = learned(POOL, least_neighbours=6)
    texts: list[str | None] = ["Image for a dog", "image for", None, "a cat", "Photo of a cat", ""]
    assert stripped(texts, artifact, also=["photo of a"]) == ["a dog", None, None, "a cat", "cat", None]
    assert stripped(texts[:2], artifact, keep=["Image for"]) == texts[:2]
    assert stripped(["12 dogs"], also=["#"], output="rest") == ["dogs"]


def test_phrases_that_cannot_be_stripped_are_an_error() -> None:
    with pytest.raises(CurateError, match=r"text.strip: no phrases to remove; set `boilerplate` to a stage"):
        stripped(["a"])
    with pytest.raises(ValidationError, match="'--' has no word; write phrases such as 'stock photo'"):
        Strip(also=["--"])
    with pytest.raises(CurateError, match=r"text.boilerplate.column: 'text' holds list"):
        Boilerplate().partial(pa.table({"key": ["0" * 32], "text": [["a"]]}))


def test_alt_texts_of_the_web() -> None:
    texts: list[str | None] = list(alt_texts())
    if not texts:
        pytest.skip("no alt texts; name the folder of shared data in CURATE_SHARED")
    found = phrases(learned(texts))
    assert {("stock photo", "suffix"), ("royalty free stock image", "suffix"), ("picture of", "prefix")} <= found
    assert (
        not {("new york", "prefix"), ("t shirt", "suffix"), ("for sale", "suffix"), ("white background", "suffix")}
        & found
    )
    assert len(found) < 60
