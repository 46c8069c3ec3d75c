"""`pack.webdataset`: the dataset as training reads it. A sample is a picture, its text and a JSON of what is known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from curate.codec.formats import sniff
from curate.codec.images import probe
from curate.core.contracts import Pack, Packed
from curate.core.errors import Undecodable
from curate.pack.carry import META, carried_values, carry_mapping, describe
from curate.pack.resize import EXTENSIONS, Format, resize

FIXED = frozenset(
    "shard row name key item copy ext offset size text_offset text_size width height".split()  # noqa: SIM905
)
"""Columns of the index that are always there; a carried column needs another name."""
WIDS_KIND = "wids-shard-index-v1"

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_EXTENSION = re.compile(r"[a-z0-9]{1,8}")
_USUAL = {"jpeg": ("jpg", "jpeg", "jpe", "jfif"), "tiff": ("tif", "tiff"), "jpeg2000": ("jp2", "j2k", "jpx", "j2c")}


class PackWebDataset(Pack):
    """Write the selected samples as WebDataset tars, globally shuffled, with `sizes.json` and a wids index.

    Members are `{key}-{item}-{copy}` with the picture's extension, `.txt` (absent where there is no text) and `.json`.
    `carry` names what the index has besides: columns (`carry: [duplicate_set, cluster_1]`) or, under another name,
    a column or a field of `meta` (`carry: {label: meta.category, duplicate_set: duplicate_set}`).
    """

    op: ClassVar[str] = "pack.webdataset"

    name: str = Field(description="the dataset's name: letters, digits, - and _")
    shard_rows: int = Field(1000, ge=1, description="samples per tar, about")
    seed: int = Field(0, description="decides the order of samples")
    image: Literal["original", "resized"] = Field(
        "original", description="original: the bytes as they came; resized: at most max_side, in one format"
    )
    max_side: int = Field(512, ge=1, description="longer side of a resized picture; pixels; nothing is enlarged")
    format: Format = Field("webp", description="format of resized pictures")
    quality: int = Field(90, ge=1, le=100, description="quality of resized pictures in lossy formats")
    text: str | None = Field(
        None,
        description="column of the text; default: `text` where there is one, else `caption`. A column with a text per "
        "item (`sentences`) where items were selected",
    )
    carry: dict[str, str] | list[str] = Field(
        default_factory=list, description="columns for the index, or name -> column or meta.<field>"
    )

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("expected letters, digits, - and _ only; it names files")
        return value

    @model_validator(mode="after")
    def _free_names(self) -> PackWebDataset:
        taken = sorted(FIXED & self._sources().keys())
        if taken:
            raise ValueError(f"carry: the index has a column {taken[0]!r} already; carry it under another name")
        return self

    def _sources(self) -> dict[str, str]:
        return carry_mapping(self.carry)

    def reads(self) -> tuple[str, ...]:
        columns = [source for source in self._sources().values() if not source.startswith(META)]
        return tuple(dict.fromkeys(([self.text] if self.text else []) + columns))

    def text_columns(self) -> tuple[str, ...]:
        return (self.text,) if self.text else ("text", "caption")

    def write(self, row: Mapping[str, Any], data: bytes, add: Callable[[str, bytes], int]) -> Packed:
        stem = f"{row['key']}-{row['item']}-{row['copy']}"
        data, ext, picture = self._picture(row, data)
        offset = add(f"{stem}.{ext}", data)
        text = self._text(row)
        text_offset, text_bytes = -1, b""
        if text is not None:
            text_bytes = text.encode()
            text_offset = add(f"{stem}.txt", text_bytes)
        carried = carried_values(row, self._sources())
        add(f"{stem}.json", describe(row, picture, carried))
        size = picture["width"], picture["height"]
        return Packed(ext, offset, len(data), text_offset, len(text_bytes), *size, carried)

    def _text(self, row: Mapping[str, Any]) -> str | None:
        value = next((row[name] for name in self.text_columns() if row.get(name) is not None), None)
        return value if value is None else str(value)

    def _picture(self, row: Mapping[str, Any], data: bytes) -> tuple[bytes, str, dict[str, Any]]:
        """Bytes, extension and description of the picture that goes into the tar. Raises Undecodable if it is to be
        resized and cannot be."""
        if self.image == "resized":
            data, width, height = resize(data, self.max_side, self.format, self.quality)
            sha256 = hashlib.sha256(data).hexdigest()
            facts = {"width": width, "height": height, "format": self.format, "sha256": sha256}
            return data, EXTENSIONS[self.format], facts
        format = row.get("format") or sniff(data)
        width, height = row.get("width"), row.get("height")
        if width is None or height is None:
            width, height = _size(data)
        sha256 = row.get("sha256") or hashlib.sha256(data).hexdigest()
        facts = {"width": width, "height": height, "format": format, "sha256": sha256}
        return data, _extension(str(row.get("ext") or ""), format), facts

    def finish(self, tars: list[tuple[str, int]]) -> dict[str, bytes]:
        """`sizes.json` (tar -> samples) and `index.json`, which wids reads; its URLs are relative to itself."""
        shards = [{"url": tar, "nsamples": samples} for tar, samples in tars]
        index = {"__kind__": WIDS_KIND, "wids_version": 1, "name": self.name, "shardlist": shards}
        return {"sizes.json": _json(dict(tars)), "index.json": _json(index)}


def _extension(given: str, format: str | None) -> str:
    """The source's extension if it is one of the format's, else the format's own: readers go by it."""
    usual = _USUAL.get(format, (format,)) if format else ()
    ext = given.lower()
    if _EXTENSION.fullmatch(ext) and (not usual or ext in usual):
        return ext
    return usual[0] if usual else "bin"


def _size(data: bytes) -> tuple[int | None, int | None]:
    try:
        found = probe(data)
    except Undecodable:
        return None, None
    return found.width, found.height


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
