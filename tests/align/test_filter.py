import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.align.filter import Filter
from curate.core.contracts import Batch
from curate.core.errors import CurateError, RecipeError
from curate.core.items import per_item
from curate.core.pipeline import Pipeline
from curate.core.recipe import json_schema
from tests.engine import contract

ITEM = st.none() | st.tuples(st.sampled_from(["a", "", "c"]), st.none() | st.floats(-1, 1, width=32) | st.just(np.nan))


def run(texts, scores, artifacts=None, **parameters):
    stage = Filter(**parameters)
    stage.setup(artifacts or {})
    keys = pa.array([f"{i:032x}" for i in range(len(texts))])
    batch = Batch(pa.table({"key": keys, "text": texts, "similarity": scores}))
    return stage, batch, stage.process(batch)


@given(st.lists(st.none() | st.lists(ITEM, max_size=4), max_size=8), st.floats(-1, 1))
def test_it_keeps_what_numpy_would(rows, least):
    texts = [None if row is None else [item and item[0] for item in row] for row in rows]
    scores = [None if row is None else [item and item[1] for item in row] for row in rows]
    texts, scores = pa.array(texts, pa.list_(pa.string())), pa.array(scores, pa.list_(pa.float32()))
    _, batch, columns = run(texts, scores, threshold=least)
    kept = refused = 0
    for row, made, reject in zip(rows, columns["aligned"].to_pylist(), columns["reject"], strict=True):
        there = [item for item in row or [] if item is not None]
        good = [item is not None and item[1] is not None and item[1] >= np.float32(least) for item in row or []]
        assert made == (None if row is None else [item[0] if ok else None for item, ok in zip(row, good, strict=True)])
        assert reject == ("no_text" if not there else None if any(good) else "dissimilar")
        kept, refused = kept + sum(good), refused + len(there) - sum(good)
    assert (batch.counters["items_kept"], batch.counters["items_refused"]) == (kept, refused)


def test_plain_columns_and_the_schema():
    stage, _, columns = run(pa.array(["a", None, "b"]), pa.array([0.25, 0.9, np.nan]), threshold=0.25)
    assert columns["aligned"].to_pylist() == [["a"], None, [None]]
    assert columns["reject"] == [None, "no_text", "dissimilar"]
    [field] = stage.schema()
    assert per_item(field) and field.type == pa.list_(pa.string()) and b"at least 0.25" in field.metadata[b"of"]


def test_the_threshold_of_a_stage():
    found = {"threshold": {"threshold": {"value": float(np.float32(0.3)), "column": "similarity"}}}
    scores = pa.array(np.array([0.3, np.nextafter(np.float32(0.3), np.float32(0))], np.float32))
    _, _, columns = run(pa.array(["a", "b"]), scores, found)
    assert columns["reject"] == [None, "dissimilar"]
    with pytest.raises(CurateError, match="is one of 'similarity', but the score here is 'other'; name the threshold"):
        Filter(score="other").setup(found)


def test_exactly_one_threshold():
    found = {"threshold": {"threshold": {"value": 0.3, "column": "similarity"}}}
    with pytest.raises(CurateError, match=r"align.filter.threshold: none given; give a number, or name an `align.thre"):
        Filter().setup({})
    with pytest.raises(CurateError, match=r"align.filter.threshold: 0.2 and a stage's 0.3 given; give a number"):
        Filter(threshold=0.2).setup(found)
    with pytest.raises(ValidationError, match="finite number"):
        Filter(threshold=float("nan"))


def test_a_recipe_is_told_before_anything_runs():
    whole = contract.pipeline(contract.Mixed(namespace="contract"), upto="similar")
    for stage in (Filter(column="caption"), Filter(column="caption", threshold=0.2)):
        made = Pipeline()
        made.nodes = dict(whole.nodes)
        made.add("kept", stage, "similar")
        if stage.threshold is None:
            with pytest.raises(RecipeError, match="kept: threshold is missing; give its value, or name the stage that"):
                made.check()
        else:
            made.check()


def test_editors_offer_both():
    stages = json_schema()["properties"]["stages"]["additionalProperties"]["oneOf"]
    schema = next(stage for stage in stages if stage["title"] == "align.filter")
    assert schema["required"] == ["op"]
    value, stage = schema["properties"]["threshold"]["anyOf"][0]["anyOf"]
    assert {option["type"] for option in value["anyOf"]} == {"number", "null"} and stage["type"] == "string"
