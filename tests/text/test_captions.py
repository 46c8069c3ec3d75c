"""Captions of the web and of OpenClipart with their expected text, checked by hand.

data/captions.jsonl, a caption per line: `source` (laion: alt texts of the web; openclipart: titles and descriptions;
made: invented for rules with too few real captions), `caption`, `text`, `changed_by` (rules that should change it),
`left_by` (rules that might change it but should not), and `also` (rules in addition to the defaults).
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


def test_captions_become_the_expected_text() -> None:
    wrong = []
    for number, row in enumerate(CAPTIONS, 1):
        text, hits = clean(row["caption"], rules_named({*DEFAULT, *row.get("also", ())}))
        if (text, sorted(hits)) != (row["text"], row["changed_by"]) or hits & set(row["left_by"]):
            wrong.append(f"line {number}: {text!r} by {sorted(hits)} of {row}")
    assert len(CAPTIONS) > 300 and not wrong, "\n".join(wrong)


def test_every_rule_has_captions_to_change_and_to_leave() -> None:
    for field in ("changed_by", "left_by"):
        count = Counter(rule for row in CAPTIONS for rule in row[field])
        assert {rule: count[rule] for rule in NAMES if count[rule] < 3} == {}


def test_most_captions_are_real() -> None:
    assert len({row["caption"] for row in CAPTIONS if row["source"] != "made"}) >= 250


def test_alt_texts_of_the_web() -> None:
    file = shared() / "data" / "laion-alt-text-10k.parquet"
    if not file.exists():
        pytest.skip(f"{file} does not exist; set CURATE_SHARED to its folder")
    captions = pq.read_table(file, columns=["caption"]).column("caption").to_pylist()
    assert {row["caption"] for row in CAPTIONS if row["source"] == "laion"} <= set(captions)
    for caption in captions[:3000]:
        text, _ = clean(caption)
        assert clean(text) == (text, set())
        assert not any(piece in text for piece in ("http://", "https://", "&amp;", "<br", "!!", "  "))
