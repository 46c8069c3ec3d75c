"""`acquire.parquet`: tables with a column of encoded images, such as those of Hugging Face and img2dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from numpy.typing import NDArray
from pydantic import Field

from curate.acquire import fields, img2dataset
from curate.acquire.lists.hashes import hashed
from curate.acquire.row_groups import RowSpan, overlaps, split_rows
from curate.acquire.values import UNREADABLE, python_rows
from curate.codec.formats import EXTENSION_OF, sniff
from curate.codec.listing import FileInfo, open_file
from curate.codec.patterns import THREADS, find_files, root_of
from curate.core.contracts import ROW_REASONS, Incoming, Location, Portion, Runtime, Source, one_row
from curate.core.errors import InputError, Reject
from curate.core.ledger import skips_of
from curate.core.store.storage import Storage

BATCH_BYTES = 8 << 20
"""Approximate decoded bytes of a batch; the mean size of a row gives its number of rows."""
BUFFER_BYTES = 1 << 20
"""Read-ahead per column. Without it, Arrow reads whole column chunks, that is, whole row groups."""
MOST_PATHS = 1 << 20
"""Planning compares the paths of this many images."""
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "content", "picture", "data")
"""Usual names of the image column, in order of preference; with another name it must be the only binary column."""

REASONS = {
    **fields.REASONS,
    **ROW_REASONS,
    **img2dataset.REASONS,
    "no_image": "the image column is null",
    "unreadable": "the file, or the rest of a row group, is corrupt or cannot be read",
    "outside_root": "a symbolic link that leads out of the source's root; it is not followed",
}
"""Every reason that this source gives, with its meaning."""


class AcquireParquet(Source):
    """Import parquet files of encoded images, copying the images.

    The image column is binary, or a struct of bytes and path (Hugging Face). The image and caption columns are found by
    name and type unless given. All other columns except binary ones go into `meta`, classes (Hugging Face's ClassLabel)
    by name. The source id is the `id` column, or the struct's path, or `file:row`, also for a row with a path that an
    earlier row has. Files and row groups are split into shards of `shard_rows`.
    """

    op: ClassVar[str] = "acquire.parquet"
    unique_keys: ClassVar[bool] = False

    namespace: str = Field(description="enters every key: the same source id in another namespace is another sample")
    path: Annotated[str | tuple[str, ...], Runtime(), Location()] = Field(
        description="parquet files: a folder, a file, a glob, a pattern such as train-{000..127}.parquet, or a list"
    )
    shard_rows: int = Field(1000, ge=1, description="maximum samples per shard")
    image: str | None = Field(None, description="column of encoded images; default: found by name and type")
    caption: str | None = Field(None, description="column of the caption; default: caption, text, title, alt …")
    id: str | None = Field(None, description="column of the source id; default: the image's path, or `file:row`")

    # --- planning ---

    def plan(self) -> list[Portion]:
        root = self._root()
        skipped: dict[str, str] = {}
        files = find_files(root, self.path, "parquet", self._place, skipped=skipped)
        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(lambda file: self._sizes(root, file), files))
        good = [(file, *sizes) for file, sizes in zip(files, found, strict=True) if sizes is not None]
        bad = [file for file, sizes in zip(files, found, strict=True) if sizes is None]
        if not any(sum(sizes) for _, sizes, _ in good):
            what = f"{bad[0].path!r} is not a readable parquet file" if bad else "no rows"
            raise InputError(f"{self._place}: {len(files)} files in {root.root!r}, {what}; give files of images")
        repeats = self._repeats(root, [(file, layout) for file, _, layout in good])
        portions = []
        for spans in split_rows([sizes for _, sizes, _ in good], self.shard_rows):
            parts = [_part(good[span.file][0], span, good[span.file][2], repeats) for span in spans]
            portions.append(Portion({"parts": parts}, sum(span.rows for span in spans)))
        if bad:
            unread = tuple(file.path for file in bad if file.folder)
            portions.append(Portion({"bad": [file.path for file in bad]}, len(bad), unread=unread))
        return [replace(portions[0], skipped=skips_of(skipped)), *portions[1:]]

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    def _root(self) -> Storage:
        return root_of(self.path, "parquet", self._place)

    def _sizes(self, root: Storage, file: FileInfo) -> tuple[list[int], Layout] | None:
        """Rows of each row group, and the columns; None if the file cannot be read. Raises InputError if a column is
        missing."""
        if file.reject:
            return None
        try:
            with open_file(root, file.path) as opened:
                parquet = pq.ParquetFile(opened)
                return _group_rows(parquet), self._layout(parquet, root, file.path)
        except (pa.ArrowException, OSError) as error:
            if not (_is_corrupt(error) or isinstance(error, PermissionError)):
                raise
            return None

    def _repeats(self, root: Storage, files: list[tuple[FileInfo, Layout]]) -> dict[str, NDArray[np.intp]]:
        """File -> its rows with a path that an earlier row has, as after Hugging Face's `push_to_hub`, which keeps base
        names alone. Reads the paths only, and only so many files that they have MOST_PATHS."""
        named = [file for file, layout in files if layout.path is not None and not self.id]
        known, found = np.empty(0, np.uint64), dict[str, NDArray[np.intp]]()
        with ThreadPoolExecutor(THREADS) as threads:
            for start in range(0, len(named), THREADS):
                some = named[start : start + THREADS]
                for file, paths in zip(some, threads.map(lambda file: self._paths(root, file), some), strict=True):
                    firsts = np.unique(paths[0], return_index=True)[1]
                    new = np.isin(np.arange(len(paths[0])), firsts) & ~np.isin(paths[0], known)
                    found[file.path] = np.flatnonzero(~(new | paths[1]))
                    known = np.union1d(known, paths[0][~paths[1]])
                if len(known) > MOST_PATHS:
                    break
        return found

    def _paths(self, root: Storage, file: FileInfo) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Hash of each image's path, and which have none. Empty if the file's rows cannot be read."""
        try:
            with open_file(root, file.path) as opened:
                parquet = pq.ParquetFile(opened)
                wanted = str(self._layout(parquet, root, file.path).path)
                batches = [batch.column(0).field("path") for batch in parquet.iter_batches(columns=[wanted])]
        except (pa.ArrowException, OSError) as error:
            if not _is_corrupt(error):
                raise
            batches = []
        paths = pa.chunked_array(batches, pa.string()).combine_chunks() if batches else pa.nulls(0, pa.string())
        return hashed(paths)[0], paths.is_null().to_numpy(zero_copy_only=False)

    def _layout(self, parquet: pq.ParquetFile, root: Storage, path: str) -> Layout:
        return find_layout(parquet.schema_arrow, root.url_of(path), self.image, self.caption, self.id)

    # --- reading ---

    def read(self, portion: Portion) -> Iterator[Incoming]:
        root = self._root()
        for path in portion.content.get("bad", ()):
            yield Incoming(path, reject="unreadable")
        for part in portion.content.get("parts", ()):
            with open_file(root, part["file"]) as opened:
                yield from self._read_part(root, part, opened)

    def _read_part(self, root: Storage, part: dict[str, Any], opened: IO[bytes]) -> Iterator[Incoming]:
        url = root.url_of(part["file"])
        size = opened.seek(0, 2)
        if size != part["size"]:
            raise InputError(
                f"{url}: {size} bytes, but {part['size']} when the run began; run again when it is complete"
            )
        parquet = pq.ParquetFile(opened, buffer_size=BUFFER_BYTES, pre_buffer=False)
        layout = self._layout(parquet, root, part["file"])
        repeats = {row for first, stop in part.get("repeats", ()) for row in range(first, stop)}
        stem = part["file"].removesuffix(".parquet")
        row = part["start"]
        for group, first, last in overlaps(_group_rows(parquet), part["start"], part["stop"]):
            end = row + last - first
            try:
                for fields_of_row in _group(parquet, group, first, last, layout):
                    place = f"{stem}:{row}"
                    yield one_row(place, self._sample, fields_of_row, layout, place, row in repeats)
                    row += 1
            except (pa.ArrowException, OSError) as error:
                if not _is_corrupt(error):
                    raise
            for lost in range(row, end):
                yield Incoming(f"{stem}:{lost}", reject="unreadable")
            row = end

    def _sample(self, row: dict[str, Any], layout: Layout, place: str, repeated: bool) -> Incoming:
        image = row.pop(layout.image)
        data, path = (image.get("bytes"), image.get("path")) if isinstance(image, dict) else (image, None)
        given = row.get(layout.id) if layout.id else None if repeated else path
        if layout.id and layout.id != layout.caption:
            row.pop(layout.id)
        sample = Incoming(place if given in (None, "", UNREADABLE) else fields.plain(str(given)))
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
        """Set caption, url and meta. Raises Reject."""
        caption = row.pop(layout.caption, None) if layout.caption else None
        url = row.pop(layout.url, None) if layout.url else None
        unreadable = [name for name, value in row.items() if value is UNREADABLE]
        read = {name: None if value is UNREADABLE else value for name, value in row.items() if value is not None}
        sample.meta = fields.plain(read | {name: named(read[name], of) for name, of in layout.classes if name in read})
        sample.url = fields.plain(url) if isinstance(url, str) else None
        if caption is UNREADABLE:
            raise Reject("caption_not_utf8")
        if unreadable or url is UNREADABLE:
            raise Reject("bad_metadata", f"not UTF-8: {', '.join(unreadable) or layout.url}")
        if isinstance(caption, bytes):
            sample.caption = fields.decode_caption(caption)
        elif caption is not None:
            sample.caption, _ = fields.split_caption({"caption": fields.plain(caption)}, "caption")


def _group_rows(parquet: pq.ParquetFile) -> list[int]:
    metadata = parquet.metadata
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def _group(parquet: pq.ParquetFile, group: int, first: int, last: int, layout: Layout) -> Iterator[dict[str, Any]]:
    """Rows first..last of a row group, read in batches."""
    info = parquet.metadata.row_group(group)
    batch_rows = max(1, min(256, BATCH_BYTES * info.num_rows // max(1, info.total_byte_size)))
    names, begin = layout.names(), 0
    for batch in parquet.iter_batches(batch_rows, [group], names, use_threads=False):
        low, high = max(first - begin, 0), min(last - begin, batch.num_rows)
        if low < high:
            yield from python_rows(batch.slice(low, high - low))
        begin += batch.num_rows
        if begin >= last:
            return


def _is_corrupt(error: Exception) -> bool:
    """Whether the bytes are not valid parquet. Arrow then raises an OSError without errno; file systems set errno."""
    return isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None)


def _part(file: FileInfo, span: RowSpan, layout: Layout, repeats: Mapping[str, NDArray[np.intp]]) -> dict[str, Any]:
    part: dict[str, Any] = {
        "file": file.path, "size": file.size, "stamp": file.stamp, "start": span.start, "stop": span.stop
    }  # fmt: skip
    rows = repeats.get(file.path, np.empty(0, np.intp))
    rows = rows[(span.start <= rows) & (rows < span.stop)]
    if len(rows):
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        part["repeats"] = [[int(run[0]), int(run[-1]) + 1] for run in runs]
    return part | ({"classes": [name for name, _ in layout.classes]} if layout.classes else {})


# --- columns ---


@dataclass(frozen=True)
class Layout:
    """Columns of one file by role; None if the file has no such column."""

    image: str
    caption: str | None
    url: str | None
    id: str | None
    fields: tuple[str, ...]
    """All other columns that are not binary."""
    classes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of the classes of columns that hold their numbers."""
    path: str | None = None
    """The image's path within its struct."""

    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name in (self.image, self.caption, self.url, self.id, *self.fields) if name))


def find_layout(schema: pa.Schema, place: str, image: str | None, caption: str | None, id: str | None) -> Layout:
    """The given columns, and the others by name and type. Raises InputError, which lists the columns of the file."""
    types = {field.name: field.type for field in reversed(list(schema))}  # the first of two of one name
    types = dict(reversed(types.items()))
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    for parameter, name in (("image", image), ("caption", caption), ("id", id)):
        if name is not None and name not in types:
            raise InputError(f"{place}: {parameter}: no column {name!r}; found {columns}")
    if image is not None and not _is_image(types[image]):
        raise InputError(f"{place}: image: column {image!r} is {types[image]}; expected binary or struct<bytes, path>")
    image = image or _find_image(types)
    if image is None:
        remedy = "set `image` to a column of bytes; acquire.list reads lists of URLs"
        raise InputError(f"{place}: no column is clearly the image; found {columns}; {remedy}")
    caption = caption or next((name for name in fields.CAPTION_FIELDS if name in types and _is_text(types[name])), None)
    url = "url" if "url" in types and _is_text(types["url"]) else None
    used = {image, caption, url, id}
    others = tuple(name for name, kind in types.items() if name not in used and not _is_image(kind))
    classes = tuple((name, names) for name, names in class_names(schema).items() if name in others)
    return Layout(image, caption, url, id, others, classes, _path_of(schema, image))


def _path_of(schema: pa.Schema, image: str) -> str | None:
    kind, name = schema.types[schema.names.index(image)], f"{image}.path"
    is_struct = pt.is_struct(kind) and (place := kind.get_field_index("path")) >= 0 and _is_text(kind.field(place).type)
    alone = schema.names.count(image) == 1 and not any(f"{other}.".startswith(f"{name}.") for other in schema.names)
    return name if is_struct and alone else None


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Column -> names of its classes: the features of type ClassLabel in the schema's metadata, alone or in lists, as
    Hugging Face's datasets writes them."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: names for name, feature in features.items() if (names := _names_of(feature))}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # not what `datasets` writes
        return {}


def _names_of(feature: Any) -> tuple[str, ...]:
    while isinstance(feature, list | dict) and (isinstance(feature, list) or "feature" in feature):
        feature = next(iter(feature), None) if isinstance(feature, list) else feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def named(value: Any, names: Sequence[str]) -> Any:
    """A class, or those of a list, by name; a number that no class has stays."""
    if isinstance(value, list):
        return [named(one, names) for one in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def _find_image(types: dict[str, pa.DataType]) -> str | None:
    images = [name for name, kind in types.items() if _is_image(kind)]
    named = next((name for name in IMAGE_COLUMNS if name in images), None)
    return named or (images[0] if len(images) == 1 else None)


def _is_image(kind: pa.DataType) -> bool:
    """Whether a type is binary, or Hugging Face's struct<bytes: binary, path: string>."""
    if pt.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_image(kind.field(index).type)
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind) or pt.is_dictionary(kind))
