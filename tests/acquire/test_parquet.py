from __future__ import annotations

import shutil
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.parquet import REASONS, AcquireParquet
from curate.core.errors import InputError
from tests.acquire.helpers import by_id, encoded_image, read_all, rejects, write
from tests.codec.make_images import encoded, gradient


def tables(path: Path | str, **more: Any) -> AcquireParquet:
    return AcquireParquet(namespace="test", path=str(path), **more)


def table(rows: int = 6, **columns: Any) -> pa.Table:
    return pa.table(
        {"image": [encoded_image(i) for i in range(rows)], "caption": [f"caption {i}" for i in range(rows)], **columns}
    )


def test_images_captions_and_fields(tmp_path: Path) -> None:
    when = datetime(2024, 5, 6, tzinfo=UTC)
    columns = {
        "url": [f"http://x/{i}" for i in range(6)], "n": range(6), "tags": [["a", "b"]] * 6, "when": [when] * 6,
        "price": [Decimal("1.50")] * 6, "score": [float("nan")] * 6, "blob": [b"x"] * 6,
        "none": pa.nulls(6, pa.int32()),
    }  # fmt: skip
    pq.write_table(table(**columns), tmp_path / "a.parquet")
    samples = read_all(tables(tmp_path))
    assert [s.source_id for s in samples] == [f"a:{i}" for i in range(6)]
    assert [s.data for s in samples] == [encoded_image(i) for i in range(6)]
    assert [s.caption for s in samples] == [f"caption {i}" for i in range(6)]
    assert (samples[2].url, samples[2].ext, samples[2].reject) == ("http://x/2", "png", None)
    assert samples[2].meta == {
        "n": 2, "tags": ["a", "b"], "when": "2024-05-06T00:00:00+00:00", "price": "1.50", "score": None,
    }  # fmt: skip


def test_hugging_faces_struct_and_its_paths(tmp_path: Path) -> None:
    images = [
        {"bytes": encoded_image(0), "path": "x/0.png"},
        {"bytes": encoded_image(1), "path": None},
        {"bytes": None, "path": "2.png"},
        None,
    ]
    pq.write_table(pa.table({"photo": images, "label": [0, 1, 2, 3]}), tmp_path / "a.parquet")
    samples = by_id(tables(tmp_path))
    assert {name: sample.reject for name, sample in samples.items()} == {
        "x/0.png": None, "a:1": None, "2.png": "no_image", "a:3": "no_image",
    }  # fmt: skip
    assert samples["a:1"].data == encoded_image(1)
    assert samples["a:3"].meta == {"label": 3}


def test_the_id_column_names_the_sample(tmp_path: Path) -> None:
    pq.write_table(table(3, uid=[7, 8, None]), tmp_path / "a.parquet")
    samples = read_all(tables(tmp_path, id="uid"))
    assert [s.source_id for s in samples] == ["7", "8", "a:2"]
    assert "uid" not in samples[0].meta
    assert [s.caption for s in read_all(tables(tmp_path, id="caption"))] == [f"caption {i}" for i in range(3)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_columns_can_be_named(tmp_path: Path, kind: pa.DataType) -> None:
    names = {
        "thumb": pa.array([b"t"] * 2, kind),
        "full": pa.array([encoded_image(0), encoded_image(1)], kind),
        "words": ["a", "b"],
    }
    pq.write_table(pa.table(names), tmp_path / "a.parquet")
    samples = read_all(tables(tmp_path, image="full", caption="words"))
    assert [(s.data, s.caption) for s in samples] == [(encoded_image(0), "a"), (encoded_image(1), "b")]


@pytest.mark.parametrize("group_rows", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("shard_rows", [1, 3, 4, 100])
def test_any_shard_size_gives_the_same_samples(tmp_path: Path, group_rows: int, shard_rows: int) -> None:
    for name, rows in (("a", 7), ("b", 2)):
        pq.write_table(table(rows), tmp_path / f"{name}.parquet", row_group_size=group_rows)
    source = tables(tmp_path, shard_rows=shard_rows)
    assert max(portion.rows for portion in source.plan()) <= shard_rows
    samples = read_all(source)
    assert [s.source_id for s in samples] == [f"a:{i}" for i in range(7)] + [f"b:{i}" for i in range(2)]
    assert [s.data for s in samples] == [encoded_image(i) for i in (*range(7), *range(2))]


def test_files_in_subfolders_have_distinct_ids_and_may_move(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "one" / name).mkdir(parents=True)
        pq.write_table(table(2), tmp_path / "one" / name / "0.parquet")
    before = tables(tmp_path / "one").plan()
    shutil.move(tmp_path / "one", tmp_path / "two")
    source = tables(tmp_path / "two")
    assert source.plan() == before
    assert [s.source_id for s in read_all(source)] == ["test/0:0", "test/0:1", "train/0:0", "train/0:1"]


@pytest.mark.parametrize("path", ["one//0.parquet", "/one/*.parquet", "./one/./0.parquet", "/one//{0..0}.parquet"])
def test_empty_and_dot_parts_of_a_path_do_not_enter_ids(tmp_path: Path, path: str) -> None:
    (tmp_path / "one").mkdir()
    pq.write_table(table(1), tmp_path / "one/0.parquet")
    assert [s.source_id for s in read_all(tables(f"{tmp_path}/{path}"))] == ["0:0"]


def test_extensions_come_from_the_bytes(tmp_path: Path) -> None:
    images = [encoded(gradient(), "jpeg"), encoded(gradient(), "webp"), b"text", b""]
    pq.write_table(pa.table({"image": images}), tmp_path / "a.parquet")
    samples = read_all(tables(tmp_path))
    assert [s.ext for s in samples] == ["jpg", "webp", "", ""]
    assert not any(s.reject for s in samples)


def test_failed_downloads_of_img2dataset_keep_their_reason(tmp_path: Path) -> None:
    columns = {
        "jpg": [encoded_image(0), None],
        "status": ["success", "failed_to_download"],
        "error_message": [None, "HTTP 404"],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    failed = by_id(tables(tmp_path))["a:1"]
    assert (failed.reject, failed.meta["error_message"]) == ("download_failed", "HTTP 404")


# --- bad input ---


def not_utf8(values: list[bytes]) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_texts_that_are_not_utf8_are_rejects(tmp_path: Path) -> None:
    columns = {
        "image": [encoded_image(i) for i in range(3)],
        "caption": not_utf8([b"caf\xe9", b"fine", b"fine"]),
        "author": not_utf8([b"Ada", b"Ren\xe9", b"Ada"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    samples = by_id(tables(tmp_path))
    assert {name: sample.reject for name, sample in samples.items()} == {
        "a:0": "caption_not_utf8", "a:1": "bad_metadata", "a:2": None,
    }  # fmt: skip
    assert samples["a:0"].data == encoded_image(0)
    assert samples["a:2"].caption == "fine"


def test_captions_may_be_bytes(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"image": [encoded_image(0)] * 2, "words": [b"caf\xc3\xa9", b"caf\xe9"]}), tmp_path / "a.parquet"
    )
    samples = read_all(tables(tmp_path, caption="words"))
    assert [(s.caption, s.reject) for s in samples] == [("café", None), (None, "caption_not_utf8")]


def test_a_file_that_is_not_parquet_is_a_reject(tmp_path: Path) -> None:
    pq.write_table(table(2), tmp_path / "a.parquet")
    write(tmp_path, {"b.parquet": b"PAR1 cut"})
    assert rejects(tables(tmp_path)) == {"b.parquet": "unreadable"}
    assert len(read_all(tables(tmp_path))) == 3


def test_a_corrupt_row_group_rejects_only_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(6), path, row_group_size=2, compression="zstd")
    chunk = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    path.write_bytes(data)
    assert rejects(tables(tmp_path)) == {"a:2": "unreadable", "a:3": "unreadable"}
    assert by_id(tables(tmp_path))["a:4"].data == encoded_image(4)


def test_a_file_that_changed_since_the_plan_is_an_error(tmp_path: Path) -> None:
    pq.write_table(table(2), tmp_path / "a.parquet")
    source = tables(tmp_path)
    (portion,) = source.plan()
    pq.write_table(table(3), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"bytes, .* when the run began"):
        list(source.read(portion))


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({"url": ["x"], "n": [1]}, {}, r"no column is clearly the image; found url \(string\), n \(int64\)"),
        ({"a": [b"x"], "b": [b"y"]}, {}, r"found a \(binary\), b \(binary\); set `image` to a column of bytes"),
        ({"image": [b"x"]}, {"image": "picture"}, r"image: no column 'picture'; found image \(binary\)"),
        ({"image": [b"x"]}, {"caption": "text"}, "caption: no column 'text'"),
        ({"image": [b"x"]}, {"id": "uid"}, "id: no column 'uid'"),
        ({"image": ["x"]}, {"image": "image"}, "column 'image' is string; expected binary"),
        ({"image": pa.array([], pa.binary())}, {}, "1 files in .*, no rows"),
    ],
)
def test_missing_columns_are_one_line_errors(
    tmp_path: Path, columns: dict[str, Any], more: dict[str, str], message: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message) as caught:
        tables(tmp_path, **more).plan()
    assert "\n" not in str(caught.value)


def test_only_invalid_files_are_a_one_line_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b""})
    with pytest.raises(InputError, match=r"'a.parquet' is not a readable parquet file"):
        tables(tmp_path).plan()


def test_every_reason_and_parameter_is_described() -> None:
    assert all(REASONS.values())
    assert all(field.description for field in AcquireParquet.model_fields.values())


# --- real data ---


@pytest.mark.parametrize(
    ("name", "rows", "more"),
    [("cifar10-test", 10_000, {"id": "name"}), ("imagenet-sample-1000", 1000, {"caption": "name"})],
)
def test_real_tables_are_imported_completely(data: Path, name: str, rows: int, more: dict[str, str]) -> None:
    path = data / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"no {path}")
    samples = read_all(tables(path, **more))
    assert len({sample.source_id for sample in samples}) == len(samples) == rows
    assert all(sample.ext == "jpg" and not sample.reject for sample in samples)
    assert all((sample.caption is not None) == ("caption" in more) for sample in samples)
