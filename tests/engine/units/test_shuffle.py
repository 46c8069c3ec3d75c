from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import CorruptError
from curate.core.hashing import key_words, make_key
from curate.core.store.storage import Storage
from curate.engine.units import shuffle

BUCKETS = 5
FILES = st.lists(st.lists(st.lists(st.integers(0, BUCKETS - 1), max_size=20), max_size=4), min_size=1, max_size=3)


def published(storage: Storage, files: list[list[list[int]]]) -> list[shuffle.ShuffleFile]:
    """Parts of each file, with a bucket for each row; a row is (file, part, row)."""
    found = []
    for number, parts in enumerate(files):
        tables = [
            (
                pa.table(
                    {
                        "file": np.full(len(buckets), number, np.int64),
                        "part": np.full(len(buckets), part, np.int64),
                        "row": np.arange(len(buckets)),
                    }
                ),
                np.array(buckets, dtype=np.int64),
            )
            for part, buckets in enumerate(parts)
        ]
        found.append(shuffle.write(storage, f"{number}", tables, BUCKETS, {"parts": len(parts)}))
    return found


@pytest.mark.parametrize("held", [1, 100, shuffle.HELD_BYTES])
@settings(max_examples=25)
@given(files=FILES)
def test_every_row_is_in_its_bucket_in_order(
    tmp_path_factory: pytest.TempPathFactory, held: int, files: list[list[list[int]]]
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("shuffle")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffle, "HELD_BYTES", held)  # 1: every part is written aside
        written = published(storage, files)
    for bucket in range(BUCKETS):
        wanted = [
            (number, part, row)
            for number, parts in enumerate(files)
            for part, buckets in enumerate(parts)
            for row, place in enumerate(buckets)
            if place == bucket
        ]
        assert sum(int(file.rows[bucket]) for file in written) == len(wanted)
        pieces = shuffle.pieces(written, bucket)
        table = shuffle.read(storage, pieces) if pieces else pa.table({"file": [], "part": [], "row": []})
        assert list(zip(*(table[name].to_pylist() for name in ("file", "part", "row")), strict=True)) == wanted


@settings(max_examples=25)
@given(files=FILES)
def test_a_file_records_where_its_buckets_are(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[int]]]
) -> None:
    storage = Storage(str(tmp_path_factory.mktemp("shuffle")))
    for file in published(storage, files):
        again = shuffle.load(storage, file.path)
        assert (again.rows == file.rows).all() and (again.edges == file.edges).all() and again.note == file.note


def test_a_long_trailer_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "_TAIL", 16)
    storage = Storage(str(tmp_path))
    [file] = published(storage, [[[0, 4, 4]]])
    assert shuffle.load(storage, file.path).rows.tolist() == [1, 0, 0, 0, 2]


def test_columns_that_some_files_lack_are_null(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    zeros = np.zeros(1, np.int64)
    tables = pa.table({"a": [1], "b": ["x"]}), pa.table({"a": [2]}), pa.table({"a": [3], "b": pa.nulls(1)})
    files = [shuffle.write(storage, str(i), [(table, zeros)], 1) for i, table in enumerate(tables)]
    assert shuffle.read(storage, shuffle.pieces(files, 0)).to_pydict() == {"a": [1, 2, 3], "b": ["x", None, None]}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    [file] = published(storage, [[[0, 1, 2]]])
    path = tmp_path / "0"
    path.write_bytes(path.read_bytes()[:50])
    for read in (lambda: shuffle.read(storage, shuffle.pieces([file], 2)), lambda: shuffle.load(storage, "0")):
        with pytest.raises(CorruptError, match=r"0: this file between two steps is corrupt or missing .*; remove 0 "):
            read()


@given(st.integers(0, 10**11))
def test_buckets_grow_with_the_rows_only(rows: int) -> None:
    count = shuffle.buckets_for(rows)
    assert count >= 1 and shuffle.buckets_for(rows + 1) >= 1
    assert rows / count <= shuffle.MOST_ROWS
    assert count == 1 or rows / count > shuffle.LEAST_ROWS / 2


@given(st.lists(st.integers(0, 50_000), max_size=3000), st.integers(1, 3000))
def test_stretches_cover_the_shards_with_few_ranges(rows: list[int], buckets: int) -> None:
    found = shuffle.stretches(rows, buckets)
    assert [place for first, stop in found for place in range(first, stop)] == list(range(len(rows)))
    assert buckets * (len(found) - 1) <= shuffle.RANGES_A_SHARD * len(rows)
    least = -(-buckets // shuffle.RANGES_A_SHARD)
    for first, stop in found[:-1]:
        enough = sum(rows[first : stop - 1]) < shuffle.STRETCH_ROWS or stop - 1 - first < least
        assert enough, "a stretch ends as soon as it may"


@pytest.mark.parametrize(("shards", "rows"), [(1_000, 40), (64_000, 4), (64_000, 10_000), (230_000, 10_000)])
def test_three_ranges_a_shard_at_any_size(shards: int, rows: int) -> None:
    buckets = shuffle.buckets_for(shards * rows)
    files = len(shuffle.stretches([rows] * shards, buckets))
    assert files * buckets <= 3.05 * shards
    assert files <= 500 and (shards < 64_000 or files > 10)


@given(st.lists(st.text(), max_size=20), st.integers(0, 5))
def test_packed_keys(names: list[str], cut: int) -> None:
    keys = [make_key("test", name) for name in names]
    for column in (pa.array(keys, pa.string()), pa.chunked_array([keys, keys[cut:]], pa.string())):
        packed = shuffle.packed(column)
        assert packed.type.byte_width == 16
        assert shuffle.unpacked(packed).to_pylist() == column.to_pylist()
        assert shuffle.unpacked(packed.slice(cut)).to_pylist() == column.to_pylist()[cut:]
        assert (shuffle.words_of(packed.slice(cut)) == key_words(column.to_pylist()[cut:])).all()


@pytest.mark.parametrize("keys", [["ab"], [None], ["0" * 31 + "é"]])
def test_an_invalid_key_is_not_packed(keys: list[str]) -> None:
    with pytest.raises(ValueError):
        shuffle.packed(pa.array(keys, pa.string()))
