"""`text.clean`: captions as they come from the web -> text that says what is in the picture."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from curate.core.stage import Batch, Map
from curate.text.rules import NAMES, clean

SCHEMA = pa.schema([pa.field("text", pa.string(), metadata={"of": "caption, cleaned"})])


class Clean(Map):
    """Clean each caption by a table of rules (curate/text/rules.py); a counter per rule says how many it changed.

    Rejects: missing_caption, empty_caption (nothing is left), caption_too_short, caption_too_long.
    """

    op: ClassVar[str] = "text.clean"
    batch_rows: ClassVar[int] = 1024

    rules: tuple[str, ...] = Field(
        NAMES, description=f"Rules to apply, always in the table's order; all by default: {', '.join(NAMES)}."
    )
    min_chars: int = Field(1, ge=1, description="Characters below which cleaned text is caption_too_short.")
    max_chars: int | None = Field(
        None, ge=1, description="Characters above which cleaned text is caption_too_long; no limit when null."
    )
    missing: Literal["keep", "reject"] = Field(
        "reject", description="What happens to samples without a caption, or with none left; kept ones have null text."
    )

    @field_validator("rules")
    @classmethod
    def _known_rules(cls, rules: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in rules if name not in NAMES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no rule; choose from {', '.join(NAMES)}")
        return tuple(name for name in NAMES if name in rules)

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def writes(self) -> tuple[str, ...]:
        return ("text",)

    def schema(self) -> pa.Schema:
        return SCHEMA

    def process(self, batch: Batch) -> dict[str, Any]:
        texts: list[str | None] = []
        for caption in batch.column("caption"):
            text, hits = (None, set()) if caption is None else clean(caption, self.rules)
            batch.counters.update(hits)
            texts.append(text)
        return {"text": [text or None for text in texts], "reject": [self._reason(text) for text in texts]}

    def _reason(self, text: str | None) -> str | None:
        if not text:
            return None if self.missing == "keep" else "missing_caption" if text is None else "empty_caption"
        if len(text) < self.min_chars:
            return "caption_too_short"
        if self.max_chars is not None and len(text) > self.max_chars:
            return "caption_too_long"
        return None
