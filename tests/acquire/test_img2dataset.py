"""Shards as img2dataset 1.47 writes them: rows in order of completion, failed ones without members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.webdataset import AcquireWebDataset
from curate.core.errors import InputError
from tests.acquire.helpers import encoded_image, read_all, write_tar

STATUS = {3: ("failed_to_download", "HTTP Error 404: Not Found"), 5: ("failed_to_resize", "Image decoding error")}


def row(number: int) -> dict[str, Any]:
    status, error = STATUS.get(number, ("success", None))
    size = None if error else 8
    return {
        "url": f"http://x/{number}.jpg", "caption": f"image {number}", "extra": number, "key": f"{number:09d}",
        "status": status, "error_message": error, "width": size, "height": size, "original_width": size,
        "exif": None if error else "{}",
    }  # fmt: skip


def shard(folder: Path, name: str = "00000", order: tuple[int, ...] = (2, 0, 1, 3, 5, 4)) -> Path:
    members: dict[str, bytes | str] = {}
    for i in order:
        if i not in STATUS:
            key = f"{i:09d}"
            members |= {
                f"{key}.jpg": encoded_image(i),
                f"{key}.txt": f"image {i}",
                f"{key}.json": f'{{"url": "http://x/{i}.jpg"}}',
            }
    pq.write_table(pa.Table.from_pylist([row(i) for i in order]), folder / f"{name}.parquet")
    return write_tar(folder / f"{name}.tar", members)


def source(folder: Path, **more: Any) -> AcquireWebDataset:
    return AcquireWebDataset(namespace="test", path=str(folder), **more)


def test_every_row_of_the_table_is_a_sample(tmp_path: Path) -> None:
    tar = shard(tmp_path)
    importer = source(tmp_path)
    assert [portion.rows for portion in importer.plan()] == [6]
    samples = read_all(importer)
    assert [s.source_id for s in samples] == [f"http://x/{i}.jpg\timage {i}" for i in (2, 0, 1, 3, 5, 4)]
    assert [s.reject for s in samples] == [None, None, None, "download_failed", "resize_failed", None]
    assert [s.name for s in samples[:2]] == ["000000002", "000000000"]
    data = tar.read_bytes()
    assert [data[s.offset : s.offset + s.size] for s in samples if s.offset] == [encoded_image(i) for i in (2, 0, 1, 4)]
    assert samples[0].url == "http://x/2.jpg"
    assert samples[0].caption == "image 2"
    assert samples[0].meta == {
        "extra": 2, "status": "success", "width": 8, "height": 8, "original_width": 8, "exif": "{}",
    }  # fmt: skip
    failed = samples[3]
    assert (failed.offset, failed.size, failed.caption, failed.ext) == (None, None, "image 3", "")
    assert failed.meta == {"extra": 3, "status": "failed_to_download", "error_message": "HTTP Error 404: Not Found"}


def test_the_tar_can_be_read_without_its_table(tmp_path: Path) -> None:
    shard(tmp_path)
    samples = read_all(source(tmp_path, layout="webdataset"))
    assert [s.source_id for s in samples] == ["000000002", "000000000", "000000001", "000000004"]
    assert samples[0].url == "http://x/2.jpg"


def test_a_truncated_tar_rejects_the_rows_of_lost_members(tmp_path: Path) -> None:
    tar = shard(tmp_path)
    data = tar.read_bytes()
    tar.write_bytes(data[: len(data) // 2])
    samples = read_all_loosely(source(tmp_path))
    whole = [s for s in samples if s.reject is None]
    lost = [s for s in samples if s.reject == "truncated_tar" and s.url]
    assert whole
    assert lost
    assert len(whole) + len(lost) == 4
    assert sum(s.reject in ("download_failed", "resize_failed") for s in samples) == 2


def read_all_loosely(importer: AcquireWebDataset) -> list[Any]:
    """Samples of a truncated tar, which may have one more row than its table."""
    return [sample for portion in importer.plan() for sample in importer.read(portion)]


def test_a_missing_member_is_a_reject(tmp_path: Path) -> None:
    shard(tmp_path)
    table = pq.read_table(tmp_path / "00000.parquet")
    extra = pa.Table.from_pylist([row(7)], schema=table.schema)
    pq.write_table(pa.concat_tables([table, extra]), tmp_path / "00000.parquet")
    assert read_all(source(tmp_path))[-1].reject == "missing_member"


def test_members_without_a_row_come_last(tmp_path: Path) -> None:
    shard(tmp_path)
    table = pq.read_table(tmp_path / "00000.parquet")
    pq.write_table(table.slice(1), tmp_path / "00000.parquet")
    last = read_all_loosely(source(tmp_path))[-1]
    assert (last.source_id, last.url, last.caption, last.reject) == ("000000002", "http://x/2.jpg", "image 2", None)


@pytest.mark.parametrize("table", [b"", b"PAR1 half a file"])
def test_an_unfinished_table_is_ignored(tmp_path: Path, table: bytes) -> None:
    shard(tmp_path)
    (tmp_path / "00000.parquet").write_bytes(table)
    importer = source(tmp_path)
    assert [portion.rows for portion in importer.plan()] == [None]
    assert len(read_all(importer)) == 4


def test_a_table_of_another_format_is_ignored(tmp_path: Path) -> None:
    shard(tmp_path)
    pq.write_table(pa.table({"url": ["x"], "score": [1.0]}), tmp_path / "00000.parquet")
    assert len(read_all(source(tmp_path))) == 4


def test_a_table_that_changes_changes_the_content(tmp_path: Path) -> None:
    shard(tmp_path)
    before = source(tmp_path).plan()
    pq.write_table(pq.read_table(tmp_path / "00000.parquet").slice(1), tmp_path / "00000.parquet")
    assert source(tmp_path).plan()[0].content != before[0].content


def test_missing_tables_are_a_one_line_error(tmp_path: Path) -> None:
    shard(tmp_path)
    shard(tmp_path, "00001")
    (tmp_path / "00001.parquet").unlink()
    with pytest.raises(InputError, match=r"1 of 2 tars have no .parquet next to them \(the first is '00001.tar'\)"):
        source(tmp_path, layout="img2dataset").plan()
    assert len(read_all(source(tmp_path))) == 10


def test_a_complete_tar_without_end_mark_is_reported_once(tmp_path: Path) -> None:
    tar = shard(tmp_path)
    tar.write_bytes(tar.read_bytes()[:-1024])
    samples = read_all_loosely(source(tmp_path))
    assert [s.source_id for s in samples if s.reject == "truncated_tar"] == ["00000.tar"]
    assert sum(s.reject is None for s in samples) == 4
