"""`pack.webdataset`: writes the dataset for training: images or clips, each with its text and a JSON description."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from curate.codec.formats import SNIFF_BYTES, sniff
from curate.codec.images import probe
from curate.codec.media import opener
from curate.core.contracts import MEDIUM, OF_VIDEOS, Added, Pack, Packed
from curate.core.errors import CurateError, did_you_mean
from curate.core.nouns.pools import EDGES, EXTRACTED, POOL_SCHEMA
from curate.core.reader import Reader
from curate.kernels.meta import META, as_text, field_at, fields_of
from curate.pack import card, energon
from curate.pack.clips import MOST_FRAMES, Clip, Kept, clip_of
from curate.pack.groups import By, group_of, groups
from curate.pack.images import EXTENSIONS, Format, extension_of, facts_of, resize, size_of

INDEX_COLUMNS = frozenset(
    "shard row name key item copy ext offset size text_offset text_size width height json_offset json_size".split()  # noqa: SIM905
)
"""Columns that every index has; a carried column needs a different name."""
GROUP = "group"
WIDS_KIND = "wids-shard-index-v1"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


class PackWebDataset(Pack):
    """Write the selected samples as WebDataset tars, globally shuffled, with indexes for several readers.

    The members of a sample are `{key}-{item}-{copy}` with the image's extension, `.txt` (if there is a text) and
    `.json`. In place of the image, a video has frames (`.00.jpg` …, or `.jpg` with `frames: 1`), an `.mp4`, or both; it
    is rejected as no_duration or with the codec's reasons. `texts` adds the texts of `caption.mix` to the JSON, by
    kind. `carry` adds columns to the index: a list of columns (`carry: [duplicate_set, cluster_1]`), or a mapping from
    new names to columns or fields of `meta` (`carry: {label: meta.category, duplicate_set: duplicate_set}`).
    """

    op: ClassVar[str] = "pack.webdataset"
    version: ClassVar[int] = 2
    sees: ClassVar[tuple[str, ...]] = ("image", "video")

    name: str = Field(description="name of the dataset: at most 200 letters, digits, - and _")
    shard_rows: int = Field(1000, ge=1, description="approximate number of samples per tar")
    seed: int = Field(0, description="seed of the order of samples")
    image: Literal["original", "resized"] = Field(
        "original", description="original: the source's bytes; resized: at most max_side, in one format"
    )
    max_side: int = Field(
        512, ge=1, description="maximum longer side of a resized image, in pixels; smaller images are not enlarged"
    )
    format: Format = Field("webp", description="format of resized images")
    quality: int = Field(90, ge=1, le=100, description="quality of resized images in lossy formats")
    text: str | None = Field(
        None,
        description="column of the text (default: `text` if there is one, else `caption`), or a kind in the column of "
        "`caption.mix` (`texts.short`); if items were selected, a column with one text per item (`sentences`)",
    )
    texts: Annotated[str | None, Added()] = Field(
        None,
        description="column of `caption.mix`: all its texts are written into the JSON, without those that are null",
    )
    video: Annotated[Kept, Added()] = Field(
        "frames",
        description="frames: of a video, JPEGs of some frames; clip: an mp4 of its packets, which are copied with the "
        "first sound track, and never encoded again: codecs that an mp4 cannot hold are rejected; an mp4 is packed as "
        "it is; both: the frames and the mp4",
    )
    frames: Annotated[int, Added()] = Field(
        8,
        ge=1,
        le=MOST_FRAMES,
        description="frames of a video, at the middles of as many equal parts of it; a shorter video has fewer",
    )
    short_side: Annotated[int, Added()] = Field(
        256, ge=1, description="shorter side of the frames in pixels; smaller videos are not enlarged"
    )
    group_by: Annotated[list[By], Added()] = Field(
        default_factory=list,
        description="[aspect], [duration] or both: the samples of a tar are of one group, which the index has as "
        "`group`, such as 16x9-5to10s; the tars are in order of groups, so training must draw from many",
    )
    carry: dict[str, str] | list[str] = Field(
        default_factory=list,
        description="further columns of the index and fields of the JSON: a list of columns, or name -> column or "
        "meta.<field>; embeddings and hashes are bytes, which only the index has",
    )

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("expected at most 200 letters, digits, - and _, because file names contain it")
        return value

    @model_validator(mode="after")
    def _free_names(self) -> PackWebDataset:
        if len(set(self.group_by)) < len(self.group_by):
            raise ValueError(f"group_by: {self.group_by[0]} is given twice; give each once")
        own = INDEX_COLUMNS | {GROUP} if self.group_by else INDEX_COLUMNS
        taken = sorted(own & self._sources().keys())
        if taken:
            raise ValueError(f"carry: the index already has a column {taken[0]!r}; carry it under another name")
        if self.texts is not None and self._sources().get(TEXTS, self.texts) != self.texts:
            raise ValueError(f"carry: the JSON already has a field {TEXTS!r}; carry the column under another name")
        return self

    def check_columns(self, columns: pa.Schema) -> None:
        """Columns of videos are in the index only if the pool may have some: then it has the column `media`, which
        otherwise may be a user's."""
        of_pool = "media" in columns.names and columns.field("media").equals(POOL_SCHEMA.field("media"), True)
        taken = [name for name in OF_VIDEOS.names if name in self._sources()]
        if of_pool and taken:
            raise CurateError(
                f"carry: the index of a dataset with videos already has a column {taken[0]!r}; carry it under another "
                "name"
            )

    def identity(self) -> dict[str, Any]:
        return {"color": "srgb"} if self.image == "resized" else {}

    def groups(self) -> tuple[str, ...]:
        return groups(self.group_by)

    def group_of(self, row: Mapping[str, Any]) -> int:
        return group_of(self.group_by, row)

    def _sources(self) -> dict[str, str]:
        return carry_mapping(self.carry)

    def meta_fields(self) -> tuple[str, ...]:
        return tuple(self._sources().values())

    def reads(self) -> tuple[str, ...]:
        columns = [source for source in self._sources().values() if not source.startswith(META)]
        named = [self._text_source[0], self.texts or ""]
        return tuple(dict.fromkeys([name for name in named if name] + columns))

    def text_columns(self) -> tuple[str, ...]:
        return (self._text_source[0],) if self.text else ("text", "caption")

    @property
    def _text_source(self) -> tuple[str, str]:
        """(column, kind) of the text; an empty kind if the column has plain texts, empty strings without `text`."""
        column, _, kind = (self.text or "").partition(".")
        return column, kind

    def write(self, row: Mapping[str, Any], data: Reader, add: Callable[[str, bytes | Reader], int]) -> Packed:
        given = row
        stem, medium = f"{row['key']}-{row['item']}-{row['copy']}", row.get(MEDIUM)
        text, of_video = self._text(row), None if MEDIUM not in row else dict.fromkeys(OF_VIDEOS.names)
        if medium == "video":
            row, clip = self._clip(row, data)
            image = clip.facts
            ext, offset, size, of_video = clip.add(stem, self.frames == 1, add)
        else:
            if str(row.get("sha256")).startswith((EDGES, EXTRACTED)):
                row = {**row, "sha256": data.sha256()}
            member, ext, image = self._image(row, data)
            offset, size = add(f"{stem}.{ext}", member), member.size
        text_offset, text_bytes = -1, b""
        if text is not None:
            text_bytes = text.encode()
            text_offset = add(f"{stem}.txt", text_bytes)
        carried = carried_values(row, self._sources())
        if self.group_by:
            carried[GROUP] = self.groups()[self.group_of(given)]
        texts = {} if self.texts is None else _kinds(row, self.texts, "texts")
        about = describe(row, image, carried, texts)
        place = ext, offset, size, text_offset, len(text_bytes), image["width"], image["height"]
        return Packed(*place, add(f"{stem}.json", about), len(about), carried, of_video)

    def _clip(self, row: Mapping[str, Any], data: Reader) -> tuple[Mapping[str, Any], Clip]:
        """The row with what is known of the whole video, and what is packed of it."""
        sha256 = str(row["sha256"])
        digest: str | None = sha256
        if sha256.startswith((EDGES, EXTRACTED)):  # the first are too large to be read for that alone
            digest = data.sha256() if sha256.startswith(EXTRACTED) or self.video == "clip" else None
        duration = row.get("duration_ms")
        known = duration if isinstance(duration, int) else None
        clip = clip_of(data, known, digest, self.video, self.frames, self.short_side)
        return {**row, **clip.source, "sha256": digest}, clip

    def _text(self, row: Mapping[str, Any]) -> str | None:
        column, kind = self._text_source
        if kind:
            return _kind(row, column, kind)
        value = next((row[name] for name in self.text_columns() if row.get(name) is not None), None)
        if isinstance(value, dict):
            kinds = ", ".join(f"{column}.{name}" for name in value)
            raise CurateError(f"{self.op}.text: column {column!r} has texts of several kinds; give one of {kinds}")
        return value if value is None else str(value)

    def _image(self, row: Mapping[str, Any], data: Reader) -> tuple[Reader, str, dict[str, Any]]:
        """(member, extension, description) of the image member. Raises Undecodable if the image cannot be resized, or
        is not one in a pool that may have videos."""
        if self.image == "resized":
            opener(data, ("image",))  # rejects a video unread
            made, new_width, new_height = resize(data.bytes(), self.max_side, self.format, self.quality)
            sha256 = hashlib.sha256(made).hexdigest()
            return Reader(made), EXTENSIONS[self.format], facts_of(new_width, new_height, self.format, sha256)
        if MEDIUM in row and row.get("format") is None:
            probe(data)  # bytes of no medium count as an image
        format = row.get("format") or sniff(data.read_at(0, SNIFF_BYTES))
        size = row.get("width"), row.get("height")
        width, height = size_of(data) if None in size else size
        facts = facts_of(width, height, format, row.get("sha256") or data.sha256())
        return data, extension_of(str(row.get("ext") or ""), format), facts

    def beside(self, tar: str, rows: pa.Table) -> dict[str, bytes]:
        return {f"{tar}.idx": energon.index_of_tar(rows)}

    def finish(
        self, tars: list[tuple[str, int]], fingerprint: str, index: Callable[[], Iterable[pa.Table]]
    ) -> dict[str, bytes | Callable[[Path], None]]:
        """`sizes.json` (tar -> samples), `index.json` for wids, with URLs relative to it, Energon's index, and a README
        that tells Hugging Face `datasets` which files have the samples."""
        shards = [{"url": tar, "nsamples": samples} for tar, samples in tars]
        wids = {"__kind__": WIDS_KIND, "wids_version": 1, "name": self.name, "shardlist": shards}
        made: dict[str, bytes | Callable[[Path], None]] = energon.files(tars, fingerprint, index, self.frames > 1)
        readme = card.readme(self.name, tars, index(), self.frames > 1)
        return made | {"sizes.json": _json(dict(tars)), "index.json": _json(wids), "README.md": readme}


def _kinds(row: Mapping[str, Any], column: str, parameter: str) -> dict[str, str | None]:
    """Texts by kind of a row's `caption.mix`. Raises CurateError if the column has something else."""
    value = row[column]
    if value is not None and not isinstance(value, dict):
        raise CurateError(
            f"{PackWebDataset.op}.{parameter}: column {column!r} has {type(value).__name__}, expected texts by kind; "
            "give a column of caption.mix"
        )
    return value or {}


def _kind(row: Mapping[str, Any], column: str, kind: str) -> str | None:
    """The text of one kind; None if the row has no text of it."""
    texts = _kinds(row, column, "text")
    if texts and kind not in texts:
        raise CurateError(
            f"{PackWebDataset.op}.text: column {column!r} has no kind {kind!r}; "
            + did_you_mean(kind, texts, f"it has {', '.join(texts)}")
        )
    return texts.get(kind)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()


TEXTS = "texts"
"""Field of the JSON with the texts by kind."""


def carry_mapping(carry: Mapping[str, str] | list[str]) -> dict[str, str]:
    """Name in the index -> column or `meta.<field>`; a list keeps the names of the columns."""
    return dict(carry) if isinstance(carry, Mapping) else {name.removeprefix(META): name for name in carry}


def carried_values(row: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """Values of a row's carried columns, by name in the index.

    Fields of `meta` become strings (JSON unless they are strings), since the field's type may differ between samples. A
    dot in the name of a field selects a field of a nested object.
    """
    meta = fields_of(row.get("meta")) if any(source.startswith(META) for source in sources.values()) else {}
    return {
        name: as_text(field_at(meta, source[len(META) :])) if source.startswith(META) else row[source]
        for name, source in sources.items()
    }


def describe(
    row: Mapping[str, Any],
    image: Mapping[str, Any],
    carried: Mapping[str, Any],
    texts: Mapping[str, str | None] | None = None,
) -> bytes:
    """The .json member. `image` describes the image in the tar. If the image was resized, the pool's values are added
    as original_width, original_height, original_format and original_sha256. `texts`: by kind; nulls are left out.
    Carried bytes (embeddings, hashes) are in the index only."""
    value: dict[str, Any] = {name: row.get(name) for name in ("key", "item", "copy", "source_id", "url")}
    value |= image
    if image["sha256"] != row.get("sha256"):
        value |= {f"original_{name}": row.get(name) for name in ("width", "height", "format", "sha256")}
    present = {kind: text for kind, text in (texts or {}).items() if text}
    value |= {"meta": fields_of(row.get("meta"))} | ({TEXTS: present} if present else {})
    plain = {name: item for name, item in carried.items() if not isinstance(item, bytes)}
    value |= {name: _json_value(item) for name, item in plain.items() if name not in value}
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _json_value(value: Any) -> Any:
    """Value for JSON. NaN and bytes become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, datetime | date):
        return value.isoformat()
    return None if isinstance(value, bytes) else value
