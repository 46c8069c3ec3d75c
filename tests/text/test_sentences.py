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
from curate.kernels.sentences import split_sentences
from curate.text.sentences import Sentences
from tests.kernels.test_sentences import TEXTS


def split(*texts: str | None, **parameters: Any) -> tuple[list[list[str] | None], dict[str, int]]:
    batch = Batch(pa.table({"key": ["0" * 32] * len(texts), "text": pa.array(texts, pa.string())}))
    columns = Sentences(**parameters).process(batch)
    assert list(columns) == ["sentences"] and not batch.unfit
    return columns["sentences"].to_pylist(), {k: v for k, v in batch.counters.items() if v}


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


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Sentences.model_fields.values())
