from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from curate.report.page.sections import keeper_of, label_table, level_title
from curate.report.survey.rows import LabelCounts


def test_bars_of_labels_are_shares_of_the_largest_shown():
    labels = LabelCounts()
    labels.add(pa.array(["a"] * 6 + ["b"] * 4), np.array([0] * 6 + [1] * 4))
    table = label_table(labels, selected=True)
    assert table is not None
    assert [(bar.name, bar.before, bar.after) for bar in table.bars] == [("a", 6, 0), ("b", 4, 4)]
    assert [bar.before_width for bar in table.bars] == pytest.approx([60, 40])
    assert [bar.after_width for bar in table.bars] == pytest.approx([0, 100])


def test_labels_that_are_not_shown_are_added_up():
    labels = LabelCounts()
    labels.add(pa.array([f"{n:02}" for n in range(40)]), np.full(40, 2))
    table = label_table(labels, selected=True)
    assert table is not None
    assert (len(table.bars), table.rest, table.total) == (15, (25, 25, 50), (40, 80))


def test_no_labels_make_no_table():
    assert label_table(LabelCounts(), selected=True) is None


def test_the_keeper_of_a_rejected_image():
    row = {"key": "a", "duplicate_of": None, "semantic_of": None, "reject_reason": None}
    assert keeper_of(row) is None
    assert keeper_of(row | {"duplicate_of": "b", "reject_reason": "near_duplicate"}) == "b"
    both = {"duplicate_of": "b", "semantic_of": "c"}
    assert keeper_of(row | both | {"reject_reason": "semantic_duplicate"}) == "c"
    assert keeper_of(row | {"duplicate_of": "b", "reject_reason": "semantic_duplicate"}) == "b"
    assert keeper_of(row | both | {"reject_reason": "too_small"}) is None


def test_titles_of_levels():
    assert [level_title(level, 3) for level in (1, 2, 3)] == ["Level 1, finest", "Level 2", "Level 3, coarsest"]
    assert level_title(1, 1) == "Clusters"
