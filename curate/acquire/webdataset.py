"""`acquire.webdataset`: tars that stay in place; the pool records only the offsets of their members."""

from __future__ import annotations

import contextlib
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Annotated, Any, ClassVar, Literal, Self

from pyarrow.parquet import ParquetFile
from pydantic import Field, model_validator

from curate.acquire import fields, img2dataset
from curate.acquire.kinds import ONLY_IMAGES, VIDEO_EXTENSIONS, Extensions, Media, check_used
from curate.codec.formats import FIRST_EXTENSIONS, RASTER_EXTENSIONS
from curate.codec.groups import TEXT_SUFFIXES, MemberGroup, group_members, pick_member
from curate.codec.listing import FileInfo, open_file
from curate.codec.patterns import THREADS, NoFilesError, find_files, root_of
from curate.codec.tars import MEMBER_REASONS, Member, members
from curate.core.contracts import ROW_REASONS, Added, Incoming, Location, Portion, Runtime, Source, one_row
from curate.core.errors import InputError, Reject
from curate.core.ledger import skips_of
from curate.core.store.storage import Storage

COUNTED_TABLES = 2000
"""Maximum number of img2dataset tables that planning opens to count rows."""

REASONS = {
    **MEMBER_REASONS,
    **fields.REASONS,
    **ROW_REASONS,
    **img2dataset.REASONS,
    "unreadable": "the tar, or a folder of tars, exists but cannot be read",
    "no_image": "no member of the sample has one of the `images` extensions",
    "no_member": "no member of the sample has one of the `videos` extensions, or of `images` if `media` has both",
}
"""Every reason that this source gives, with its meaning."""


class AcquireWebDataset(Source):
    """Import tars in the WebDataset convention, img2dataset's among them, in place: nothing is copied.

    A tar is a shard. A sample is a sequence of members with the same stem, of which one is the image or video, and the
    texts describe it; the others are skipped and counted. Its source id is the stem, or `tar/stem`
    with `key_from: shard_and_name`. Captions come from `.txt` or a caption field of `.json`; the other fields go into
    `meta`. With `layout: img2dataset` (detected if `00000.parquet` is next to `00000.tar`) a sample is a row of that
    table, failed downloads included, and its source id is URL and caption. Tars of videos have the same form, those of
    video2dataset among them.
    """

    op: ClassVar[str] = "acquire.webdataset"
    earlier: ClassVar[dict[str, Any]] = {"images": FIRST_EXTENSIONS}
    unique_keys: ClassVar[bool] = False

    namespace: str = Field(description="enters every key: the same source id in another namespace is another sample")
    path: Annotated[str | tuple[str, ...], Runtime(), Location()] = Field(
        description="tars: a folder, a file, a glob, a pattern such as s3://bucket/{00000..00127}.tar, or a list"
    )
    layout: Literal["auto", "webdataset", "img2dataset"] = Field(
        "auto", description="img2dataset reads the parquet next to each tar; auto does so if it exists"
    )
    media: Media = Field(ONLY_IMAGES, description="what the samples are: image, video, or both")
    images: Annotated[Extensions, Added()] = Field(
        RASTER_EXTENSIONS, description="extensions of members that are images"
    )
    videos: Annotated[Extensions, Added()] = Field(
        VIDEO_EXTENSIONS,
        description="extensions of members that are videos; used if `media` has them, and a sample's video before an "
        "image beside it",
    )
    key_from: Literal["name", "shard_and_name"] = Field(
        "name", description="source id: the member's stem, or `tar/stem` if stems repeat from tar to tar"
    )
    name_ends: Annotated[Literal["first_dot", "last_dot"], Added()] = Field(
        "first_dot",
        description="where a member's stem ends: at the first dot of its name, as in webdataset, or at the last, if "
        "a.left.png and a.right.png are two samples",
    )
    caption_field: str | None = Field(
        None, description="field of the .json or table that holds the caption; default: caption, text, title, alt …"
    )

    @model_validator(mode="after")
    def _of_these_media(self) -> Self:
        check_used(self, self.media, {"images": "image", "videos": "video"})
        return self

    # --- planning ---

    def plan(self) -> list[Portion]:
        root = self._root()
        skipped: dict[str, str] = {}
        tars = find_files(root, self.path, "tar", self._place, skipped=skipped)
        tables = {} if self.layout == "webdataset" else self._tables(root, tars)
        for table in tables.values():
            skipped.pop(table.path, None)
        contents = [self._content(tar, tables.get(tar.path)) for tar in tars]
        counts = _counts(root, contents)
        found = zip(tars, contents, counts, strict=True)
        first, *others = [Portion(content, rows, unread=(tar.path,) * tar.folder) for tar, content, rows in found]
        return [replace(first, skipped=skips_of(skipped)), *others]

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    def _root(self) -> Storage:
        return root_of(self.path, "tar", self._place)

    def _tables(self, root: Storage, tars: list[FileInfo]) -> dict[str, FileInfo]:
        """Tar -> the parquet next to it."""
        folders = {posixpath.dirname(tar.path) for tar in tars if not tar.folder}
        beside = {file.path: file for folder in sorted(folders) for file in self._parquets(root, folder)}
        found = {tar.path: beside.get(tar.path.removesuffix("tar") + "parquet") for tar in tars}
        missing = [path for path, table in found.items() if table is None]
        if self.layout == "img2dataset" and missing:
            raise InputError(
                f"{self.op}: layout: 'img2dataset', but {len(missing)} of {len(tars)} tars have no .parquet next to "
                f"them (the first is {missing[0]!r}); use layout: auto"
            )
        return {path: table for path, table in found.items() if table is not None}

    def _parquets(self, root: Storage, folder: str) -> list[FileInfo]:
        """Parquet files next to tars. With `layout: auto`, none if the folder cannot be listed: an object store may
        grant access to its files only."""
        try:
            return find_files(root, root.url_of(posixpath.join(folder, "*.parquet")), "parquet", self._place)
        except InputError as error:
            if self.layout == "img2dataset" and not isinstance(error, NoFilesError):
                raise
            return []

    def _content(self, tar: FileInfo, table: FileInfo | None) -> dict[str, Any]:
        content: dict[str, Any] = {"tar": tar.path, "size": tar.size, "stamp": tar.stamp}
        if tar.reject:
            content["reject"] = tar.reject
        return content if table is None else content | {"table": [table.path, table.size, table.stamp]}

    # --- reading ---

    def tar(self, portion: Portion) -> str | None:
        return None if "reject" in portion.content else self._root().url_of(portion.content["tar"])

    def read(self, portion: Portion) -> Iterator[Incoming]:
        root, tar = self._root(), portion.content["tar"]
        if "reject" in portion.content:
            yield Incoming(tar, reject=portion.content["reject"])
            return
        try:
            with open_file(root, tar) as file, contextlib.ExitStack() as stack:
                _check_size(file, portion.content, root.url_of(tar))
                table = _table(root, portion.content, stack)
                groups = group_members(members(file), portion.skip, last_dot=self.name_ends == "last_dot")
                counted = self._counted(groups, portion.skip)
                if table is None:
                    yield from (self._one(group, tar, file) for group in counted)
                else:
                    yield from self._read_table(table, tar, file, counted)
        except FileNotFoundError:
            raise InputError(
                f"{root.url_of(tar)}: the tar or its table was deleted during the run; run again"
            ) from None

    def _counted(self, groups: Iterable[MemberGroup], skip: Callable[[str, str], None]) -> Iterator[MemberGroup]:
        """The samples; `skip` gets their members that are not used. The reject of one without a medium is for all."""
        for group in groups:
            picked = self._picked(group)
            used = {*[suffix for suffix in TEXT_SUFFIXES if suffix in group.members][:1], "json", "cls"}
            for suffix, member in group.members.items():
                if picked and suffix not in used and member is not picked[1]:
                    skip("other_member", member.name)
            yield group

    def _read_table(
        self, table: ParquetFile, tar: str, file: IO[bytes], found: Iterable[MemberGroup]
    ) -> Iterator[Incoming]:
        """The table's rows, then samples that only the tar has."""
        groups: dict[str, MemberGroup] = {}
        repeated: list[MemberGroup] = []
        for group in found:
            if groups.setdefault(group.stem, group) is not group:
                repeated.append(group)
        left = dict(groups)
        for row, group in img2dataset.join(img2dataset.table_rows(table), groups):
            left.pop(group.stem, None)
            if group.reject in img2dataset.TAR_ERRORS:
                left.pop("", None)  # the row reports it
            yield one_row(f"{tar.removesuffix('.tar')}/{group.stem}", self._row, row, group)
        for group in (*left.values(), *repeated):
            yield self._one(group, tar, file)

    def _row(self, row: dict[str, Any], group: MemberGroup) -> Incoming:
        """A row of img2dataset's table, with its image or video if it has one."""
        row = fields.plain(row)
        url = str(row.pop("url"))
        caption, meta = fields.split_caption(row, self.caption_field)
        sample = Incoming(img2dataset.source_id(url, caption), group.stem, caption=caption, url=url)
        sample.meta = {name: value for name, value in meta.items() if value is not None}
        return self._place_member(sample, group)

    def _one(self, group: MemberGroup, tar: str, file: IO[bytes]) -> Incoming:
        if not group.stem:
            return Incoming(tar, reject=group.reject, meta={"detail": group.detail})
        name = group.stem if self.key_from == "name" else f"{tar.removesuffix('.tar')}/{group.stem}"
        return one_row(name, self._sample, name, group, _reader(file))

    def _sample(self, name: str, group: MemberGroup, read: Callable[[Member], bytes]) -> Incoming:
        sample = self._place_member(Incoming(name, group.stem), group)
        if group.reject is None:
            try:
                self._describe(sample, group, read)
            except Reject as reject:
                sample.reject = sample.reject or reject.reason
        return sample

    def _picked(self, group: MemberGroup) -> tuple[str, Member] | None:
        wanted = {"video": self.videos, "image": self.images}
        picked = (pick_member(group, extensions) for medium, extensions in wanted.items() if medium in self.media)
        return next(filter(None, picked), None)

    def _place_member(self, sample: Incoming, group: MemberGroup) -> Incoming:
        found = self._picked(group)
        sample.reject = group.reject or (None if found else "no_member" if "video" in self.media else "no_image")
        if sample.reject is None and found:
            sample.ext, member = found
            sample.offset, sample.size = member.offset, member.size
        elif group.detail:
            sample.meta["detail"] = group.detail
        return sample

    def _describe(self, sample: Incoming, group: MemberGroup, read: Callable[[Member], bytes]) -> None:
        """Set caption, url and meta from the text members. Raises Reject."""
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


def _table(root: Storage, content: dict[str, Any], stack: contextlib.ExitStack) -> ParquetFile | None:
    """The tar's table; None if it is missing or cannot be read, so that the tar alone is imported."""
    if "table" not in content:
        return None
    return img2dataset.open_table(stack.enter_context(open_file(root, content["table"][0])))


def _counts(root: Storage, contents: list[dict[str, Any]]) -> list[int | None]:
    """Rows of each tar from its table or from `sizes.json`; reading the headers of every tar would take too long."""
    sizes = {folder: _sizes(root, folder) for folder in {posixpath.dirname(content["tar"]) for content in contents}}
    tables = [content.get("table", [None])[0] for content in contents]
    counted: list[int | None] = [None] * len(contents)
    if sum(table is not None for table in tables) <= COUNTED_TABLES:
        with ThreadPoolExecutor(THREADS) as threads:
            counted = list(threads.map(lambda table: _table_rows(root, table), tables))
    named = [sizes[posixpath.dirname(content["tar"])].get(posixpath.basename(content["tar"])) for content in contents]
    return [rows if rows is not None else size for rows, size in zip(counted, named, strict=True)]


def _table_rows(root: Storage, path: str | None) -> int | None:
    if path is None:
        return None
    with open_file(root, path) as file:
        table = img2dataset.open_table(file)
        return None if table is None else int(table.metadata.num_rows)


def _sizes(root: Storage, folder: str) -> dict[str, int]:
    """Tar -> samples, from WebDataset's `sizes.json`."""
    try:
        with open_file(root, f"{folder}/sizes.json".lstrip("/")) as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, int)} if isinstance(value, dict) else {}


def _check_size(file: IO[bytes], content: dict[str, Any], url: str) -> None:
    size = file.seek(0, 2)
    if size != content["size"]:
        raise InputError(
            f"{url}: {size} bytes, but {content['size']} when the run began; run again when it is complete"
        )


def _reader(file: IO[bytes]) -> Callable[[Member], bytes]:
    """Function that reads a member; it raises Reject if the member is too large for a caption or metadata."""

    def read(member: Member) -> bytes:
        if member.size > fields.MAX_TEXT_BYTES:
            raise Reject("bad_metadata", f"{member.name}: {member.size} bytes")
        file.seek(member.offset)
        return file.read(member.size)

    return read
