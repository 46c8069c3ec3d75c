"""Captions of the web and of OpenClipart with the text that a careful person would make of them, checked by hand.

data/captions.jsonl, a caption per line: `source` (laion: alt texts of the web; openclipart: titles and descriptions;
made: written where these have too few of a kind), `caption`, `text`, the rules that should change it, the rules that it
might tempt and that should leave it alone, and, where a rule is applied besides the default ones, `also`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.kit.features import shared
from curate.text.clean.rules import DEFAULT, NAMES, clean, rules_named

FILE = Path(__file__).with_name("data") / "captions.jsonl"
CAPTIONS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", CAPTIONS, ids=[str(number) for number in range(1, len(CAPTIONS) + 1)])
def test_captions_become_the_text_that_people_want(row: dict[str, Any]) -> None:
    text, hits = clean(row["caption"], rules_named({*DEFAULT, *row.get("also", ())}))
    assert (text, sorted(hits)) == (row["text"], row["changed_by"])
    assert not hits & set(row["left_by"])


def test_every_rule_is_told_what_to_change_and_what_to_leave() -> None:
    for asked in ("changed_by", "left_by"):
        count = Counter(rule for row in CAPTIONS for rule in row[asked])
        assert {rule: count[rule] for rule in NAMES if count[rule] < 3} == {}


def test_most_captions_are_real() -> None:
    assert len({row["caption"] for row in CAPTIONS if row["source"] != "made"}) >= 250


def test_alt_texts_of_the_web() -> None:
    file = shared() / "data" / "laion-alt-text-10k.parquet"
    if not file.exists():
        pytest.skip(f"{file} is not there; name its folder in CURATE_SHARED")
    captions = pq.read_table(file, columns=["caption"]).column("caption").to_pylist()
    assert {row["caption"] for row in CAPTIONS if row["source"] == "laion"} <= set(captions)
    for caption in captions[:3000]:
        text, _ = clean(caption)
        assert clean(text) == (text, set())
        assert not any(piece in text for piece in ("http://", "https://", "&amp;", "<br", "!!", "  "))
