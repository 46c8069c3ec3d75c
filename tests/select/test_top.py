"""The best rows of each cluster by a score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from curate.core.errors import CurateError
from curate.core.hashing import make_key, ranks
from curate.select.sampling import leaf_quotas
from curate.select.top import SelectTop

PARENTS = [np.array([0, 0, 1, 1])]
TREE: dict[str, Any] = {"parents_1": PARENTS[0], "levels": {"levels": [{"clusters": 4}, {"clusters": 2}]}}


def taken(stage: SelectTop, leaves: list[int], scores: list[Any]) -> list[int]:
    """Rows that the stage takes."""
    stage.setup({"tree": TREE})
    keys = keys_of(len(leaves))
    table = pa.table({"key": pa.array(keys, pa.string()), "cluster_1": np.array(leaves, np.int64), "score": scores})
    lines = stage.deal(table)
    counts = np.bincount(lines.column("unit").to_numpy(), minlength=4)
    copies = stage.pick(lines, counts, stage.plan(counts))["copies"]
    assert set(copies.tolist()) <= {0, 1}
    return np.flatnonzero(copies).tolist()


def keys_of(rows: int) -> list[str]:
    return [make_key("top", str(row)) for row in range(rows)]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40),
    st.sampled_from(["highest", "lowest"]),
    st.data(),
)
def test_the_best_of_each_leaf_with_the_quotas_of_the_tree(
    rows: list[tuple[int, int]], best: str, data: st.DataObject
) -> None:
    leaves, scores = (list(column) for column in zip(*rows, strict=True))
    target = data.draw(st.integers(1, len(rows)))
    quotas = leaf_quotas(np.bincount(leaves, minlength=4), PARENTS, target, seed=3)
    rank, sign = ranks(3, keys_of(len(rows))), -1 if best == "highest" else 1
    expected = []
    for leaf in range(4):
        mine = [row for row in range(len(rows)) if leaves[row] == leaf]
        expected += sorted(mine, key=lambda row: (sign * scores[row], rank[row]))[: quotas[leaf]]
    stage = SelectTop(score="score", best=best, target=target, seed=3)
    assert taken(stage, leaves, [float(score) for score in scores]) == sorted(expected)


def test_a_number_or_a_share_of_each_cluster() -> None:
    leaves, scores = [0] * 5 + [2] * 10 + [3], [float(row) for row in range(16)]
    assert taken(SelectTop(score="score", count_per_cluster=2), leaves, scores) == [3, 4, 13, 14, 15]
    assert taken(SelectTop(score="score", share_per_cluster=0.3), leaves, scores) == [3, 4, 12, 13, 14, 15]
    assert len(taken(SelectTop(score="score", share_per_cluster=0.07), [1] * 100, list(range(100)))) == 7


def test_rows_without_a_score_come_last() -> None:
    for best in ("highest", "lowest"):
        stage = SelectTop(score="score", best=best, count_per_cluster=2)
        assert taken(stage, [1] * 4, [None, 1.0, float("nan"), -5.0]) == [1, 3]


def test_mistakes() -> None:
    with pytest.raises(CurateError, match=r"select.top.score: column 'score' holds string; give a column of numbers"):
        taken(SelectTop(score="score", target=1), [0], ["high"])
    with pytest.raises(ValidationError, match="target: 1 with count_per_cluster: 2; give one of target, share, count_"):
        SelectTop(score="score", target=1, count_per_cluster=2)
    with pytest.raises(ValidationError, match="target: None with share: None with count_per"):
        SelectTop(score="score")
