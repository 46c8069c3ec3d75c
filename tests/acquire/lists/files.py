"""Lists on disk in every format, and the rows that are read from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.lists.list import AcquireList

COLUMNS = ["url", "caption", "sha256", "md5", "meta", "reject", "group", "row"]
Write = Callable[[Path, dict[str, list[Any]]], Path]
Row = dict[str, Any]


def rows_of(path: Path | str | tuple[str, ...], **more: Any) -> list[Row]:
    """All rows; checks that parts are JSON-able, and that all tables have one schema."""
    stage = AcquireList(path=str(path) if isinstance(path, Path) else path, **more)
    found: list[Row] = []
    for part in stage.plan():
        assert json.loads(json.dumps(part.content)) == part.content
        for table in stage.read(part):
            assert table.column_names == COLUMNS
            assert [str(kind) for kind in table.schema.types] == ["string"] * 6 + ["uint64"] * 2
            found += table.to_pylist()
    return found


def values(rows: list[Row], *names: str) -> list[Any]:
    return [tuple(row[name] for name in names) if len(names) > 1 else row[names[0]] for row in rows]


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    pq.write_table(pa.table(columns), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def csv_text(columns: dict[str, list[Any]], delimiter: str = ",") -> str:
    def quoted(value: Any) -> str:
        return "" if value is None else '"' + str(value).replace('"', '""') + '"'

    lines = [columns, *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join(map(quoted, line)) + "\n" for line in lines)


def jsonl_text(columns: dict[str, list[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)


def as_file(suffix: str) -> Write:
    def written(path: Path, columns: dict[str, list[Any]]) -> Path:
        file = Path(f"{path}.{suffix}")
        kind, _, packed = suffix.partition(".")
        text = jsonl_text(columns) if kind == "jsonl" else csv_text(columns, "\t" if kind == "tsv" else ",")
        data = text.encode()
        file.write_bytes(pa.compress(data, "zstd" if packed == "zst" else "gzip", asbytes=True) if packed else data)
        return file

    return written


PACKED = ["csv", "tsv", "jsonl", "csv.gz", "tsv.zst", "jsonl.gz", "jsonl.zst"]
WRITERS = {"parquet": write_parquet, **{suffix: as_file(suffix) for suffix in PACKED}}
formats = pytest.mark.parametrize("written", WRITERS.values(), ids=WRITERS)
