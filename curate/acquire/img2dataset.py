"""Shards of img2dataset: a tar of the images downloaded, and a parquet of the same name with a row per URL tried.

Format of img2dataset 1.47: rows have `url`, `key` (the member's stem), `status` (success, failed_to_download,
failed_to_resize), `error_message`, `width`, `height` and the columns of the input. A killed run leaves a parquet
without footer or a truncated tar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.acquire.values import python_rows
from curate.codec.groups import MemberGroup

TAR_ERRORS = ("truncated_tar", "corrupt_tar")
REQUIRED = {"url", "key", "status"}
REASONS = {
    "download_failed": "the URL could not be downloaded; `error_message` in meta says why",
    "resize_failed": "img2dataset could not decode or resize what it downloaded; or video2dataset, subsample",
    "missing_member": "the table has status success, but the tar has no such member",
}
_STATUS = {
    "failed_to_download": "download_failed",
    "failed_to_resize": "resize_failed",
    "failed_to_subsample": "resize_failed",  # video2dataset's
}


def reason_of(status: Any) -> str | None:
    """Reject reason of a `status`; None for success."""
    return None if status == "success" else _STATUS.get(str(status), "download_failed")


def open_table(file: IO[bytes]) -> pq.ParquetFile | None:
    """None if the file is not a table of img2dataset, or if a killed run left it unfinished."""
    try:
        table = pq.ParquetFile(file)
    except (pa.ArrowException, OSError):
        return None
    return table if set(table.schema_arrow.names) >= REQUIRED else None


def table_rows(table: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    """Rows, read in batches of 256."""
    for batch in table.iter_batches(256):
        yield from python_rows(batch)


def join(
    rows: Iterable[dict[str, Any]], groups: Mapping[str, MemberGroup]
) -> Iterator[tuple[dict[str, Any], MemberGroup]]:
    """(fields, group) of each row: its members, or a group without members that has the reject."""
    tar_error = next((group.reject for group in groups.values() if group.reject in TAR_ERRORS), None)
    for row in rows:
        key = str(row.pop("key"))
        reject = reason_of(row.get("status"))
        if reject is None and key in groups:
            yield row, groups[key]
        else:
            yield row, MemberGroup(key, {}, reject or tar_error or "missing_member")


def source_id(url: str, caption: str | None) -> str:
    """URL and caption, separated by a tab: the same image with another caption is another sample."""
    return url if caption is None else f"{url}\t{caption}"
