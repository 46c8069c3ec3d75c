"""`acquire.parquet`: tables with a column of encoded pictures, as Hugging Face and img2dataset write them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Annotated, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from curate.acquire import columns, fields, img2dataset
from curate.acquire.columns import BROKEN, Layout
from curate.acquire.cuts import Span, cut, overlaps
from curate.acquire.extensions import EXTENSION_OF
from curate.acquire.listing import Found, Root
from curate.acquire.patterns import THREADS, find_files, root_of
from curate.codec.formats import sniff
from curate.core.contracts import Incoming, Portion, Runtime, Source
from curate.core.errors import InputError, Reject

BATCH_BYTES = 8 << 20
"""Decoded bytes of a batch, about; its rows follow from the mean size of a row."""
BUFFER_BYTES = 1 << 20
"""Read-ahead of each column; without one Arrow reads whole column chunks, that is whole row groups."""

REASONS = {
    **fields.REASONS,
    **img2dataset.REASONS,
    "no_image": "the image column is null",
    "unreadable": "the file, or the rest of a row group, is corrupt or cannot be read",
    "outside_root": "a symbolic link that leads out of the source's root; it is not followed",
}
"""Every reason that this source gives, with its meaning."""


class AcquireParquet(Source):
    """Import parquet files that hold encoded pictures, copying the pictures.

    The image column is binary, or a struct of bytes and path as Hugging Face writes it; it is found by name and type
    unless given, and so is the caption. All other columns that are no binary data go into `meta`. The source id is the
    `id` column, else the struct's path, else `file:row`. Files and row groups are cut into shards of `shard_rows`.
    """

    op: ClassVar[str] = "acquire.parquet"
    unique_keys: ClassVar[bool] = False

    namespace: str = Field(description="enters every key: the same source id in another namespace is another sample")
    path: Annotated[str | tuple[str, ...], Runtime()] = Field(
        description="parquet files: a folder, a file, a glob, a pattern such as train-{000..127}.parquet, or a list"
    )
    shard_rows: int = Field(1000, ge=1, description="samples per shard, at most")
    image: str | None = Field(None, description="column of encoded pictures; default: found by name and type")
    caption: str | None = Field(None, description="column of the caption; default: caption, text, title, alt …")
    id: str | None = Field(None, description="column of the source id; default: the picture's path, else `file:row`")

    # --- planning ---

    def plan(self) -> list[Portion]:
        root = self._root()
        files = find_files(root, self.path, "parquet", self._place)
        with ThreadPoolExecutor(THREADS) as threads:
            groups = list(threads.map(lambda file: self._groups(root, file), files))
        good = [(file, sizes) for file, sizes in zip(files, groups, strict=True) if sizes is not None]
        bad = [file for file, sizes in zip(files, groups, strict=True) if sizes is None]
        if not any(sum(sizes) for _, sizes in good):
            what = f"{bad[0].path!r} is no readable parquet file" if bad else "no rows"
            raise InputError(f"{self._place}: {len(files)} files in {root.path!r}, {what}; give parquet with pictures")
        portions = []
        for spans in cut([sizes for _, sizes in good], self.shard_rows):
            parts = [_part(good[span.file][0], span) for span in spans]
            portions.append(Portion({"parts": parts}, sum(span.rows for span in spans)))
        if bad:
            portions.append(Portion({"bad": [file.path for file in bad]}, len(bad)))
        return portions

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    def _root(self) -> Root:
        return root_of(self.path, "parquet", self._place)

    def _groups(self, root: Root, file: Found) -> list[int] | None:
        """Rows of each row group; None when the file cannot be read. Raises InputError when columns are missing."""
        if file.reject:
            return None
        try:
            with root.open(file.path) as opened:
                parquet = pq.ParquetFile(opened)
                self._layout(parquet, root, file.path)
                return _group_rows(parquet)
        except (pa.ArrowException, PermissionError):
            return None

    def _layout(self, parquet: pq.ParquetFile, root: Root, path: str) -> Layout:
        return columns.find_layout(parquet.schema_arrow, root.url(path), self.image, self.caption, self.id)

    # --- reading ---

    def read(self, portion: Portion) -> Iterator[Incoming]:
        root = self._root()
        for path in portion.content.get("bad", ()):
            yield Incoming(path, reject="unreadable")
        for part in portion.content.get("parts", ()):
            with root.open(part["file"]) as opened:
                yield from self._read_part(root, part, opened)

    def _read_part(self, root: Root, part: dict[str, Any], opened: IO[bytes]) -> Iterator[Incoming]:
        url = root.url(part["file"])
        size = opened.seek(0, 2)
        if size != part["size"]:
            raise InputError(f"{url}: {size} bytes, {part['size']} when the run began; run again once it is complete")
        parquet = pq.ParquetFile(opened, buffer_size=BUFFER_BYTES, pre_buffer=False)
        layout = self._layout(parquet, root, part["file"])
        stem = part["file"].removesuffix(".parquet")
        row = part["start"]
        for group, first, last in overlaps(_group_rows(parquet), part["start"], part["stop"]):
            end = row + last - first
            try:
                for fields_of_row in _group(parquet, group, first, last, layout):
                    yield self._sample(fields_of_row, layout, f"{stem}:{row}")
                    row += 1
            except (pa.ArrowException, OSError) as error:
                if not _is_corrupt(error):
                    raise
            for lost in range(row, end):
                yield Incoming(f"{stem}:{lost}", reject="unreadable")
            row = end

    def _sample(self, row: dict[str, Any], layout: Layout, place: str) -> Incoming:
        picture = row.pop(layout.image)
        data, path = (picture.get("bytes"), picture.get("path")) if isinstance(picture, dict) else (picture, None)
        given = row.get(layout.id) if layout.id else path
        if layout.id and layout.id != layout.caption:
            row.pop(layout.id)
        sample = Incoming(place if given in (None, "", BROKEN) else fields.plain(str(given)))
        if data is None:
            sample.reject = img2dataset.reason_of(row.get("status", "success")) or "no_image"
        else:
            kind = sniff(data) or ""
            sample.data, sample.ext = data, EXTENSION_OF.get(kind, kind)
        try:
            self._describe(sample, row, layout)
        except Reject as reject:
            sample.reject = sample.reject or reject.reason
        return sample

    def _describe(self, sample: Incoming, row: dict[str, Any], layout: Layout) -> None:
        """Caption, url and meta. Raises Reject."""
        caption = row.pop(layout.caption, None) if layout.caption else None
        url = row.pop(layout.url, None) if layout.url else None
        broken = [name for name, value in row.items() if value is BROKEN]
        sample.meta = {name: fields.plain(value) for name, value in row.items() if value is not None}
        sample.url = fields.plain(url) if isinstance(url, str) else None
        if caption is BROKEN:
            raise Reject("caption_not_utf8")
        if broken or url is BROKEN:
            raise Reject("bad_metadata", f"not UTF-8: {', '.join(broken) or layout.url}")
        if isinstance(caption, bytes):
            sample.caption = fields.decode_caption(caption)
        elif caption is not None:
            sample.caption, _ = fields.split_caption({"caption": fields.plain(caption)}, "caption")


def _group_rows(parquet: pq.ParquetFile) -> list[int]:
    metadata = parquet.metadata
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _group(parquet: pq.ParquetFile, group: int, first: int, last: int, layout: Layout) -> Iterator[dict[str, Any]]:
    """Rows first..last of a row group, a few at a time."""
    info = parquet.metadata.row_group(group)
    batch_rows = max(1, min(256, BATCH_BYTES * info.num_rows // max(1, info.total_byte_size)))
    names, begin = layout.names(), 0
    for batch in parquet.iter_batches(batch_rows, [group], names, use_threads=False):
        low, high = max(first - begin, 0), min(last - begin, batch.num_rows)
        if low < high:
            yield from columns.rows(batch.slice(low, high - low), names)
        begin += batch.num_rows
        if begin >= last:
            return


def _is_corrupt(error: Exception) -> bool:
    """Whether Arrow could not make sense of the bytes; it raises plain OSErrors for that, and so do file systems."""
    return isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None)


def _part(file: Found, span: Span) -> dict[str, Any]:
    return {"file": file.path, "size": file.size, "stamp": file.stamp, "start": span.start, "stop": span.stop}
