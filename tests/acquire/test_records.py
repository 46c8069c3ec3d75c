"""Records of CSV: legal fields of several lines lose nothing; one planted quote costs at most one record, named."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from curate.acquire import records
from curate.acquire.folder import AcquireFolder
from curate.acquire.lists.rows import UNCLOSED_QUOTE
from curate.acquire.records import Records
from tests.acquire.helpers import PNG, write
from tests.acquire.lists.files import rows_of

TEXT = st.text(st.sampled_from('abü ,"\n\r\t;'), max_size=12)
BARE = st.text(st.sampled_from("abü ;'\""), max_size=12).filter(lambda text: not text.startswith('"'))


def blocks(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


def divided(data: bytes, sizes: list[int], **more: Any) -> list[Records]:
    return list(records.records(filter(None, blocks(data, sizes)), ",", **more))


def written(rows: list[list[str]], end: str = "\n") -> bytes:
    """Fields are bare where that is legal, also by a reader that ends a line at a carriage return."""
    sink = io.StringIO(newline="")
    for row in rows:
        quoting = csv.QUOTE_ALL if any("\r" in field for field in row) else csv.QUOTE_MINIMAL
        csv.writer(sink, lineterminator=end, quoting=quoting).writerow(row)
    return sink.getvalue().encode()


def is_ambiguous(row: list[str]) -> bool:
    """Whether lines of a row look like rows themselves."""
    lines = written([row]).decode().strip("\r\n").splitlines()
    return len(lines) > 2 and lines[0].count(",") == lines[-1].count(",") == len(row) - 1


SIZES = st.lists(st.integers(1, 20), max_size=30)


ROWS = st.integers(2, 4).flatmap(lambda width: st.lists(st.lists(TEXT, min_size=width, max_size=width), max_size=8))


@given(ROWS, SIZES, st.sampled_from(["\n", "\r\n"]))
def test_legal_fields_of_several_lines_lose_nothing(rows: list[list[str]], sizes: list[int], end: str) -> None:
    assume(not any(map(is_ambiguous, rows)))
    names = [f"n{place}" for place in range(len(rows[0]) if rows else 2)]
    data = written([names, *rows], end)
    found = divided(data, sizes)
    assert not [one for one in found if one.bad is not None]
    assert b"".join(one.data for one in found) == data
    assert list(csv.reader(io.StringIO(b"".join(one.data for one in found).decode(), newline=""))) == [names, *rows]
    lines = 1
    for one in found:
        assert one.line == lines
        lines += len(one.data.splitlines())


@given(st.lists(BARE, min_size=1, max_size=30), st.data(), SIZES, st.booleans())
def test_one_planted_quote_costs_at_most_one_record(
    captions: list[str], data: st.DataObject, sizes: list[int], quoted: bool
) -> None:
    place = data.draw(st.integers(0, len(captions) - 1))
    lines = [f"http://a/{number},{text}" for number, text in enumerate(captions)]
    if quoted:
        lines[::3] = [written([line.split(",", 1)]).decode().strip() for line in lines[::3]]
    planted = lines[place].replace(",", ',"', 1)
    text = "\n".join(["url,caption", *lines[:place], planted, *lines[place + 1 :]]) + "\n"
    found = divided(text.encode(), sizes)
    lost = [one for one in found if one.bad is not None]
    kept = list(csv.reader(io.StringIO(b"".join(one.data for one in found).decode())))
    others = {row[0] for row in csv.reader(lines[:place] + lines[place + 1 :])}
    assert others <= {row[0] for row in kept}
    assert [(one.line, one.bad) for one in lost] in ([], [(place + 2, f"{planted}\n".encode())])
    assert len(kept) + len(lost) == 1 + len(lines)


@given(st.binary(max_size=200), SIZES, st.booleans())
def test_every_byte_is_in_one_record(data: bytes, sizes: list[int], quotes: bool) -> None:
    found, whole = divided(data, sizes, quotes=quotes), divided(data, [], quotes=quotes)
    assert b"".join(one.data + (one.bad or b"") for one in found) == data
    assert [one for one in found if one.bad] == [one for one in whole if one.bad]
    assert not any(one.bad for one in found if not one.data and one.bad in (b"\n", b"\r", b"\r\n"))


FIELDS = st.lists(
    st.sampled_from([b"", b"a", b'"a, b"', b'"a\tb"', b'""', b'a"b', b"\xff", b"\xe9t\xe9", b"\0"]), max_size=4
)


@given(
    st.lists(FIELDS, min_size=1, max_size=20),
    st.sampled_from([b",", b"\t"]),
    st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
)
def test_a_line_of_another_width_costs_no_other(rows: list[list[bytes]], of: bytes, end: bytes) -> None:
    """Whether it is UTF-8 or not."""
    lines = [of.join([b"http://a/%d" % place, *fields]) for place, fields in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), {"list.csv": end.join([of.join([b"url", b"caption", b"more"]), *lines, b""])})
        found = rows_of(Path(folder), delimiter=of.decode())
    wrong = [place for place, fields in enumerate(rows) if len(fields) != 2]
    apart = end.count(b"\n")
    assert {row["url"] for row in found if row["reject"] == "bad_line"} == {
        f"list.csv, line {1 + apart * (place + 1)}" for place in wrong
    }
    assert {row["url"] for row in found if row["reject"] != "bad_line"} == {
        f"http://a/{place}" for place in range(len(rows)) if place not in wrong
    }
    assert len(found) == len(rows)


def test_a_record_of_several_lines_and_another_width_is_one_reject(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"list.csv": 'url,caption,x\nhttp://a/1,"a\nb","a\nb",z\nhttp://a/2,"first\n, second"\nhttp://a/3,b,c\n'},
    )
    rows = rows_of(tmp_path)
    assert [(row["url"], row["reject"]) for row in rows] == [
        ("list.csv, line 2", "bad_line"), ("list.csv, line 5", "bad_line"), ("http://a/3", None),
    ]  # fmt: skip


def test_the_time_is_linear_in_the_number_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the bytes that are searched for line breaks; the line is much wider than the table."""
    searched = 0

    class Search:
        def search(self, data: bytes, start: int = 0, stop: int | None = None) -> Any:
            nonlocal searched
            searched += (len(data) if stop is None else stop) - start
            return found.search(data, start) if stop is None else found.search(data, start, stop)

    found = records._FIRST
    monkeypatch.setattr(records, "_FIRST", Search())
    line = b"url,caption\n" + b"," * 5000 + b"\n"
    assert [one.why for one in records.records([line], ",")] == ["", "5001 columns, expected 2"]
    assert searched < 20 * len(line)


def test_a_stray_quote_in_a_list(tmp_path: Path) -> None:
    lines = [f"http://a/{number}\tcaption {number}" for number in range(10_000)]
    lines[3000] = 'http://a/3000\t"5 inch" screen'
    lines[7000] = 'http://a/7000\tends"'
    text = "\n".join(["url\tcaption", *lines]) + "\n"
    write(tmp_path, {"a/list.tsv": text, "b/list.csv": text.replace("\t", ",")})
    rows = rows_of(tmp_path / "a")
    assert len(rows) == 10_000 and not any(row["reject"] for row in rows)
    assert {row["caption"] for row in rows} >= {'"5 inch" screen', 'ends"'}
    rows = rows_of(tmp_path / "b")
    assert [(row["url"], row["reject"]) for row in rows if row["reject"]] == [("list.csv, line 3002", UNCLOSED_QUOTE)]
    assert len(rows) == 10_000


def test_quotes_are_what_the_parameter_says(tmp_path: Path) -> None:
    write(tmp_path, {"list.tsv": 'url\tcaption\nhttp://a/1\t"one\ntwo"\n'})
    [row] = rows_of(tmp_path, quotes=True)
    assert row["caption"] == "one\ntwo"
    assert {row["reject"] for row in rows_of(tmp_path)} == {None, "bad_line"}


@pytest.mark.parametrize("name", ["metadata.csv", "more.csv"])
def test_a_stray_quote_in_a_metadata_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / "images", {f"{number}.png": PNG for number in range(5)})
    lines = [f"{number}.png,caption {number}" for number in range(5)]
    lines[2] = '2.png,"caption 2'
    place = tmp_path / ("images" if name == "metadata.csv" else "")
    write(place, {name: "\n".join(["file_name,caption", *lines])})
    more = {} if name == "metadata.csv" else {"metadata": str(place / name)}
    source = AcquireFolder(namespace="test", path=str(tmp_path / "images"), **more)
    rows = [row for portion in source.plan() for row in source.read(portion)]
    assert [(row.caption, row.reject) for row in rows] == [
        ("caption 0", None), ("caption 1", None), (None, UNCLOSED_QUOTE), ("caption 3", None), ("caption 4", None),
    ]  # fmt: skip
