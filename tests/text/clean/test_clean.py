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
from curate.text.clean.clean import Clean
from curate.text.clean.rules import DEFAULT, NAMES, clean, rules_named
from tests.text.clean.test_rules import TEXTS


def cleaned(*captions: str | None, **parameters: Any) -> tuple[list[str | None], dict[int, str], dict[str, int]]:
    """Texts, unusable rows, and counters."""
    batch = Batch(pa.table({"key": ["0" * 32] * len(captions), "caption": pa.array(captions, pa.string())}))
    stage = Clean(**parameters)
    columns = stage.process(batch)
    assert list(columns) == stage.schema().names and not batch.failed
    return columns["text"].to_pylist(), batch.unfit, dict(batch.counters)


def test_texts_and_counters() -> None:
    texts, unusable, counters = cleaned("A &amp; B", None, "http://a.org", "x  y", " ", "")
    assert (texts, unusable) == (["A & B", None, None, "x y", None, None], {})
    assert counters == {"entities": 1, "urls": 1, "spaces": 3}


def test_rules_can_be_chosen() -> None:
    assert cleaned("A &amp;  http://a.org", rules=["spaces", "entities"])[0] == ["A & http://a.org"]
    assert Clean(rules=["spaces", "entities"]) == Clean(rules=["entities", "spaces"])
    assert Clean().rules == DEFAULT
    with pytest.raises(ValidationError, match="unknown rule 'spelling'; choose from quoting, entities, mojibake"):
        Clean(rules=["spelling"])


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Clean.model_fields.values())


def test_rules_can_be_left_out_and_added() -> None:
    assert cleaned("#BlueSky ☺", also=["hashtag_words"])[0] == ["Blue Sky"]
    assert cleaned("#BlueSky!! ☺", without=["symbols", "punctuation"])[0] == ["BlueSky!! ☺"]
    assert cleaned("  #x  ", rules=[])[0] == ["  #x  "]


def test_captions_with_endless_nesting_are_unusable() -> None:
    texts, unusable, counters = cleaned("a cat", "&" + "#38;" * 200)
    assert (texts, unusable, counters["unsettled"]) == (["a cat", None], {1: "caption_unsettled"}, 1)


@given(st.lists(st.none() | TEXTS.filter(lambda text: not re.search("[\ud800-\udfff]", text))))
def test_columns_are_cleaned_as_texts_are(captions: list[str | None]) -> None:
    """The column-wise search skips only captions that no rule changes."""
    texts, _, counters = cleaned(*captions, also=NAMES)
    alone = [None if caption is None else clean(caption, rules_named(NAMES)) for caption in captions]
    assert texts == [(text and text[0]) or None for text in alone]
    assert counters == dict(Counter(name for text in alone if text for name in text[1]))


def test_steps_of_a_caption() -> None:
    assert Clean().steps("A &amp; B!!") == [
        ("entities", "A &amp; B!!", "A & B!!"),
        ("punctuation", "A & B!!", "A & B!"),
    ]
