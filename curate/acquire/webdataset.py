"""`acquire.webdataset`: tars that stay where they are; only places of members go into the pool."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Annotated, Any, ClassVar, Literal

from pyarrow.parquet import ParquetFile
from pydantic import Field, field_validator

from curate.acquire import fields, img2dataset
from curate.acquire.extensions import RASTER_EXTENSIONS
from curate.acquire.groups import TEXT_SUFFIXES, Group, group_members, pick_image
from curate.acquire.listing import Found, Root
from curate.acquire.patterns import THREADS, find_files, root_of
from curate.codec.tars import MEMBER_REASONS, Member, members
from curate.core.contracts import Incoming, Portion, Runtime, Source
from curate.core.errors import InputError, Reject

COUNTED_TABLES = 2000
"""At most so many tables of img2dataset are opened before a run to know their rows."""

REASONS = {
    **MEMBER_REASONS,
    **fields.REASONS,
    **img2dataset.REASONS,
    "unreadable": "the tar, or a folder of tars, exists but cannot be read",
    "no_image": "no member of the sample has one of the `images` extensions",
}
"""Every reason that this source gives, with its meaning."""


class AcquireWebDataset(Source):
    """Import tars in the WebDataset convention, img2dataset's among them, in place: nothing is copied.

    A tar is a shard. A sample is a run of members with one stem; its source id is that stem (`key_from:
    shard_and_name` puts the tar's path before it). Captions come from `.txt` or a caption field of `.json`, whose
    other fields go into `meta`. With `layout: img2dataset` (found by itself where `00000.parquet` lies beside
    `00000.tar`) a sample is a row of that table, failed downloads included; its source id is URL and caption.
    """

    op: ClassVar[str] = "acquire.webdataset"
    unique_keys: ClassVar[bool] = False

    namespace: str = Field(description="enters every key: the same source id in another namespace is another sample")
    path: Annotated[str | tuple[str, ...], Runtime()] = Field(
        description="tars: a folder, a file, a glob, a pattern such as s3://bucket/{00000..00127}.tar, or a list"
    )
    layout: Literal["auto", "webdataset", "img2dataset"] = Field(
        "auto", description="img2dataset reads the parquet beside each tar; auto does so where there is one"
    )
    images: tuple[str, ...] = Field(RASTER_EXTENSIONS, description="extensions of members that are the picture")
    key_from: Literal["name", "shard_and_name"] = Field(
        "name", description="source id: the member's stem, or `tar/stem` where stems repeat from tar to tar"
    )
    caption_field: str | None = Field(
        None, description="field of the .json or table that holds the caption; default: caption, text, title, alt …"
    )

    @field_validator("images")
    @classmethod
    def _bare(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted({value.lower().lstrip(".") for value in values}))

    # --- planning ---

    def plan(self) -> list[Portion]:
        root = self._root()
        tars = find_files(root, self.path, "tar", self._place)
        tables = {} if self.layout == "webdataset" else self._tables(root, tars)
        contents = [self._content(tar, tables.get(tar.path)) for tar in tars]
        counts = _counts(root, contents)
        return [Portion(content, rows) for content, rows in zip(contents, counts, strict=True)]

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    def _root(self) -> Root:
        return root_of(self.path, "tar", self._place)

    def _tables(self, root: Root, tars: list[Found]) -> dict[str, Found]:
        """Tar -> the parquet beside it."""
        folders = {posixpath.dirname(tar.path) for tar in tars if not tar.folder}
        beside = {file.path: file for folder in sorted(folders) for file in _parquets(root, folder, self._place)}
        found = {tar.path: beside.get(tar.path.removesuffix("tar") + "parquet") for tar in tars}
        missing = [path for path, table in found.items() if table is None]
        if self.layout == "img2dataset" and missing:
            raise InputError(
                f"{self.op}: layout: 'img2dataset', but {len(missing)} of {len(tars)} tars have no .parquet beside "
                f"them ({missing[0]!r} is the first); use layout: auto"
            )
        return {path: table for path, table in found.items() if table is not None}

    def _content(self, tar: Found, table: Found | None) -> dict[str, Any]:
        content: dict[str, Any] = {"tar": tar.path, "size": tar.size, "stamp": tar.stamp}
        if tar.reject:
            content["reject"] = tar.reject
        return content if table is None else content | {"table": [table.path, table.size, table.stamp]}

    # --- reading ---

    def tar(self, portion: Portion) -> str | None:
        return None if "reject" in portion.content else self._root().url(portion.content["tar"])

    def read(self, portion: Portion) -> Iterator[Incoming]:
        root, tar = self._root(), portion.content["tar"]
        if "reject" in portion.content:
            yield Incoming(tar, reject=portion.content["reject"])
            return
        try:
            with root.open(tar) as file, contextlib.ExitStack() as stack:
                _check_size(file, portion.content, root.url(tar))
                table = _table(root, portion.content, stack)
                yield from self._read_tar(tar, file) if table is None else self._read_table(table, tar, file)
        except FileNotFoundError:
            raise InputError(f"{root.url(tar)}: it or its table is gone since the run began; run again") from None

    def _read_tar(self, tar: str, file: IO[bytes]) -> Iterator[Incoming]:
        for group in group_members(members(file)):
            yield self._sample(group, tar, _reader(file))

    def _read_table(self, table: ParquetFile, tar: str, file: IO[bytes]) -> Iterator[Incoming]:
        """The table's rows, then what only the tar has."""
        groups: dict[str, Group] = {}
        repeated: list[Group] = []
        for group in group_members(members(file)):
            if groups.setdefault(group.stem, group) is not group:
                repeated.append(group)
        left = dict(groups)
        for row, group in img2dataset.join(img2dataset.table_rows(table), groups):
            left.pop(group.stem, None)
            if group.reject in img2dataset.CUT:
                left.pop("", None)  # the row says it
            yield self._row(row, group)
        for group in (*left.values(), *repeated):
            yield self._sample(group, tar, _reader(file))

    def _row(self, row: dict[str, Any], group: Group) -> Incoming:
        """A row of img2dataset's table, with its picture where there is one."""
        url = str(row.pop("url"))
        caption, meta = fields.split_caption(row, self.caption_field)
        sample = Incoming(img2dataset.source_id(url, caption), group.stem, caption=caption, url=url)
        sample.meta = {name: value for name, value in meta.items() if value is not None}
        return self._place_image(sample, group)

    def _sample(self, group: Group, tar: str, read: Callable[[Member], bytes]) -> Incoming:
        if not group.stem:
            return Incoming(tar, reject=group.reject, meta={"detail": group.detail})
        name = group.stem if self.key_from == "name" else f"{tar.removesuffix('.tar')}/{group.stem}"
        sample = self._place_image(Incoming(name, group.stem), group)
        if group.reject is None:
            try:
                self._describe(sample, group, read)
            except Reject as reject:
                sample.reject = sample.reject or reject.reason
        return sample

    def _place_image(self, sample: Incoming, group: Group) -> Incoming:
        picture = pick_image(group, self.images)
        sample.reject = group.reject or (None if picture else "no_image")
        if sample.reject is None and picture:
            sample.ext, member = picture
            sample.offset, sample.size = member.offset, member.size
        elif group.detail:
            sample.meta["detail"] = group.detail
        return sample

    def _describe(self, sample: Incoming, group: Group, read: Callable[[Member], bytes]) -> None:
        """Caption, url and meta out of the text members. Raises Reject."""
        if "json" in group.members:
            found = fields.decode_object(read(group.members["json"]))
            sample.caption, rest = fields.split_caption(found, self.caption_field)
            url = rest.pop("url", None)
            sample.url = url if isinstance(url, str) else None
            sample.meta |= rest
        if "cls" in group.members:
            sample.meta["cls"] = fields.decode_label(read(group.members["cls"]))
        text = next((group.members[suffix] for suffix in TEXT_SUFFIXES if suffix in group.members), None)
        if text is not None:
            sample.caption = fields.decode_caption(read(text)) or sample.caption


def _parquets(root: Root, folder: str, place: str) -> list[Found]:
    try:
        return find_files(root, root.url(folder) + "/*.parquet", "parquet", place)
    except InputError:
        return []


def _table(root: Root, content: dict[str, Any], stack: contextlib.ExitStack) -> ParquetFile | None:
    """None where there is no table that can be read: then the tar speaks for itself."""
    if "table" not in content:
        return None
    return img2dataset.open_table(stack.enter_context(root.open(content["table"][0])))


def _counts(root: Root, contents: list[dict[str, Any]]) -> list[int | None]:
    """Rows of each tar where a table or a `sizes.json` tells them; reading every tar's headers would take too long."""
    sizes = {folder: _sizes(root, folder) for folder in {posixpath.dirname(content["tar"]) for content in contents}}
    tables = [content.get("table", [None])[0] for content in contents]
    counted: list[int | None] = [None] * len(contents)
    if sum(table is not None for table in tables) <= COUNTED_TABLES:
        with ThreadPoolExecutor(THREADS) as threads:
            counted = list(threads.map(lambda table: _table_rows(root, table), tables))
    named = [sizes[posixpath.dirname(content["tar"])].get(posixpath.basename(content["tar"])) for content in contents]
    return [rows if rows is not None else size for rows, size in zip(counted, named, strict=True)]


def _table_rows(root: Root, path: str | None) -> int | None:
    if path is None:
        return None
    with root.open(path) as file:
        table = img2dataset.open_table(file)
        return None if table is None else int(table.metadata.num_rows)


def _sizes(root: Root, folder: str) -> dict[str, int]:
    """WebDataset's `sizes.json`: tar -> samples."""
    try:
        with root.open(f"{folder}/sizes.json".lstrip("/")) as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, int)} if isinstance(value, dict) else {}


def _check_size(file: IO[bytes], content: dict[str, Any], url: str) -> None:
    size = file.seek(0, 2)
    if size != content["size"]:
        raise InputError(f"{url}: {size} bytes, {content['size']} when the run began; run again once it is complete")


def _reader(file: IO[bytes]) -> Callable[[Member], bytes]:
    """Bytes of a small member. Raises Reject for one too large to be a caption or metadata."""

    def read(member: Member) -> bytes:
        if member.size > fields.MAX_TEXT_BYTES:
            raise Reject("bad_metadata", f"{member.name}: {member.size} bytes")
        file.seek(member.offset)
        return file.read(member.size)

    return read
