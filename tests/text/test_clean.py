from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.core.stage import Batch
from curate.text.clean import Clean
from curate.text.rules import NAMES


def cleaned(*captions: str | None, **parameters: Any) -> tuple[list[str | None], list[str | None], dict[str, int]]:
    batch = Batch(pa.table({"key": ["0" * 32] * len(captions), "caption": pa.array(captions, pa.string())}))
    columns = Clean(**parameters).process(batch)
    return columns["text"], columns["reject"], dict(batch.counters)


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
    assert Clean().rules == NAMES
    with pytest.raises(ValidationError, match="'spelling' is no rule; choose from entities, mojibake"):
        Clean(rules=["spelling"])


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Clean.model_fields.values())
