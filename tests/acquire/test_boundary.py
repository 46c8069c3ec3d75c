"""Any source and any one damaged row among 20 good ones: 20 rows are alive, the damaged one has a reason or a value.

`plan` and `read` of the source are called, and rows are made as a run makes them.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.acquire.folder import AcquireFolder
from curate.acquire.parquet import AcquireParquet
from curate.acquire.webdataset import AcquireWebDataset
from curate.core.contracts import Source
from curate.engine.units.source.read import _row, _table
from tests.acquire.helpers import PNG
from tests.acquire.lists.files import rows_of as listed_rows

GOOD = 20
Rows = list[dict[str, Any]]
generated = settings(max_examples=settings().max_examples * (1 if settings().max_examples <= 30 else 20))
"""30 inputs for each source, 2,000 at night."""


def rows_of(source: Source) -> Rows:
    return [
        row
        for portion in source.plan()
        for row in _table([_row(source, item, item.data) for item in source.read(portion)]).to_pylist()
    ]


# --- damage -----------------------------------------------------------------------------------------------------------


def bmp(width: int, height: int) -> bytes:
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


def tiff(width: int, height: int) -> bytes:
    fields = [
        struct.pack("<HHII", tag, 4, 1, value % (1 << 32))
        for tag, value in {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 256, 277: 1, 278: height}.items()
    ]
    return struct.pack("<2sHIH", b"II", 42, 8, len(fields)) + b"".join(fields) + bytes(300)


def png(width: int, height: int) -> bytes:
    return PNG[:16] + struct.pack(">II", width % (1 << 32), height % (1 << 32)) + PNG[24:]


sides = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([-127, 0, 1, 3_000_000_000 - (1 << 32)]))
images = st.one_of(
    st.builds(lambda make, width, height: make(width, height), st.sampled_from([bmp, tiff, png]), sides, sides),
    st.binary(max_size=200),
    st.integers(0, len(PNG)).map(lambda size: PNG[:size]),
    st.tuples(st.integers(0, len(PNG) - 1), st.binary(min_size=1, max_size=8)).map(
        lambda change: PNG[: change[0]] + change[1] + PNG[change[0] + len(change[1]) :]
    ),
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


texts = st.one_of(
    st.sampled_from(
        [
            nested(90),
            nested(110),
            nested(900),
            nested(100_000),
            "9" * 5000,
            str(1 << 70),
            "1e999",
            "NaN",
            '"\\ud800"',
            '{"a":1,"a":2}',
        ]
    ).map(lambda value: f'{{"x": {value}}}'.encode()),
    st.binary(max_size=60),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    ).map(lambda value: json.dumps(value).encode()),
)
"""Contents of a .json."""

VALUES: list[tuple[pa.DataType, Any]] = [
    *(
        (pa.timestamp(unit, zone), [1_700_000_000_123_456_789, 1 << 62, -(1 << 62), 0])
        for unit in ("ms", "us", "ns")  # parquet has no others
        for zone in (None, "Europe/Berlin", "No/Where")
    ),
    (pa.timestamp("s"), [1 << 40, -(1 << 40)]),
    (pa.date32(), [4_000_000, -4_000_000, 0]),
    (pa.date64(), [10**17 - 10**17 % 86_400_000, 0]),
    *((pa.duration(unit), [123_456_789, 1 << 62]) for unit in ("s", "ms", "us", "ns")),
    (pa.time64("ns"), [123_456_789]),
    (pa.uint64(), [(1 << 64) - 1]),
    (pa.float64(), [float("nan"), float("inf"), -0.0]),
]


def odd(kind: pa.DataType, value: Any) -> pa.Scalar:
    return pa.array(
        [value], pa.int32() if kind == pa.date32() else pa.int64() if pa.types.is_temporal(kind) else kind
    ).cast(kind, safe=False)[0]


def not_utf8(data: bytes) -> pa.Scalar:
    return pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, len(data))), pa.py_buffer(data)]
    )[0]


values = st.one_of(
    st.sampled_from([(kind, value) for kind, some in VALUES for value in some]).map(lambda one: odd(*one)),
    st.binary(max_size=20).map(not_utf8),
)


def listed(scalar: pa.Scalar, how: str) -> pa.Array:
    """One value of a column, in a list or a struct or by itself."""
    column = pa.repeat(scalar, 1)
    if how == "list":
        return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
    return pa.StructArray.from_arrays([column], ["of"]) if how == "struct" else column


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    folder = tmp_path_factory.mktemp("sources")
    return lambda: Path(tempfile.mkdtemp(dir=folder))


def check(rows: Rows) -> dict[str, Any]:
    """The odd row, named odd."""
    assert len(rows) == GOOD + 1
    others = [row for row in rows if "odd" not in row["source_id"]]
    assert len(others) == GOOD and all(row["reject"] is None for row in others), others
    [found] = [row for row in rows if "odd" in row["source_id"]]
    json.loads(found["meta"])
    return found


@generated
@given(image=images, text=texts)
def test_a_folder(place: Callable[[], Path], image: bytes, text: bytes) -> None:
    root = place()
    for number in range(GOOD):
        (root / f"{number}.png").write_bytes(PNG)
        (root / f"{number}.json").write_text('{"caption": "good"}')
    (root / "odd.png").write_bytes(image)
    (root / "odd.json").write_bytes(text)
    check(rows_of(AcquireFolder(namespace="test", path=str(root))))


def tar_of(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


@generated
@given(image=images, text=texts)
def test_a_tar(place: Callable[[], Path], image: bytes, text: bytes) -> None:
    root = place()
    files = {f"{number}.{kind}": PNG if kind == "png" else b"{}" for number in range(GOOD) for kind in ("png", "json")}
    (root / "a.tar").write_bytes(tar_of(files | {"odd.png": image, "odd.json": text}))
    source = AcquireWebDataset(namespace="test", path=str(root))
    [portion] = source.plan()
    items = list(source.read(portion))
    data = [
        None if item.offset is None else (root / "a.tar").read_bytes()[item.offset : item.offset + item.size]
        for item in items
    ]
    check(_table([_row(source, item, one) for item, one in zip(items, data, strict=True)]).to_pylist())


@generated
@given(image=images, value=values, how=st.sampled_from(["alone", "list", "struct"]), twice=st.booleans())
def test_a_parquet(place: Callable[[], Path], image: bytes, value: pa.Scalar, how: str, twice: bool) -> None:
    root = place()
    column = listed(value, how)
    good = pa.nulls(GOOD, column.type)
    names = pa.array([*map(str, range(GOOD)), "odd"])
    table = pa.table(
        [pa.array([PNG] * GOOD + [image]), names, pa.concat_arrays([good, column]), names],
        names=["image", "id", "value", "value" if twice else "other"],
    )
    pq.write_table(table, root / "a.parquet", row_group_size=7)
    check(rows_of(AcquireParquet(namespace="test", path=str(root), id="id")))


@generated
@given(image=images, value=values)
def test_img2datasets_table(place: Callable[[], Path], image: bytes, value: pa.Scalar) -> None:
    root = place()
    keys = [f"{number:05d}" for number in range(GOOD)] + ["odd"]
    table = pa.table(
        {
            "url": [f"http://a/{key}" for key in keys],
            "key": keys,
            "status": ["success"] * len(keys),
            "value": pa.concat_arrays([pa.nulls(GOOD, value.type), pa.repeat(value, 1)]),
        }
    )
    pq.write_table(table, root / "00000.parquet")
    (root / "00000.tar").write_bytes(tar_of({f"{key}.jpg": image if key == "odd" else PNG for key in keys}))
    source = AcquireWebDataset(namespace="test", path=str(root))
    [portion] = source.plan()
    items = list(source.read(portion))
    check(_table([_row(source, item, PNG if item.offset is not None else None) for item in items]).to_pylist())


@generated
@given(text=texts)
def test_metadata(place: Callable[[], Path], text: bytes) -> None:
    root = place()
    for name in [*map(str, range(GOOD)), "odd"]:
        (root / f"{name}.png").write_bytes(PNG)
    good = b"".join(json.dumps({"file_name": f"{n}.png", "caption": "good"}).encode() + b"\n" for n in range(GOOD))
    line = b'{"file_name": "odd.png", "x": ' + text.replace(b"\n", b" ").replace(b"\r", b" ") + b"}\n"
    (root / "metadata.jsonl").write_bytes(good + line)
    check(rows_of(AcquireFolder(namespace="test", path=str(root))))


def check_list(path: Path) -> None:
    rows = listed_rows(path)
    assert len(rows) == GOOD + 1
    others = [row for row in rows if (row["url"] or "").startswith("http://good.example/")]
    assert len(others) == GOOD and not any(row["reject"] for row in others)
    assert all(json.loads(row["meta"]) is not None for row in rows)


@generated
@given(value=values, how=st.sampled_from(["alone", "list", "struct"]))
def test_a_list_of_parquet(place: Callable[[], Path], value: pa.Scalar, how: str) -> None:
    root = place()
    column = listed(value, how)
    urls = [f"http://good.example/{number}" for number in range(GOOD)] + ["http://odd.example/"]
    table = pa.table({"url": urls, "value": pa.concat_arrays([pa.nulls(GOOD, column.type), column])})
    pq.write_table(table, root / "list.parquet")
    check_list(root)


@generated
@given(text=texts)
def test_a_list_of_json(place: Callable[[], Path], text: bytes) -> None:
    root = place()
    good = [json.dumps({"url": f"http://good.example/{number}"}).encode() for number in range(GOOD)]
    odd = b'{"url": "http://odd.example/", "x": ' + text.replace(b"\n", b" ").replace(b"\r", b" ") + b"}"
    (root / "list.jsonl").write_bytes(b"\n".join([*good[:7], odd, *good[7:]]))
    check_list(root)
