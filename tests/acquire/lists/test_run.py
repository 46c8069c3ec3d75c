"""Lists through the engine: portions, counts, and a list that grows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import s3fs

from curate.acquire.lists.list import AcquireList
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import Result, run


def build(workspace: Path, path: str, **parameters: Any) -> Result:
    return run(Pipeline().add("list", AcquireList(path=path, **parameters)), str(workspace))


def portions(workspace: Path, result: Result) -> list[pa.Table]:
    base = result.outputs["list"].split(f"{workspace}/")[1]
    stored = StoredArtifact(open_storage(str(workspace)), base)
    return [stored.portion(line) for line in stored["portions"].to_pylist()]


def write(path: Path, urls: list[str | None], captions: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"url": urls, "text": captions, "width": range(len(urls))}), path, row_group_size=50)


def test_rows_of_one_url_are_in_one_portion(tmp_path: Path) -> None:
    urls: list[str | None] = [f"http://a.example/{n % 100}" for n in range(300)]
    urls += ["HTTP://A.example:80/7", "HTTP://A.example:80/7", None, "", "file:///x"]
    captions = [f"caption {n}" for n in range(300)] + ["caption 7", "new", "a", "b", "c"]
    write(tmp_path / "lists/a.parquet", urls, captions)
    result = build(tmp_path / "workspace", f"{tmp_path}/lists", portion_rows=40)
    entry = result.ledger["list"]
    assert (entry.before, entry.after) == (305, 302)
    assert entry.rejected == Counter({"no_url": 2, "duplicate_row": 1})
    tables = portions(tmp_path / "workspace", result)
    assert len(tables) == 8 and max(table.num_rows for table in tables) <= 44
    groups = [set(table["group"].to_pylist()) for table in tables]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 101
    rows = {row["caption"]: row for table in tables for row in table.to_pylist()}
    assert len(rows) == 302
    assert rows["caption 7"]["url"] == "http://a.example/7", "the first of two copies stays"
    assert (rows["new"]["url"], rows["new"]["meta"]) == ("HTTP://A.example:80/7", '{"width":301}')
    assert (rows["c"]["url"], rows["c"]["reject"]) == ("file:///x", "scheme")


def test_a_grown_list_keeps_its_portions(tmp_path: Path) -> None:
    workspace, lists = tmp_path / "workspace", f"{tmp_path}/lists"
    write(tmp_path / "lists/a.parquet", [f"http://a.example/{n}" for n in range(200)], ["x"] * 200)
    before = portions(workspace, build(workspace, lists, portion_rows=50))
    write(tmp_path / "lists/b.parquet", [f"http://a.example/{n}" for n in range(150, 260)], ["x"] * 110)
    after = portions(workspace, build(workspace, lists, portion_rows=50))
    assert after[: len(before)] == before
    assert sum(table.num_rows for table in after[len(before) :]) == 60


def test_lists_on_an_object_store(object_store: Any, tmp_path: Path) -> None:
    object_store.create_bucket(Bucket="bucket")
    store = s3fs.S3FileSystem()
    write(tmp_path / "a.parquet", [f"http://a.example/{n}" for n in range(120)], ["x"] * 120)
    store.put_file(str(tmp_path / "a.parquet"), "bucket/lists/a.parquet")
    lines = "".join(json.dumps({"url": f"http://b.example/{n}"}) + "\n" for n in range(30))
    store.pipe_file("bucket/lists/b.jsonl.gz", pa.compress(lines.encode(), "gzip", asbytes=True))
    found = {}
    for path, rows in (("s3://bucket/lists/*.parquet", 120), ("s3://bucket/lists/b.jsonl.gz", 30)):
        result = build(tmp_path / "workspace", path)
        found[path] = sum(table.num_rows for table in portions(tmp_path / "workspace", result))
        assert found[path] == rows
    assert "bucket" not in str([part.content for part in AcquireList(path="s3://bucket/lists/*.parquet").plan()])
