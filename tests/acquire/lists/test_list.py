"""Lists of every format: what becomes of their rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.lists import list as lists
from curate.acquire.lists import read
from curate.acquire.lists.list import AcquireList
from curate.acquire.lists.rows import REASONS
from tests.acquire.helpers import write
from tests.acquire.lists.files import WRITERS, Write, as_file, formats, rows_of, values, write_parquet


@formats
def test_every_format(tmp_path: Path, written: Write) -> None:
    columns = {
        "URL": ["http://a.example/1", "HTTP://A.example/1", "http://a.example/2"],
        "TEXT": [" one ", "one", 'two, "zwei"\n and\tdeux'],
        "SHA256": ["A" * 64, "b" * 64, "c" * 63],
        "license": ["?", "é", ""],
    }
    rows = rows_of(written(tmp_path / "list", columns), quotes=True)
    assert values(rows, "url", "caption") == [
        ("http://a.example/1", "one"),
        ("HTTP://A.example/1", "one"),
        ("http://a.example/2", 'two, "zwei"\n and\tdeux'),
    ]
    assert values(rows, "sha256") == ["a" * 64, "b" * 64, None]
    assert [json.loads(text) for text in values(rows, "meta")] == [
        {"license": "?"}, {"license": "é"}, {"license": "", "sha256": "c" * 63},
    ]  # fmt: skip
    assert values(rows, "md5", "reject") == [(None, None)] * 3
    group, row = values(rows, "group"), values(rows, "row")
    assert group[0] == group[1] != group[2] and row[0] == row[1] != row[2]


@formats
def test_rows_without_a_url_are_dropped_and_counted(tmp_path: Path, written: Write) -> None:
    columns = {"url": ["", "  ", None, "http://a.example/"], "text": ["a", "b", "c", None]}
    rows = rows_of(written(tmp_path / "list", columns), quotes=True)
    assert values(rows, "reject") == ["no_url", "no_url", "no_url", None]
    assert [group is None for group in values(rows, "group")] == [True, True, True, False]
    assert values(rows, "caption")[3] is None


@formats
def test_urls_that_cannot_be_fetched_keep_their_rows(tmp_path: Path, written: Write) -> None:
    urls = ["/a.jpg", "file:///etc/passwd", "data:,x", "http://u:p@a.example/", "http://bücher.example/ü"]
    rows = rows_of(written(tmp_path / "list", {"url": urls, "text": ["x"] * 5}), quotes=True)
    assert values(rows, "url", "reject") == list(
        zip(urls, ["bad_url", "scheme", "scheme", "credentials", None], strict=True)
    )
    assert all(group is not None for group in values(rows, "group"))


@formats
def test_a_url_of_10_megabytes_is_cut(tmp_path: Path, written: Write) -> None:
    urls = [f"http://a.example/{'x' * 10_000_000}", "http://a.example/"]
    rows = rows_of(written(tmp_path / "list", {"url": urls, "text": ["long", "short"]}), quotes=True)
    assert values(rows, "reject", "caption") == [("url_too_long", "long"), (None, "short")]
    assert len(rows[0]["url"]) < 2200


def test_the_same_rows_have_the_same_hashes_in_every_format(tmp_path: Path) -> None:
    columns = {"url": [f"http://a.example/{n}" for n in range(9)], "text": [None, "é", *"abcdefg"]}
    found = [
        values(rows_of(written(tmp_path / "list", columns), quotes=True), "group", "row")
        for written in WRITERS.values()
    ]
    assert all(hashes == found[0] for hashes in found) and len(set(found[0])) == 9


def test_the_caption_is_part_of_the_row_only(tmp_path: Path) -> None:
    columns = {"url": ["http://a.example/"] * 3, "text": ["a", "b", None]}
    rows = rows_of(write_parquet(tmp_path / "list", columns))
    assert len(set(values(rows, "group"))) == 1 and len(set(values(rows, "row"))) == 3


def test_columns_can_be_named_and_others_left_out(tmp_path: Path) -> None:
    columns = {"href": ["http://a.example/"], "words": ["one"], "w": [3], "h": [4]}
    path = write_parquet(tmp_path / "list", columns)
    named = {"url": "href", "caption": "words"}
    assert values(rows_of(path, columns=named), "caption", "meta") == [("one", '{"h":4,"w":3}')]
    assert values(rows_of(path, columns=named, keep=("w",)), "meta") == ['{"w":3}']
    assert values(rows_of(path, columns=named, keep=()), "meta") == ["{}"]


def test_images_in_the_list_are_not_read(tmp_path: Path) -> None:
    columns = {"url": ["http://a.example/"], "jpg": [b"x"], "image": [{"bytes": b"x", "path": "a"}]}
    assert values(rows_of(write_parquet(tmp_path / "list", columns)), "meta") == ["{}"]


def test_a_file_is_shared_by_several_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"url": [f"http://a.example/{n}" for n in range(70)]})
    pq.write_table(table, tmp_path / "list.parquet", row_group_size=10)
    whole = rows_of(tmp_path)
    monkeypatch.setattr(lists, "PART_BYTES", (tmp_path / "list.parquet").stat().st_size // 3)
    stage = AcquireList(path=str(tmp_path))
    parts = stage.plan()
    assert len(parts) > 3 and sum(part.bytes for part in parts) <= (tmp_path / "list.parquet").stat().st_size
    assert rows_of(tmp_path) == whole and len(whole) == 70


def test_folders_globs_and_lists_of_paths(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        as_file("csv")(tmp_path / name, {"url": [f"http://{name}.example/"]})
    write(tmp_path, {"readme.md": "x", "empty.csv": ""})
    urls = [f"http://{name}.example/" for name in "abc"]
    assert values(rows_of(tmp_path), "url") == urls
    assert values(rows_of(f"{tmp_path}/[ab].csv"), "url") == urls[:2]
    assert values(rows_of((f"{tmp_path}/{{a,c}}.csv", f"{tmp_path}/b.csv")), "url") == urls


def test_small_batches_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"url": [f"http://a.example/{n}" for n in range(90)], "text": [f"text\n{n}" for n in range(90)]}
    paths = [written(tmp_path / "list", columns) for written in WRITERS.values()]
    expected = rows_of(paths[0])
    for name, value in {"BATCH_ROWS": 7, "BATCH_BYTES": 99, "READ_BYTES": 100, "JSON_BLOCK_BYTES": 13}.items():
        monkeypatch.setattr(read, name, value)
    assert all(rows_of(path, quotes=True) == expected for path in paths)


def test_every_reason_and_parameter_is_described() -> None:
    assert all(REASONS.values())
    assert all(field.description for field in AcquireList.model_fields.values())
