"""img2dataset's shards: a tar of what could be downloaded, and a parquet of the same name with a row per URL tried.

Facts of the format (img2dataset 1.47): rows have `url`, `key` (the member's stem), `status` (success,
failed_to_download, failed_to_resize), `error_message`, `width`, `height` and the input's own columns. A killed run
leaves a parquet without footer or a cut tar behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.acquire.fields import plain
from curate.acquire.groups import Group

CUT = ("truncated_tar", "corrupt_tar")
REQUIRED = {"url", "key", "status"}
REASONS = {
    "download_failed": "the URL could not be downloaded; `error_message` in meta says why",
    "resize_failed": "img2dataset could not decode or resize what it downloaded",
    "missing_member": "the table says success, but the tar has no such member",
}
_STATUS = {"failed_to_download": "download_failed", "failed_to_resize": "resize_failed"}


def reason_of(status: Any) -> str | None:
    """Reject reason of a `status`; None for success."""
    return None if status == "success" else _STATUS.get(str(status), "download_failed")


def open_table(file: IO[bytes]) -> pq.ParquetFile | None:
    """None when it is no table of img2dataset's, or one that a killed run left unfinished."""
    try:
        table = pq.ParquetFile(file)
    except (pa.ArrowException, OSError):
        return None
    return table if set(table.schema_arrow.names) >= REQUIRED else None


def table_rows(table: pq.ParquetFile) -> Iterator[dict[str, Any]]:
    """Rows as JSON-able fields, a few hundred at a time."""
    for batch in table.iter_batches(256):
        yield from (plain(row) for row in batch.to_pylist())


def join(rows: Iterable[dict[str, Any]], groups: Mapping[str, Group]) -> Iterator[tuple[dict[str, Any], Group]]:
    """Each row with its members, or with a Group that says why it has none: (fields, group)."""
    cut = next((group.reject for group in groups.values() if group.reject in CUT), None)
    for row in rows:
        key = str(row.pop("key"))
        reject = reason_of(row.get("status"))
        if reject is None and key in groups:
            yield row, groups[key]
        else:
            yield row, Group(key, {}, reject or cut or "missing_member")


def source_id(url: str, caption: str | None) -> str:
    """URL and caption, with a tab between: the same picture with another text is another sample."""
    return url if caption is None else f"{url}\t{caption}"
