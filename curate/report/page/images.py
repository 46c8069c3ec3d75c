"""A row of the pool as the report shows it: a thumbnail, an alternative text and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from curate.html.numbers import duration
from curate.html.thumbnails import MISSING, Thumbnail
from curate.kernels.meta import field_of

TEXT_CHARACTERS = 400
ALT_CHARACTERS = 120


@dataclass(frozen=True)
class ImageCard:
    key: str
    thumb: Thumbnail
    alt: str
    facts: list[tuple[str, str]]
    """(term, value), in reading order."""
    note: str = ""
    """A few words below the image."""
    selected: bool = False
    """Whether to mark it as selected."""
    keeper: ImageCard | None = None
    """The image that this one duplicates."""


@dataclass(frozen=True)
class Gallery:
    """Turns rows into cards. `caption` is the column of the cleaned captions."""

    thumbs: Mapping[str, Thumbnail]
    caption: str | None = None

    def card(
        self, row: Mapping[str, Any], note: str = "", selected: bool = False, keeper: ImageCard | None = None
    ) -> ImageCard:
        caption = row.get(self.caption or "caption") or row.get("caption")
        moves = row.get("media") == "video"
        alt = clip(
            str(caption or row.get("source_id") or f"{'video' if moves else 'image'} {row['key']}"), ALT_CHARACTERS
        )
        thumb = self.thumbs.get(row["key"], MISSING)
        if thumb is MISSING and (detail := detail_of(row)):
            thumb = replace(thumb, detail=detail)
        if moves:
            note = f"{note} {length(row)}".strip()
            thumb = replace(thumb, reason="not a video") if thumb.reason == "not an image" else thumb
        return ImageCard(row["key"], thumb, alt, self.facts(row), note, selected, keeper)

    def facts(self, row: Mapping[str, Any]) -> list[tuple[str, str]]:
        known = {"Caption": row.get("caption")}
        if self.caption and row.get(self.caption) != row.get("caption"):
            known["Cleaned caption"] = row.get(self.caption)
        known |= {"Source": row.get("source_id"), "URL": row.get("url")}
        known |= {"Size": _size(row), "Format": row.get("format")}
        if row.get("media") == "video":
            known |= {"Length": length(row), "Part": row.get("span")}
        if row.get("rejected_by"):
            known |= {"Rejected": f"{row.get('reject_reason')}, by {row['rejected_by']}", "Detail": detail_of(row)}
        if row.get("duplicate_of") != row["key"]:
            known["Duplicate of"] = row.get("duplicate_of")
        known |= {"Semantic duplicate of": row.get("semantic_of"), "Evaluation image": row.get("contamination")}
        if row.get("centroid_distance") is not None:
            known["Distance to the centroid"] = f"{row['centroid_distance']:.4f}"
        known |= {"Copies": row.get("copies"), "Key": row["key"]}
        return [(term, clip(str(value), TEXT_CHARACTERS)) for term, value in known.items() if value]


def detail_of(row: Mapping[str, Any]) -> str:
    """The importer's note about a row that it rejected: `detail` of its meta."""
    return clip(str(field_of(row.get("meta"), "detail") or ""), TEXT_CHARACTERS)


def length(row: Mapping[str, Any]) -> str:
    """Without a space where a line may break; "" if it is not known."""
    known = row.get("duration_ms")
    return duration(known / 1000).replace(" ", "\N{NO-BREAK SPACE}") if known else ""


def _size(row: Mapping[str, Any]) -> str:
    width, height = row.get("width"), row.get("height")
    return f"{width:,} × {height:,} pixels" if width and height else ""


def clip(text: str, size: int) -> str:
    """`text` on one line without control characters, truncated to `size` characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= size else line[: size - 1].rstrip() + "…"
