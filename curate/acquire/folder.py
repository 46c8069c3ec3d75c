"""`acquire.folder`: any folder of images or videos, with captions from sidecars or Hugging Face's metadata files."""

from __future__ import annotations

import itertools
import math
import posixpath
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from curate.acquire import fields, records
from curate.acquire.kinds import ONLY_IMAGES, VIDEO_EXTENSIONS, Extensions, Media, check_used
from curate.acquire.metadata import METADATA_NAMES, NAME, Row, is_metadata, joined, load_metadata
from curate.codec import files, listing, media
from curate.codec.formats import FIRST_EXTENSIONS, RASTER_EXTENSIONS
from curate.codec.listing import FileInfo, extension
from curate.codec.patterns import THREADS
from curate.codec.readers import MEMORY_BYTES, FileReader
from curate.core.contracts import ROW_REASONS, Added, Incoming, Location, Portion, Runtime, Source, one_row
from curate.core.errors import InputError, Reject
from curate.core.ledger import skips_of
from curate.core.reader import LostError, Reader
from curate.core.store.storage import Storage

REASONS = {
    **files.REASONS,
    **listing.REASONS,
    **fields.REASONS,
    **records.REASONS,
    **ROW_REASONS,
    "missing_file": "named in a metadata file, but missing or hidden",
    "other_extension": "named in a metadata file, but its extension is not in `extensions` or `videos`",
    "unsafe_path": "named in a metadata file, but outside the folder",
    "too_large": "more bytes than `max_bytes`, or a video's than `max_video_bytes`",
}
"""Every reason that this source gives, with its meaning."""
SIDECARS = ("txt", "json")


@dataclass(frozen=True)
class Folder:
    """One folder of `path`."""

    root: Storage
    source: str = ""
    """Its name; empty if `path` is not a list."""
    prefix: str = ""
    """What its source ids begin with: nothing, or its name."""


class AcquireFolder(Source):
    """Import any folder of images or videos, recursively; or several.

    A sample is a file with one of the extensions; or without an extension, if `extensions` and `videos` are the
    defaults and its first bytes are an image's or a video's. Files that neither are nor describe samples are skipped
    and counted. Its source id is its path relative to `path`, and samples are sorted by this path. In a list of
    folders, the first has these source ids, and so the keys that it has alone; those of another begin with its name.
    The column `source` is the name of the folder; without a list it is null. Symbolic
    links are followed only within the folder. Captions come from, in order of preference: `metadata.jsonl`, `.csv` or
    `.parquet` with a `file_name` column (Hugging Face's imagefolder), `NAME.txt` next to `NAME.jpg`, a caption field of
    `NAME.json`. All other fields go into `meta`, and the file's folder as `folder` unless the metadata has a `label`.
    With `in_place`, nothing is copied: stages read the files themselves, and a file that no longer has the recorded
    bytes is an error of its row.
    """

    op: ClassVar[str] = "acquire.folder"
    earlier: ClassVar[dict[str, Any]] = {"extensions": FIRST_EXTENSIONS}
    unique_keys: ClassVar[bool] = True

    namespace: str = Field(description="enters every key: the same path in another namespace is another sample")
    path: Annotated[str | tuple[str, ...], Runtime(), Location()] = Field(
        min_length=1,
        description="the folder, a local path or a URL such as s3://bucket/photos; or a list of folders",
    )
    media: Media = Field(ONLY_IMAGES, description="what the samples are: image, video, or both")
    shard_rows: int = Field(1000, ge=1, description="most samples per shard")
    shard_bytes: Annotated[int | None, Added()] = Field(
        None, ge=1, description="most bytes of files per shard; a larger file is alone in its shard; default: no limit"
    )
    extensions: Annotated[Extensions, Added()] = Field(
        RASTER_EXTENSIONS, description="file name extensions of images, without the dot; case does not matter"
    )
    videos: Annotated[Extensions, Added()] = Field(
        VIDEO_EXTENSIONS, description="file name extensions of videos; used if `media` has them"
    )
    caption_field: str | None = Field(
        None, description="field of the metadata that holds the caption; default: caption, text, title, alt …"
    )
    label: Annotated[int | None, Added()] = Field(
        None,
        description="which folder of an image's path is its `meta.label`, unless its metadata has a `label`: 1 is the "
        "first below `path`, -1 the one that holds the image; empty if there is none",
    )
    metadata: Annotated[str | None, Runtime(), Location()] = Field(
        None,
        description="a .csv, .jsonl or .parquet file, anywhere, with further fields of the images; they replace those "
        "of the folder's own metadata files",
    )
    metadata_key: Annotated[str, Added()] = Field(
        NAME,
        description="column of `metadata` that names an image: the end of its path, with or without the extension",
    )
    max_bytes: int = Field(256 << 20, ge=1, description="larger files are rejected as too_large, unread; bytes")
    max_video_bytes: Annotated[int, Added()] = Field(2 << 30, ge=1, description="the same for videos; bytes")
    in_place: Annotated[bool, Runtime()] = Field(
        False, description="read the files where they are in every stage, instead of copying them once"
    )
    digest: Annotated[Literal["auto", "full"], Added()] = Field(
        "auto",
        description="what identifies a file in place: auto: its SHA-256, but above 64 MiB its size, time or ETag, and "
        "first and last MiB; full: always its SHA-256, read at each use",
    )

    @field_validator("label")
    @classmethod
    def _a_place(cls, label: int | None) -> int | None:
        if label == 0:
            raise ValueError("expected 1 for the first folder of the path, or -1 for the last")
        return label

    @field_validator("metadata")
    @classmethod
    def _readable(cls, path: str | None) -> str | None:
        if path is not None and extension(path) not in {extension(name) for name in METADATA_NAMES}:
            raise ValueError("expected a file that ends in .csv, .jsonl or .parquet")
        return path

    @model_validator(mode="after")
    def _of_these_media(self) -> Self:
        of_each = {"extensions": "image", "max_bytes": "image", "videos": "video", "max_video_bytes": "video"}
        check_used(self, self.media, of_each)
        return self

    def plan(self) -> list[Portion]:
        skipped: dict[str, str] = {}
        listed = [(folder, self._listed(folder, skipped)) for folder in self._folders()]
        if len(listed) > 1:
            _check_apart(self._place, listed)
        if self.metadata is not None:
            self._join(self.metadata, listed)
        first, *others = (portion for folder, samples in listed for portion in self._portions(folder, samples))
        return [replace(first, skipped=skips_of(skipped)), *others]

    def _folders(self) -> list[Folder]:
        if isinstance(self.path, str):
            return [Folder(listing.open_root(self.path, self._place))]
        roots = [listing.open_root(path, self._place) for path in self.path]
        names = [posixpath.basename(root.url.rstrip("/")) for root in roots]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{self._place}: two folders are named {twice!r}, which is their `source`; rename one")
        urls = [f"{root.url.rstrip('/')}/" for root in roots]
        for outer, inner in itertools.permutations(urls, 2):
            if inner.startswith(outer):
                raise InputError(f"{self._place}: {inner!r} is inside {outer!r}; leave out one of them")
            if self.in_place and inner != urls[0] and re.fullmatch(r"\w+://[^/]+/", inner):
                raise InputError(f"{self._place}: {inner!r} is a whole bucket; with in_place, put it first in the list")
        first = [Folder(roots[0], names[0])]
        return first + [Folder(root, name, f"{name}/") for root, name in zip(roots[1:], names[1:], strict=True)]

    def _opened(self, metadata: str) -> tuple[Storage, str]:
        beside, _, name = metadata.rpartition("/")
        return listing.open_root(beside or ("/" if metadata.startswith("/") else "."), f"{self.op}: metadata"), name

    def _join(self, metadata: str, listed: list[tuple[Folder, list[dict[str, Any]]]]) -> None:
        """Add the rows of a metadata file to the samples."""
        root, name = self._opened(metadata)
        rows = load_metadata(root, [FileInfo(name)], self.metadata_key)
        if lost := next((one for one in rows if one.startswith(f"{name}: line ")), None):
            raise InputError(f"{self.op}: metadata: {lost} names no image; fix or remove the line")
        samples = {folder.prefix + sample["path"]: sample for folder, content in listed for sample in content}
        for path, row in joined(f"{self.op}: metadata: {metadata}", rows, samples).items():
            own = samples[path].get("row", {})
            samples[path]["row"] = row if isinstance(row, str) else own if isinstance(own, str) else own | row

    def _folder_of(self, portion: Portion) -> Folder:
        source = portion.content.get("source", "")
        return next(folder for folder in self._folders() if folder.source == source)

    def _listed(self, folder: Folder, skipped: dict[str, str]) -> list[dict[str, Any]]:
        """Content of all samples of a folder; `skipped` gets the files that have no part in any. Raises InputError if
        there are none."""
        root, unread = folder.root, dict[str, str]()
        found = listing.list_files(root, self._place, skipped=unread)
        tables = [file for file in found if is_metadata(file.path)]
        if lost := next((file for file in tables if file.reject), None):
            raise InputError(f"{root.url_of(lost.path)}: {lost.reject}; make it readable or remove it")
        rows = load_metadata(root, tables)
        unread |= self._others(root, found)
        samples = self._samples([file for file in found if file.path not in unread], rows, unread)
        used = {path for sample in samples for path in (sample["path"], *(sample[kind][0] for kind in _beside(sample)))}
        joined_to = None if self.metadata is None else Storage.url_of(*self._opened(self.metadata))
        for file in found:
            if file.path not in used and not is_metadata(file.path) and root.url_of(file.path) != joined_to:
                unread.setdefault(file.path, "other_extension")
        skipped |= {folder.prefix + path: reason for path, reason in unread.items()}
        if not samples:
            known = (*(self.extensions if "image" in self.media else ()), *self._videos)
            wanted = ", ".join(known[:6]) + (" …" if len(known) > 6 else "")
            kinds = " or ".join(f"{medium}s" for medium in self.media)
            raise InputError(
                f"{self._place}: no {kinds} in {root.root!r} ({len(found)} other files); looked for {wanted}, also in "
                "subfolders; hidden files are skipped"
            )
        return samples

    def _portions(self, folder: Folder, samples: list[dict[str, Any]]) -> Iterator[Portion]:
        more: dict[str, Any] = {"in_place": True} if self.in_place else {}
        if folder.source:
            more |= {"source": folder.source, "prefix": folder.prefix}
        for part in self._parts(samples):
            size = 0 if self.in_place else sum(file.get("size", 0) for file in part)
            unread = tuple(folder.prefix + file["path"] for file in part if file.pop("folder", False))
            yield Portion({"files": part, **more}, len(part), size, unread=unread)

    def _parts(self, samples: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The samples of each shard."""
        limit = math.inf if self.shard_bytes is None else self.shard_bytes
        start, held = 0, 0
        for place, sample in enumerate(samples):
            size = 0 if "reject" in sample else sample["size"]
            if place > start and (place - start == self.shard_rows or held + size > limit):
                yield samples[start:place]
                start, held = place, 0
            held += size
        if start < len(samples):
            yield samples[start:]

    def tar(self, portion: Portion) -> str | None:
        if not self.in_place:
            return None
        folder = self._folder_of(portion)
        return f"{folder.root.url.rstrip('/').removesuffix(folder.prefix.rstrip('/')).rstrip('/')}/"

    def origin(self, source_id: str) -> str:
        folder = next(one for one in reversed(self._folders()) if source_id.startswith(one.prefix))
        return folder.root.url_of(source_id.removeprefix(folder.prefix))

    @property
    def _place(self) -> str:
        return f"{self.op}: path"

    def _samples(self, found: list[FileInfo], rows: dict[str, Row], unread: dict[str, str]) -> list[dict[str, Any]]:
        """Content of all portions, by path: a file with its sidecars and its metadata row. Files that have a row leave
        `unread`."""
        by_path = {file.path: file for file in found}
        wanted = {file.path: file for file in found if self._is_sample(file)}
        samples = {path: self._content(file, by_path, rows.get(path)) for path, file in wanted.items()}
        for path, row in rows.items():
            if path not in samples:
                samples[path] = _absent(path, row, unread.pop(path, "other_extension" if path in by_path else "hidden"))
        return [samples[path] for path in sorted(samples)]

    @property
    def _videos(self) -> tuple[str, ...]:
        return self.videos if "video" in self.media else ()

    def _is_sample(self, file: FileInfo) -> bool:
        found = extension(file.path)
        known = found in self._videos or (found in self.extensions and "image" in self.media)
        return file.folder or known or self._is_unnamed(file)

    def _is_unnamed(self, file: FileInfo) -> bool:
        """Whether the first bytes decide, not the name."""
        given = (self.extensions, RASTER_EXTENSIONS), (self.videos, VIDEO_EXTENSIONS)
        return not (extension(file.path) or file.folder) and all(set(own) == set(usual) for own, usual in given)

    def _others(self, root: Storage, found: list[FileInfo]) -> dict[str, str]:
        """Files without an extension whose first bytes are not those of a sample, and why."""
        other = "not_an_image" if "image" in self.media else "not_a_video"

        def reason(file: FileInfo) -> str | None:
            opened = _open(root, file) if file.reject is None else Reject(file.reject)
            return None if isinstance(opened, Reject) or media.extension_of(opened, self.media) else other

        unnamed = [file for file in found if self._is_unnamed(file)]
        with ThreadPoolExecutor(THREADS) as threads:
            return {file.path: why for file, why in zip(unnamed, threads.map(reason, unnamed), strict=True) if why}

    def _most(self, path: str) -> int:
        """Bytes that a file may have."""
        found = extension(path)
        return self.max_video_bytes if found in self._videos or not (found or "image" in self.media) else self.max_bytes

    def _content(self, file: FileInfo, by_path: dict[str, FileInfo], row: Row | None) -> dict[str, Any]:
        content: dict[str, Any] = {"path": file.path, "size": file.size, "stamp": file.stamp}
        stem = posixpath.splitext(file.path)[0]
        beside = {kind: by_path.get(f"{stem}.{kind}") for kind in SIDECARS if not file.folder}
        sidecars = {kind: found for kind, found in beside.items() if found is not None and found is not file}
        too_large = "too_large" if file.size > self._most(file.path) else None
        reject = file.reject or too_large or _sidecar_reject(sidecars.values())
        if reject:
            content["reject"] = reject
        if file.folder:
            content["folder"] = True  # until its portion is made
        for kind, found in sidecars.items():
            content[kind] = [found.path, found.size, found.stamp]
        return content if row is None else content | {"row": row}

    def read(self, portion: Portion) -> Iterator[Incoming]:
        folder, items = self._folder_of(portion), portion.content["files"]
        data = _read(folder.root, [file for item in items for file in _files(item).values()])
        for item in items:
            own = {kind: next(data) for kind in _files(item)}
            yield one_row(folder.prefix + item["path"], self._sample, folder, item, own)

    def _sample(self, folder: Folder, item: dict[str, Any], data: dict[str, bytes | Reader | Reject]) -> Incoming:
        path = item["path"]
        sample = Incoming(
            folder.prefix + path, ext=extension(path), source=folder.source or None, reject=item.get("reject")
        )
        image = data.pop("image", None)
        if isinstance(image, Reject):
            sample.reject = image.reason
        else:
            sample.data = image
            if image is not None and not sample.ext:
                sample.ext = media.extension_of(image, self.media) or ""
        try:
            sample.caption, sample.meta = self._describe(item.get("row"), data)
        except Reject as reject:
            sample.reject = sample.reject or reject.reason
        if self.label is not None and sample.meta.get("label") in (None, ""):
            sample.meta.pop("label", None)
        if "label" not in sample.meta:
            sample.meta["folder"] = posixpath.dirname(path)
            if self.label is not None:
                folders = path.split("/")[:-1]
                place = self.label - (self.label > 0)
                sample.meta["label"] = folders[place] if -len(folders) <= place < len(folders) else ""
        return sample

    def _describe(self, row: Row | None, data: dict[str, bytes | Reader | Reject]) -> tuple[str | None, dict[str, Any]]:
        """(caption, meta) from the metadata row and the sidecars. Raises Reject."""
        if isinstance(row, str):
            raise Reject(row)
        text, described = data.get("txt"), data.get("json")
        for value in (text, described):
            if isinstance(value, Reject):
                raise value
        caption, meta = fields.split_caption(row or {}, self.caption_field)
        if isinstance(described, bytes):
            other, rest = fields.split_caption(fields.decode_object(described), self.caption_field)
            meta = rest | meta
        else:
            other = None
        own = fields.decode_caption(text) if isinstance(text, bytes) and caption is None else None
        return caption or own or other, meta


def _check_apart(place: str, listed: list[tuple[Folder, list[dict[str, Any]]]]) -> None:
    """Raises InputError if samples of two folders have the same source id."""
    known: dict[str, str] = {}
    for folder, samples in listed:
        for sample in samples:
            one = folder.prefix + sample["path"]
            if one in known:
                raise InputError(
                    f"{place}: {one!r} is in {known[one]!r} and in {folder.source!r}; leave out a folder that is "
                    "inside another, or rename one"
                )
            known[one] = folder.source


def _sidecar_reject(sidecars: Iterable[FileInfo]) -> str | None:
    """Reason of the first sidecar that cannot be read."""
    reasons = (file.reject or ("bad_metadata" if file.size > fields.MAX_TEXT_BYTES else None) for file in sidecars)
    return next((reason for reason in reasons if reason), None)


def _absent(path: str, row: Row, reason: str) -> dict[str, Any]:
    """A row without an image; and why the file that it names, if there is one, is skipped."""
    reject = row if isinstance(row, str) else "missing_file" if reason in ("hidden", "system_file") else reason
    if path.startswith(("/", "../")) or path == "..":
        reject = "unsafe_path"
    return {"path": path, "size": 0, "stamp": None, "reject": reject, "row": row}


def _beside(item: dict[str, Any]) -> list[str]:
    """Kinds of the sidecars that a sample has."""
    return [kind for kind in SIDECARS if kind in item]


def _files(item: dict[str, Any]) -> dict[str, FileInfo]:
    """Files to read for one sample, by kind."""
    if "reject" in item:
        return {}
    sidecars = {kind: FileInfo(*item[kind]) for kind in _beside(item)}
    return {"image": FileInfo(item["path"], item["size"], item["stamp"])} | sidecars


def _read(root: Storage, wanted: list[FileInfo]) -> Iterator[bytes | Reader | Reject]:
    """Bytes, reader or reject of each file; small ones are read in batches."""
    for large, part in itertools.groupby(wanted, lambda file: file.size > MEMORY_BYTES):
        if large:
            yield from (_open(root, file) for file in part)
            continue
        for batch in files.batches(list(part)):
            yield from files.read_files(root, batch)


def _open(root: Storage, file: FileInfo) -> Reader | Reject:
    try:
        reader = FileReader(root, file.path)
    except LostError as lost:
        return lost
    if reader.size != file.size or (root.local and reader.stamp != file.stamp):
        return Reject("changed", f"{reader.size} bytes, but {file.size} were listed")
    return reader
