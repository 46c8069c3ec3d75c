"""`duplicates.members` and `duplicates.drop` on sets of both stages, called as the engine calls them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from curate.core.contracts import Batch
from curate.core.errors import CurateError
from curate.core.group import MemoryGroup
from curate.core.hashing import key_words
from curate.core.row_lookup import as_bytes, shard_index, shard_word
from curate.duplicates.near.find import KINDS
from curate.duplicates.near.members import DropDuplicates, DuplicateMembers
from tests.core.stored import Stored

KEYS = [f"{row:032x}" for row in range(6)]


def sets(summary: str, **kinds: tuple[int, int]) -> Stored:
    """kind -> (row, keeper's row); adds the keepers. All rows are in one part, in a shard called `known`."""
    rows = {row: (keeper, KINDS.index(kind)) for kind, (row, keeper) in kinds.items()}
    rows |= {keeper: (keeper, 0) for keeper, _ in list(rows.values())}
    words = key_words(KEYS)
    order = sorted(rows)
    members = {
        "key": as_bytes(words[order]),
        "keeper": as_bytes(words[[rows[row][0] for row in order]]),
        "kind": np.array([rows[row][1] for row in order], dtype=np.int8),
    }
    group = MemoryGroup([{"shard": np.array([shard_word("known")]), **{n: a[:0] for n, a in members.items()}}])
    group._stored["members"] = {0: members}
    return Stored({"shards": shard_index(group), "summary": {summary: len(kinds)}}, group)


FOUND = sets("exact_duplicates", exact=(2, 4), near=(5, 4))
SEMANTIC = sets("semantic_duplicates", semantic=(2, 5))


def members(artifact: Stored, keys: list[str] = KEYS, **parameters: Any) -> pa.Table:
    stage = DuplicateMembers(**parameters)
    before = stage.schema()
    stage.setup({"sets": artifact})
    columns = stage.process(Batch(pa.table({"key": pa.array(keys, pa.string())})))
    assert stage.schema().equals(before) and list(columns) == before.names
    return pa.table(columns, schema=stage.schema())


def dropped(table: pa.Table, **parameters: Any) -> list[str | None]:
    stage = DropDuplicates(**parameters)
    return stage.keep(table.select(stage.reads())).to_pylist()


def test_every_row_names_its_set() -> None:
    table = members(FOUND)
    assert table.column_names == ["duplicate_set", "duplicate_of", "duplicate_kind"]
    for row, line in enumerate(table.to_pylist()):
        keeper, kind = {2: (4, "exact"), 5: (4, "near")}.get(row, (row, "keeper"))
        assert tuple(line.values()) == (KEYS[keeper], None if keeper == row else KEYS[keeper], kind)


@pytest.mark.parametrize(
    ("reject", "near", "exact"),
    [
        ("none", None, None),
        ("exact", None, "exact_duplicate"),
        ("near", "near_duplicate", "exact_duplicate"),
        ("semantic", "near_duplicate", "exact_duplicate"),
    ],
)
def test_drop_rejects_kinds_up_to_reject(reject: str, near: str | None, exact: str | None) -> None:
    assert dropped(members(FOUND), reject=reject) == [None, None, exact, None, None, near]


def test_without_duplicates_all_rows_pass() -> None:
    nothing = sets("exact_duplicates")
    table = members(nothing, ["f" * 32, "0" * 32])
    assert table.column("duplicate_set").to_pylist() == ["f" * 32, "0" * 32]
    assert table.column("duplicate_of").null_count == 2 and dropped(table) == [None, None]
    for empty in (members(FOUND, []), members(FOUND).schema.empty_table()):
        assert dropped(empty) == []


def test_semantic_sets_can_use_other_columns() -> None:
    table = members(SEMANTIC, column="semantic")
    assert table.column_names == ["semantic_set", "semantic_of", "semantic_kind"]
    assert table.column("semantic_of").to_pylist() == [None, None, KEYS[5], None, None, None]
    expected = [None, None, "semantic_duplicate", None, None, None]
    assert dropped(table, reject="semantic", column="semantic") == expected
    assert dropped(table, reject="none", column="semantic") == [None] * 6


def test_rows_without_a_kind_pass() -> None:
    assert dropped(pa.table({"duplicate_kind": ["exact", None]})) == ["exact_duplicate", None]


@pytest.mark.parametrize("reject", ["exact", "near"])
def test_a_value_of_reject_without_such_sets_is_an_error(reject: str) -> None:
    message = f"reject: '{reject}' rejects nothing, since the sets of 'duplicate_kind' are semantic; write semantic"
    with pytest.raises(CurateError, match=message):
        dropped(members(SEMANTIC), reject=reject)


def test_sets_of_an_older_version_are_rejected() -> None:
    with pytest.raises(CurateError, match=r"duplicates.members.sets: an older version .*; rerun the stage"):
        DuplicateMembers().setup({"sets": {"duplicates": None, "summary": {}}})


def test_parameters() -> None:
    with pytest.raises(ValidationError):
        DuplicateMembers(column="Two words")
    for stage in (DuplicateMembers(column="a"), DropDuplicates(reject="exact")):
        assert pickle.loads(pickle.dumps(stage)) == stage
        assert all(info.description for info in type(stage).model_fields.values())
