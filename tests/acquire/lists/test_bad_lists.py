"""Bad lists: each broken row is a reject, or the list is an error of one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.lists import read
from curate.acquire.lists.list import AcquireList
from curate.core.errors import InputError
from tests.acquire.helpers import write
from tests.acquire.lists.files import WRITERS, Write, formats, rows_of, values, write_parquet

# --- broken lines -----------------------------------------------------------------------------------------------------


def test_broken_lines_of_csv(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": 'url,text\nhttp://a.example/,"x, y"\nhttp://b.example/\na,b,c\nhttp://c.example/,z\n'})
    rows = rows_of(tmp_path)
    assert sorted(values(rows, "url", "reject"), key=str) == [
        ("http://a.example/", None), ("http://c.example/", None), ("list.csv, line 3", "bad_line"),
        ("list.csv, line 4", "bad_line"),
    ]  # fmt: skip
    [broken] = [json.loads(row["meta"]) for row in rows if row["url"] == "list.csv, line 3"]
    assert broken == {"line": "http://b.example/", "error": "1 columns, expected 2"}


def test_only_broken_lines(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "url,text\nx\ny\n"})
    assert values(rows_of(tmp_path), "reject") == ["bad_line"] * 2


def test_an_open_quote_in_csv_costs_its_line(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": 'url,text\nhttp://a.example/,x\n"http://b.example/,y\nhttp://c.example/,z\n'})
    assert values(rows_of(tmp_path), "url", "reject") == [
        ("list.csv, line 3", "unclosed_quote"), ("http://a.example/", None), ("http://c.example/", None),
    ]  # fmt: skip


def test_broken_lines_of_json(tmp_path: Path) -> None:
    text = '\ufeff{"url": "http://a.example/"}\n\n{"url": \n[1]\n7\n{"url": "http://b.example/"}'
    write(tmp_path, {"list.jsonl": text.encode() + b'\n{"url": "http://\xe9.example/"}\n' + b"[" * 100_000})
    rows = rows_of(tmp_path)
    assert sorted(values(rows, "url", "reject"), key=str) == [
        ("http://a.example/", None), ("http://b.example/", None),
        *((f"list.jsonl, line {line}", "bad_line") for line in (3, 4, 5, 7, 8)),
    ]  # fmt: skip


def test_a_line_of_json_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LINE_BYTES", 1000)
    monkeypatch.setattr(read, "JSON_BLOCK_BYTES", 300)
    lines = [{"url": "http://a.example/"}, {"url": "http://b.example/", "x": "y" * 5000}, {"url": "http://c.example/"}]
    write(tmp_path, {"list.jsonl": "\n".join(map(json.dumps, lines))})
    rows = rows_of(tmp_path)
    assert sorted(values(rows, "url")) == ["http://a.example/", "http://c.example/", "list.jsonl, line 2"]


def test_values_of_json_of_any_type(tmp_path: Path) -> None:
    lines = [
        {"url": "http://a.example/", "text": ["", "first", "second"], "n": {"m": [1, None]}},
        {"url": 7, "text": 8},
        {"text": "x"},
        {"url": "http://a.example/\ud800", "text": "\ud800", "x": "\ud800", "y": float("nan")},
        {"url": "http://b.example/", "text": None, "sha256": 5, "late": True},
    ]
    write(tmp_path, {"list.jsonl": "\n".join(map(json.dumps, lines))})
    rows = rows_of(tmp_path, columns={"sha256": "sha256"})
    assert values(rows, "url", "caption", "reject") == [
        ("http://a.example/", "first", None),
        ("7", "8", "bad_url"),
        ("", "x", "no_url"),
        ("http://a.example/\ufffd", "\ufffd", None),
        ("http://b.example/", None, None),
    ]
    assert [json.loads(text) for text in values(rows, "meta")] == [
        {"n": {"m": [1, None]}, "text": ["", "first", "second"]}, {}, {}, {"x": "\ufffd", "y": None},
        {"late": True, "sha256": "5"},
    ]  # fmt: skip


def test_json_that_is_nested_deeply(tmp_path: Path) -> None:
    deep = [f'{{"url": "http://a.example/", "x": {"[" * depth}NaN{"]" * depth}}}' for depth in (10, 400, 900, 5000)]
    write(tmp_path, {"list.jsonl": "\n".join(deep)})
    rows = rows_of(tmp_path)
    assert len(rows) == 4 and set(values(rows, "reject")) == {None, "bad_line"}


def not_utf8(texts: list[bytes]) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_text_that_is_not_utf8(tmp_path: Path, suffix: str) -> None:
    urls = [b"http://a.example/", b"http://a.example/\xe9", b"http://b.example/"]
    texts, others = [b"caf\xe9", b"x", b"y"], [b"1", b"2", b"\xe9"]
    if suffix == "parquet":
        columns = {"url": not_utf8(urls), "text": not_utf8(texts), "by": not_utf8(others)}
        pq.write_table(pa.table(columns), tmp_path / "list.parquet")
    else:
        lines = [b"url,text,by", *(b",".join(row) for row in zip(urls, texts, others, strict=True))]
        write(tmp_path, {"list.csv": b"\n".join(lines)})
    rows = rows_of(tmp_path)
    assert values(rows, "url", "caption", "meta", "reject") == [
        ("http://a.example/", "caf\ufffd", '{"by":"1"}', "caption_not_utf8"),
        ("http://a.example/\ufffd", "x", '{"by":"2"}', "bad_url"),
        ("http://b.example/", "y", '{"by":"\ufffd"}', None),
    ]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "more", "message"),
    [
        ({"list.csv": "href,text\na,b\n"}, {}, r"list.csv: no column is called url; found 'href', 'text'; set columns"),
        ({"list.csv": "http://a.example/,x\nhttp://b.example/,y\n"}, {}, "or add the line of names"),
        ({"list.csv": ""}, {}, "has no rows; give lists with rows"),
        ({"list.csv": "url,text\n", "b.csv": "url\n"}, {}, "has no rows; give lists with rows"),
        ({"list.jsonl": "\n\n"}, {}, "has no rows; give lists with rows"),
        ({"list.jsonl": '[{"url": "x"}]\n'}, {}, "list.jsonl: no line is a JSON object; expected an object per line"),
        ({"list.txt": "http://a.example/"}, {}, r"has no .parquet, .csv, .*file \(found 1 .txt\)"),
        ({"list.csv": "url\na\n", "b.jsonl": "{}\n"}, {}, r"\(csv, jsonl\); convert them to one, or set `format`"),
        ({"list.parquet": "PAR1 cut"}, {}, r"list.parquet: cannot be read \(.*\); replace or remove it"),
        ({"list.csv.gz": gzip.compress(b"url\na\n" * 99)[:-20]}, {}, "cannot be read .Truncated compressed stream"),
        ({"list.csv.gz": "url\na\n"}, {}, "list.csv.gz: cannot be read"),
        ({"list.csv": "url;text\na;b\n"}, {}, "no column is called url; found 'url;text'; .*, or set `delimiter`"),
        ({"list.csv": "url,url\na,b\n"}, {}, "two columns have one name"),
        ({"list.csv": "url,text\na,b\n"}, {"columns": {"caption": "words"}}, "columns.caption: no column 'words'"),
        ({"list.csv": "url,text\na,b\n"}, {"keep": ("txet",)}, "keep: no column 'txet'; did you mean 'text'"),
    ],
)
def test_lists_that_cannot_be_planned(
    tmp_path: Path, files: dict[str, bytes | str], more: dict[str, Any], message: str
) -> None:
    write(tmp_path, files)
    with pytest.raises(InputError, match=message) as caught:
        AcquireList(path=str(tmp_path), **more).plan()
    assert "\n" not in str(caught.value)


def test_a_format_may_be_chosen(tmp_path: Path) -> None:
    write(tmp_path, {"list.csv": "url;text\nhttp://a.example/;b\n", "b.jsonl": '{"url": "http://b.example/"}\n'})
    assert values(rows_of(tmp_path, format="csv", delimiter=";"), "caption") == ["b"]
    assert values(rows_of(tmp_path, format="jsonl"), "url") == ["http://b.example/"]


def test_a_parquet_file_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="has no rows; give lists with rows"):
        rows_of(tmp_path)
    write_parquet(tmp_path / "b", {"url": ["http://a.example/"]})
    assert values(rows_of(tmp_path), "url") == ["http://a.example/"]


def test_a_parquet_file_of_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [b"http://a.example/"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet: no column has text; found 'url' \(binary\); write the URLs"):
        rows_of(tmp_path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"url": ["x"]}, r"b.parquet: columns differ from those of the first file \(text\)"),
        ({"url": ["x"], "text": ["y"], "n": [1]}, r"columns differ from those of the first file \(n\)"),
        ({"text": ["y"]}, "b.parquet: no column is called url"),
        ({"url": [7], "text": ["y"]}, r"b.parquet: column 'url' is int64; expected text"),
    ],
)
def test_files_of_other_columns_are_named(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    write_parquet(tmp_path / "a", {"url": ["http://a.example/"], "text": ["x"]})
    write_parquet(tmp_path / "b", columns)
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path)


def test_a_list_that_is_cut(tmp_path: Path) -> None:
    for written in WRITERS.values():
        path = written(tmp_path / "list", {"url": [f"http://a.example/{n * 7919}" for n in range(2000)]})
        if path.suffix in (".parquet", ".gz", ".zst"):
            path.write_bytes(path.read_bytes()[:-2000])
            with pytest.raises(InputError, match=r"cannot be read"):
                rows_of(path)


def test_a_corrupt_row_group_is_an_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "list", {"url": [f"http://a.example/{n}" for n in range(100)]})
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"list.parquet: cannot be read"):
        rows_of(path)


@pytest.mark.parametrize("when", ["before", "while"])
@formats
def test_a_list_that_changes(tmp_path: Path, written: Write, when: str) -> None:
    path = written(tmp_path / "list", {"url": ["http://a.example/"]})
    stage = AcquireList(path=str(path), quotes=True)
    [part] = stage.plan()
    tables = stage.read(part)
    if when == "while":
        next(tables)
    written(tmp_path / "list", {"url": ["http://a.example/", "http://b.example/"]})
    with pytest.raises(InputError, match=r"list.*: changed while it was read; run again"):
        list(tables)


def test_a_list_that_is_deleted(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "list", {"url": ["http://a.example/"]})
    stage = AcquireList(path=str(path))
    [part] = stage.plan()
    path.unlink()
    with pytest.raises(InputError, match="deleted while it was read; run again"):
        list(stage.read(part))


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "list.csv").symlink_to(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"list.csv: dangling_link; make it readable or remove it"):
        AcquireList(path=str(tmp_path)).plan()


@pytest.mark.parametrize("columns", [{"text": "a"}, {"url": None}])
def test_unknown_columns_are_named(columns: dict[str, str | None]) -> None:
    with pytest.raises(ValueError, match="expected a column's name for one of url, caption, sha256, md5"):
        AcquireList(path="x", columns=columns)


def test_names_in_quotes_between_tabs_lead_to_the_parameter(tmp_path: Path) -> None:
    write(tmp_path, {"list.tsv": '"url"\t"text"\n"http://a.example/"\t"x"\n'})
    with pytest.raises(InputError, match="or set `quotes: true`"):
        rows_of(tmp_path)
    assert values(rows_of(tmp_path, quotes=True), "url", "caption") == [("http://a.example/", "x")]
