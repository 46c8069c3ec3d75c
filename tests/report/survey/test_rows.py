from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.survey import rows as report_rows
from curate.report.survey.rows import LabelCounts, add_at, integers, label_values, texts


def test_labels_count_rows_and_copies():
    counts = LabelCounts()
    counts.add(pa.array(["a", "b", None, "a"]), np.array([1, 0, 2, 3]))
    counts.add(pa.array(["b"]), np.array([5]))
    before, after = counts.counts()
    assert counts.names == ["a", "b"]
    assert (before.tolist(), after.tolist()) == ([2, 2], [4, 5])
    assert counts.unlabelled == [1, 2]


def test_labels_beyond_the_limit_are_counted_together(monkeypatch):
    monkeypatch.setattr(report_rows, "MAX_LABELS", 2)
    counts = LabelCounts()
    counts.add(pa.array(["a", "b", "c", "d"]), np.array([1, 1, 1, 2]))
    assert counts.names == ["a", "b"]
    assert counts.others == [2, 3]


@pytest.mark.parametrize(
    ("meta", "label"),
    [
        ('{"category": "shapes"}', "shapes"),
        ('{"category": 7}', "7"),
        ('{"category": ["a", "b"]}', '["a", "b"]'),
        ('{"category": ""}', None),
        ('{"other": 1}', None),
        ("[1]", None),
        ("{broken", None),
        (None, None),
        ('{"category": "\\ud800"}', "?"),
    ],
)
def test_labels_from_meta(meta, label):
    table = pa.table({"meta": pa.array([meta], pa.string())})
    assert label_values(table, "meta.category").to_pylist() == [label]


def test_labels_from_nested_meta_and_columns():
    table = pa.table({"meta": [json.dumps({"a": {"b": "deep"}})], "width": [64]})
    assert label_values(table, "meta.a.b").to_pylist() == ["deep"]
    assert label_values(table, "width").to_pylist() == ["64"]


def test_missing_columns_are_read_as_nulls():
    table = pa.table({"key": ["a", "b"], "copies": pa.array([None, 3], pa.int32())})
    assert integers(table, "copies").tolist() == [0, 3]
    assert integers(table, "cluster_1", -1).tolist() == [-1, -1]
    assert texts(table, "caption").to_pylist() == [None, None]


@given(st.lists(st.lists(st.integers(0, 300), max_size=20), max_size=6))
def test_add_at_equals_bincount(parts):
    totals = np.zeros(0, np.int64)
    for part in parts:
        totals = add_at(totals, np.array(part, dtype=np.int64))
    everything = np.array([number for part in parts for number in part], dtype=np.int64)
    expected = np.bincount(everything, minlength=len(totals))
    assert (totals == expected).all()
