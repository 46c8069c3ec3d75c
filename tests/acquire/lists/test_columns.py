from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from curate.acquire.fields import plain
from curate.acquire.lists.columns import Layout, added, caption_of, digest_of, find_layout, meta_of, strings
from curate.core.errors import InputError

LAION = ["SAMPLE_ID", "URL", "TEXT", "HEIGHT", "WIDTH", "LICENSE", "NSFW", "similarity"]
DATACOMP = ["uid", "url", "text", "original_width", "clip_b32_similarity_score", "face_bboxes", "sha256"]


def not_utf8(values: list[bytes | None]) -> pa.Array:
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), array.buffers(), array.null_count)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (LAION, Layout("URL", "TEXT", meta=("HEIGHT", "LICENSE", "NSFW", "SAMPLE_ID", "WIDTH", "similarity"))),
        (
            DATACOMP,
            Layout(
                "url", "text", "sha256",
                meta=("clip_b32_similarity_score", "face_bboxes", "original_width", "uid"),
            ),
        ),
        (["image_url", "caption", "alt_text", "MD5"], Layout("image_url", "caption", None, "MD5", ("alt_text",))),
        (["link", "url"], Layout("url", meta=("link",))),
        (["url"], Layout("url")),
    ],
)  # fmt: skip
def test_columns_are_found_by_name(names: list[str], expected: Layout) -> None:
    assert find_layout(names, "x", {}, None) == expected


def test_columns_may_be_named_or_left_out() -> None:
    found = find_layout(["a", "b", "c", "url"], "x", {"url": "a", "caption": "b"}, ("c",))
    assert found == Layout("a", "b", meta=("c",))
    assert find_layout(DATACOMP, "x", {"sha256": None}, ()) == Layout("url", "text")


@pytest.mark.parametrize(
    ("names", "given", "keep", "message"),
    [
        (["text", "href"], {}, None, r"no column is called url; found 'text', 'href'; set columns: \{url: NAME\}"),
        (["url"], {"url": "URL"}, None, "columns.url: no column 'URL'; found 'url'"),
        (["url", "text"], {"caption": "words"}, None, "columns.caption: no column 'words'"),
        (["url", "width"], {}, ("with",), "keep: no column 'with'; did you mean 'width'"),
        (["url", "url"], {}, None, "two columns have one name"),
        ([f"c{n}" for n in range(99)], {}, None, "'c19' …;"),
    ],
)
def test_missing_columns_are_one_line_errors(names: list[str], given: Any, keep: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        find_layout(names, "x.parquet", given, keep)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("x.parquet: ")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_any_type_of_text(kind: pa.DataType) -> None:
    found, bad = strings(pa.array(["a", None, "é"]).cast(kind))
    assert (found.type, found.to_pylist(), bad) == (pa.string(), ["a", None, "é"], None)


def test_numbers_as_text() -> None:
    assert strings(pa.array([1, None]))[0].to_pylist() == ["1", None]


def test_bytes_that_are_not_utf8() -> None:
    found, bad = strings(not_utf8([b"caf\xe9", b"fine", None]))
    assert found.to_pylist() == ["caf\ufffd", "fine", None]
    assert bad is not None and bad.to_pylist() == [True, False, False]


def test_captions() -> None:
    found, bad = caption_of(pa.array([" a b\n", "", " \t", None, "\x1ca\u3000"]))
    assert (found.to_pylist(), bad) == (["a b", None, None, None, "a"], None)
    assert caption_of(pa.array([["", " x ", "y"], [], None]))[0].to_pylist() == ["x", None, None]
    assert caption_of(pa.array([7, None]))[0].to_pylist() == ["7", None]


def test_captions_are_stripped_as_python_does() -> None:
    texts = [chr(code) for code in range(0x3100) if chr(code).isspace()] + ["\u200b", "\ufeff"]
    assert caption_of(pa.array([f"{text}a{text}" for text in texts]))[0].to_pylist() == [
        f"{text}a{text}".strip() for text in texts
    ]


def test_digests() -> None:
    values = ["A" * 32, " " + "0" * 32, "0" * 31, "g" * 32, "", None, "0" * 64]
    found, wrong = digest_of(pa.array(values), "md5")
    assert found.to_pylist() == ["a" * 32, "0" * 32, None, None, None, None, None]
    assert wrong.to_pylist() == [False, False, True, True, False, False, True]
    assert digest_of(pa.array(values), "sha256")[0].to_pylist() == [None] * 6 + ["0" * 64]


# --- meta ---

COLUMNS = {
    "whole": pa.array([1, None, -(2**63)]),
    "large": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "float": pa.array([0.1, float("nan"), 1e-7]),
    "single": pa.array([0.1, None, 2.5], pa.float32()),
    "flag": pa.array([True, False, None]),
    "text": pa.array(['"é"\n\u2028\\', "", None]),
    "words": pa.array(["a", None, "a"]).dictionary_encode(),
    "nothing": pa.nulls(3),
}
ODD = {
    "when": pa.array([datetime(2024, 5, 6, tzinfo=UTC), None, None]),
    "day": pa.array([date(2024, 5, 6), None, None]),
    "span": pa.array([timedelta(seconds=1.5), None, None]),
    "price": pa.array([Decimal("1.50"), None, None]),
}
NESTED = {
    "tags": pa.array([["a", "b"], [], None]),
    "box": pa.array([{"x": 1.5, "y": None}, None, {"x": None, "y": "é"}]),
}


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS | ODD, NESTED, COLUMNS | ODD | NESTED, {}])
def test_meta_is_plain(columns: dict[str, pa.Array]) -> None:
    batch = pa.record_batch({"url": pa.array(["u"] * 3), **columns})
    texts = meta_of(batch, list(columns)).to_pylist()
    rows = [plain(row) for row in batch.select(list(columns)).to_pylist()]
    assert [json.loads(text) for text in texts] == rows
    assert all(list(json.loads(text)) == sorted(columns) for text in texts)
    assert not any("\n" in text or ": " in text for text in texts)


def test_meta_that_is_not_utf8() -> None:
    batch = pa.record_batch({"author": not_utf8([b"Ren\xe9", b"Ada"])})
    assert meta_of(batch, ["author"]).to_pylist() == ['{"author":"Ren\ufffd"}', '{"author":"Ada"}']


def test_fields_are_added_to_some_rows() -> None:
    meta = pa.array(['{"b":1}', "{}"])
    rows = pa.array([True, False])
    assert added(meta, rows, "a", pa.array(["x", "y"])).to_pylist() == ['{"a":"x","b":1}', "{}"]
