from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.text.clean import Clean
from curate.text.rules import DEFAULT, NAMES, chosen, clean
from tests.text.test_rules import TEXTS


def cleaned(*captions: str | None, **parameters: Any) -> tuple[list[str | None], list[str | None], dict[str, int]]:
    batch = Batch(pa.table({"key": ["0" * 32] * len(captions), "caption": pa.array(captions, pa.string())}))
    columns = Clean(**parameters).process(batch)
    return columns["text"].to_pylist(), columns["reject"], dict(batch.counters)


def test_texts_reasons_and_counters() -> None:
    texts, reasons, counters = cleaned("A &amp; B", None, "http://a.org", "x  y", " ")
    assert texts == ["A & B", None, None, "x y", None]
    assert reasons == [None, "missing_caption", "empty_caption", None, "empty_caption"]
    assert counters == {"entities": 1, "urls": 1, "spaces": 3}


def test_pictures_without_text_may_stay() -> None:
    assert cleaned(None, "me@you.org", "dog", missing="keep")[:2] == ([None, None, "dog"], [None, None, None])


def test_length_counts_after_cleaning() -> None:
    reasons = cleaned("cat http://a.org", "tiger", "lioness", min_chars=4, max_chars=6)[1]
    assert reasons == ["caption_too_short", None, "caption_too_long"]


def test_rules_can_be_chosen() -> None:
    assert cleaned("A &amp;  http://a.org", rules=["spaces", "entities"])[0] == ["A & http://a.org"]
    assert Clean(rules=["spaces", "entities"]) == Clean(rules=["entities", "spaces"])
    assert Clean().rules == DEFAULT
    with pytest.raises(ValidationError, match="'spelling' is no rule; choose from quoting, entities, mojibake"):
        Clean(rules=["spelling"])


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Clean.model_fields.values())


def test_rules_can_be_left_out_and_added() -> None:
    assert cleaned("#BlueSky ☺", also=["hashtag_words"])[0] == ["Blue Sky"]
    assert cleaned("#BlueSky!! ☺", without=["symbols", "punctuation"])[0] == ["BlueSky!! ☺"]
    assert cleaned("  #x  ", rules=[])[0] == ["  #x  "]


def test_words_are_counted_after_cleaning() -> None:
    assert cleaned("a #cat http://a.org", "a black cat", "", min_words=3)[1] == [
        "caption_too_few_words",
        None,
        "empty_caption",
    ]


def test_captions_without_an_end_to_their_nesting_are_set_aside() -> None:
    texts, reasons, counters = cleaned("a cat", "&" + "#38;" * 200, missing="keep")
    assert (texts, reasons, counters["unsettled"]) == (["a cat", None], [None, "caption_unsettled"], 1)


@given(st.lists(st.none() | TEXTS.filter(lambda text: not re.search("[\ud800-\udfff]", text))))
def test_columns_are_cleaned_as_texts_are(captions: list[str | None]) -> None:
    """Captions that the column-wise search passes over are those that no rule changes."""
    texts, _, counters = cleaned(*captions, also=NAMES, missing="keep")
    alone = [None if caption is None else clean(caption, chosen(NAMES)) for caption in captions]
    assert texts == [(text and text[0]) or None for text in alone]
    assert counters == dict(Counter(name for text in alone if text for name in text[1]))


def test_steps_of_a_caption() -> None:
    assert Clean().steps("A &amp; B!!") == [
        ("entities", "A &amp; B!!", "A & B!!"),
        ("punctuation", "A & B!!", "A & B!"),
    ]
