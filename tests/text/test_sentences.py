from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Batch
from curate.core.errors import CurateError
from curate.core.items import family_of, per_item
from curate.text.sentences import POSSIBLE, Sentences, split_sentences

EXAMPLES = [
    "Mr. Smith went to St. Paul.|He slept.",
    "No. 5 is here.|It is not No. 6",
    "The U.S. Air Force lands in the U.S.|The crowd cheers at 5 p.m.|It rains",
    "Windfall by Jennifer E. Smith.|J. K. Rowling reads",
    "72in. Galvanized Window Box, 50 in. Kawasaki engine, 7.4 cu. ft. Dryer",
    "First Manufacturing Co. Women's Vest",
    "1. Soup of the day",
    "Anchor icon.|Internet button on green background.|Stock Photo",
    "Just in time for the holiday... again.|Next one...|And another",
    "Hello!|(A dog.)|“Who?”|¿Qué?|Yes",
    "The Unsuspected Illness, by Broda O. Barnes, M.D., Ph.D.",
    "Supplies for sale. - stock photo",
    "Wow!Next v3.5.2 node.js 3.5mm x . Y",
    "「猫。」|犬！|鳥",
    "Lakers Rumors: L.A. Must Continue",
    "Chicago Cubs vs. St. Louis, Vol. 3, approx. 4 ft. Tall",
    "a|“b” c",  # a line break
]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(["Mr", "A", "dog", "5", ".", "!", "…", "。", "\n", " ", '"', ")", "No", "The", "é"])).map(
        "".join
    ),
)


def split(*texts: str | None, **parameters: Any) -> tuple[list[list[str] | None], dict[str, int]]:
    batch = Batch(pa.table({"key": ["0" * 32] * len(texts), "text": pa.array(texts, pa.string())}))
    columns = Sentences(**parameters).process(batch)
    assert list(columns) == ["sentences"] and not batch.unfit
    return columns["sentences"].to_pylist(), {k: v for k, v in batch.counters.items() if v}


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples(line: str) -> None:
    text = line.replace("|", "\n" if line == EXAMPLES[-1] else "" if "。" in line else " ")
    assert split_sentences(text) == line.split("|")


@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


@given(TEXTS)
def test_text_that_cannot_have_several_sentences_is_one(text: str) -> None:
    if not re.search(POSSIBLE, text):
        assert split_sentences(text) == ([text] if text else [])


@given(st.lists(st.none() | TEXTS), st.integers(1, 3), st.integers(1, 5), st.none() | st.integers(1, 3))
def test_columns_are_split_as_texts_are(texts: list[str | None], words: int, chars: int, most: int | None) -> None:
    found, counters = split(*texts, min_words=words, min_chars=chars, most=most)
    counted = {"sentences": sum(map(len, filter(None, found))), "short_sentence": 0, "surplus_sentence": 0}
    for text, sentences in zip(texts, found, strict=True):
        every = split_sentences(text or "")
        told = [s for s in every if len(s) >= chars and len(s.split()) >= words and re.search(r"[^\W_]", s)]
        counted["short_sentence"] += len(every) - len(told)
        counted["surplus_sentence"] += max(0, len(told) - (most or len(told)))
        assert sentences == (told[:most] or None)
    assert counters == {name: count for name, count in counted.items() if count}


def test_texts_without_a_sentence() -> None:
    assert split(None, "", " ... ", "!!", "A cat")[0] == [None] * 4 + [["A cat"]]
    assert split() == ([], {})


def test_the_column_is_per_item_and_may_be_named() -> None:
    field = Sentences(column="caption").schema().field("sentences")
    assert per_item(field) and family_of("sentences", {"sentences": field}) == "sentences"
    stage = Sentences(column="caption")
    columns = stage.process(Batch(pa.table({"key": ["0"], "caption": ["A. B. See. Me"]})))
    assert (stage.reads(), columns["sentences"].to_pylist()) == (("caption",), [["A. B.", "See.", "Me"]])
    with pytest.raises(CurateError, match="expected one text per row"):
        stage.process(Batch(pa.table({"key": ["0"], "caption": [["a"]]})))


@pytest.mark.parametrize(
    "piece", [".", "a.", "a. A", "1. ", "5 5. ", "A. ", '!"', "\n", "。", '"', "... A", "Mr. ", " "]
)
@pytest.mark.timeout(60)  # linear work takes a second, quadratic work hours
def test_a_megabyte_is_linear(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Sentences.model_fields.values())
