from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from curate.core.contracts import Batch
from curate.core.items import family_of, per_item
from curate.text.vocabulary.match import Match

ENTRIES = ["bird", "cream", "ice", "ice cream"]
LISTS = pa.list_(pa.string())


def ran(texts: pa.Array, **parameters: Any) -> tuple[dict[str, Any], Batch]:
    stage = Match(**parameters)
    assert pickle.loads(pickle.dumps(stage)) == stage
    stage.setup({"vocabulary": {"entries": pa.table({"entry": ENTRIES})}})
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


def test_how_batches_are_cut_does_not_matter() -> None:
    texts = pa.array(["ice", None, "a bird", "cream\0ice", "ice cream"] * 7)
    whole = ran(texts)[0]["entries"]
    assert [row for start in range(0, 35, 3) for row in ran(texts.slice(start, 3))[0]["entries"]] == whole


def test_every_parameter_is_described() -> None:
    assert all(info.description for info in Match.model_fields.values())
