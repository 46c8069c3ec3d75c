"""A row as the page shows it: its image, its original text, and each synthetic text with outcome and checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from curate.caption.report.columns import CHOSEN, CHOSEN_FROM, TextColumn
from curate.html.numbers import number
from curate.html.thumbnails import MISSING, Thumbnail

TEXT_CHARACTERS = 2000
VALUE_CHARACTERS = 200
ALT_CHARACTERS = 120


@dataclass(frozen=True)
class ShownText:
    name: str
    text: str | None
    provenance: str
    """Prompt and model, or "" for a text that was not asked for."""
    problems: list[str]
    """The outcome unless it is `ok`, the reason of its check, the error of its stage."""
    values: list[tuple[str, str]]
    """Columns about it: (short name, value)."""
    chosen: bool = False
    fields: list[tuple[str, str]] = field(default_factory=list)
    """The parts of a structured answer."""


@dataclass(frozen=True)
class Card:
    key: str
    thumb: Thumbnail
    alt: str
    texts: list[ShownText]


@dataclass(frozen=True)
class Cards:
    """Turns rows into cards."""

    thumbs: Mapping[str, Thumbnail]
    texts: Sequence[TextColumn]

    def card(self, row: Mapping[str, Any], only: str | None = None) -> Card:
        """`only`: the synthetic text to show beside the original."""
        original = self.texts[0]
        if only is not None:
            shown = [text for text in self.texts if text is original or text.name == only]
        else:
            shown = [text for text in self.texts if text is original or self._says_more(text, row)]
        alt = clipped(str(row.get(original.name) or row.get("source_id") or f"image {row['key']}"), ALT_CHARACTERS)
        thumb = self.thumbs.get(row["key"], MISSING)
        return Card(row["key"], thumb, alt, [self._shown(text, row) for text in shown])

    def _says_more(self, text: TextColumn, row: Mapping[str, Any]) -> bool:
        """Whether the row was asked for this text, and no other text shown is the same one."""
        if text.name == CHOSEN and row.get(CHOSEN_FROM) in [other.name for other in self.texts]:
            return False
        known = row.get(text.name) is not None or row.get(f"{text.name}_outcome") is not None
        return known or (text.stage is not None and row.get("rejected_by") == text.stage)

    def _shown(self, text: TextColumn, row: Mapping[str, Any]) -> ShownText:
        value = row.get(text.name)
        parts = {part: row.get(f"{text.name}_{part}") for part in text.answered}
        problems = [parts["outcome"]] if parts.get("outcome") not in (None, "ok") else []
        if text.stage and row.get("rejected_by") == text.stage:
            problems.append(row.get("reject_reason"))
        if text.check and isinstance(row.get(text.check), str):
            problems.append(row[text.check])
        about = {name.removeprefix(f"{text.name}_"): row.get(name) for name in text.about if name != text.check}
        about |= {"prompt tokens": parts.get("prompt_tokens"), "answer tokens": parts.get("completion_tokens")}
        return ShownText(
            name=text.name,
            text=None if value is None else clipped(str(value), TEXT_CHARACTERS, lines=True),
            provenance=", ".join(str(parts[part]) for part in ("prompt", "model") if parts.get(part)),
            problems=[human(str(problem)) for problem in problems if problem],
            values=[(human(name), shown(found)) for name, found in about.items() if found is not None],
            chosen=row.get(CHOSEN_FROM) == text.name and text.name != CHOSEN,
            fields=_fields(value) if text.structured else [],
        )


def _fields(value: str | None) -> list[tuple[str, str]]:
    """The properties of a JSON object."""
    try:
        found = json.loads(value) if value else None
    except ValueError:
        return []
    return [(human(name), shown(part)) for name, part in found.items()] if isinstance(found, dict) else []


def human(name: str) -> str:
    """A column's or a reason's name as words."""
    return name.replace("_", " ")


def shown(value: Any) -> str:
    """A value as text; a list by its elements."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value, 3)
    if isinstance(value, list):
        return clipped(", ".join(shown(part) for part in value), VALUE_CHARACTERS)
    return clipped(str(value), VALUE_CHARACTERS)


def clipped(text: str, size: int, lines: bool = False) -> str:
    """`text` without control characters (but line breaks, if `lines`), truncated to `size` characters."""
    kept = "".join(char if char.isprintable() or (lines and char == "\n") else " " for char in text)
    kept = kept.strip() if lines else " ".join(kept.split())
    return kept if len(kept) <= size else kept[: size - 1].rstrip() + "…"
