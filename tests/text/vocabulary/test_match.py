from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from curate.core.contracts import Batch
from curate.core.items import family_of, per_item
from curate.text.phrases import normalised, normalised_all
from curate.text.vocabulary.match import Match

ENTRIES = ["bird", "cream", "ice", "ice cream"]
LISTS = pa.list_(pa.string())


def ran(texts: pa.Array, entries: Sequence[str] = ENTRIES, **parameters: Any) -> tuple[dict[str, Any], Batch]:
    stage = Match(**parameters)
    assert pickle.loads(pickle.dumps(stage)) == stage
    stage.setup({"vocabulary": {"entries": pa.table({"entry": pa.array(entries, pa.string())})}})
    batch = Batch(pa.table({stage.column: texts}))
    out = stage.process(batch)
    assert out[stage.output].type == stage.schema().field(stage.output).type
    fields = {stage.output: Match(**parameters).schema().field(stage.output)}
    assert per_item(fields[stage.output]) and family_of(stage.output, fields) == stage.column
    return {name: value.to_pylist() for name, value in out.items()}, batch


def test_entries_of_texts() -> None:
    out, batch = ran(pa.array(["Ice cream, ice!", None, "nothing", ""]))
    assert out == {"entries": [[["cream", "ice", "ice cream"]], None, [[]], [[]]]}
    assert batch.counters == {"texts_matched": 1, "texts_unmatched": 2, "matches": 3}


def test_entries_of_several_texts_a_row() -> None:
    column = pa.array([["a bird", None, "x"], [], None, ["ICE", "bird of ice"]], LISTS)
    out, batch = ran(column, column="sentences", output="found")
    assert out["found"] == [[["bird"], None, []], [], None, [["ice"], ["bird", "ice"]]]
    assert batch.counters["texts_unmatched"] == 1


WORDS = ["ice", "cream", "a", "é", "и", "&", "ice-cream", "I.C.E.", ", ", "\n", "\0", "|", "😀", "x" * 30]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join) | st.text(max_size=12), max_size=8)


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), max_size=12), TEXTS)
def test_the_same_as_a_loop_over_all_entries(entries: list[str], texts: list[str]) -> None:
    entries = sorted({entry for entry in normalised_all(entries) if entry})
    padded = [f" {normalised(text)} " for text in texts]
    expected = [[entry for entry in entries if f" {entry} " in text] for text in padded]
    assert ran(pa.array(texts, pa.string()), entries)[0]["entries"] == [[found] for found in expected]


def test_overlapping_entries_on_word_boundaries() -> None:
    entries = ["con", "cream", "cream cone", "ice", "ice cream", "paris | texas"]
    texts = ["Ice-cream cones", None, "ICE CREAM CONE", "icecream", "paris texas", "Paris, Texas!"]
    assert ran(pa.array(texts), entries)[0]["entries"] == [
        [["cream", "ice", "ice cream"]], None, [["cream", "cream cone", "ice", "ice cream"]], [[]], [[]],
        [["paris | texas"]],
    ]  # fmt: skip


def test_no_entry_and_no_text() -> None:
    assert ran(pa.array(["a text"]), [])[0]["entries"] == [[[]]]
    assert ran(pa.array([], pa.string()))[0]["entries"] == []


def test_how_batches_are_cut_does_not_matter() -> None:
    texts = pa.array(["ice", None, "a bird", "cream\0ice", "ice cream"] * 7)
    whole = ran(texts)[0]["entries"]
    assert [row for start in range(0, 35, 3) for row in ran(texts.slice(start, 3))[0]["entries"]] == whole


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Match.model_fields.values())
