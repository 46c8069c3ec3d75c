"""`text.clean`: captions as they come from the web -> text that says what is in the picture."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, field_validator

from curate.core.contracts import Batch, Map
from curate.text.rules import DEFAULT, NAMES, UNSETTLED, Rule, chosen, clean, hint, steps

SCHEMA = pa.schema([pa.field("text", pa.string(), metadata={"of": "caption, cleaned"})])


class Clean(Map):
    """Clean each caption by a table of rules (curate/text/rules.py); a counter per rule says how many it changed.

    Rejects: missing_caption, empty_caption (nothing is left), caption_too_short, caption_too_long,
    caption_too_few_words, caption_unsettled (nested so deeply that cleaning has no end).
    """

    op: ClassVar[str] = "text.clean"
    version: ClassVar[int] = 2
    batch_rows: ClassVar[int] = 4096

    rules: tuple[str, ...] = Field(
        DEFAULT, description=f"Rules to apply, always in the table's order; by default these: {', '.join(DEFAULT)}."
    )
    without: tuple[str, ...] = Field((), description="Rules among these to leave out.")
    also: tuple[str, ...] = Field(
        (), description=f"Rules to apply besides, such as {', '.join(sorted(set(NAMES) - set(DEFAULT)))}."
    )
    min_chars: int = Field(1, ge=1, description="Characters below which cleaned text is caption_too_short.")
    max_chars: int | None = Field(
        None, ge=1, description="Characters above which cleaned text is caption_too_long; no limit when null."
    )
    min_words: int = Field(0, ge=0, description="Words below which cleaned text is caption_too_few_words.")
    missing: Literal["keep", "reject"] = Field(
        "reject", description="What happens to samples without a caption, or with none left; kept ones have null text."
    )

    @field_validator("rules", "without", "also")
    @classmethod
    def _known_rules(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no rule; choose from {', '.join(NAMES)}")
        return tuple(name for name in NAMES if name in names)

    def active(self) -> tuple[Rule, ...]:
        """The rules that the settings amount to, in order."""
        return chosen({*self.rules, *self.also} - set(self.without))

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def writes(self) -> tuple[str, ...]:
        return ("text",)

    def schema(self) -> pa.Schema:
        return SCHEMA

    def steps(self, caption: str) -> list[tuple[str, str, str]]:
        """(rule, before, after) of everything that cleaning this caption would change, in order."""
        return steps(caption, self.active())

    def process(self, batch: Batch) -> dict[str, Any]:
        captions = batch.table.column("caption").combine_chunks().cast(pa.string())
        texts, unsettled = cleaned(captions, self.active(), batch.counters)
        lengths = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
        reasons = np.full(len(texts), None, dtype=object)
        if self.min_words:
            words = np.array([len(text.split()) if text else 0 for text in texts.to_pylist()], dtype=np.int64)
            reasons[words < self.min_words] = "caption_too_few_words"
        if self.max_chars is not None:
            reasons[lengths > self.max_chars] = "caption_too_long"
        reasons[lengths < self.min_chars] = "caption_too_short"
        missing = np.asarray(pc.is_null(captions))
        reasons[lengths == 0] = "empty_caption" if self.missing == "reject" else None
        reasons[missing] = "missing_caption" if self.missing == "reject" else None
        reasons[unsettled] = "caption_unsettled"
        empty = pa.array(lengths == 0)
        return {"text": pc.if_else(empty, pa.scalar(None, pa.string()), texts), "reject": reasons.tolist()}


def cleaned(captions: pa.Array, rules: tuple[Rule, ...], counters: Counter[str]) -> tuple[pa.Array, NDArray[np.int64]]:
    """Captions (n,) -> texts (n,), and the indices of those that were given up. Only captions on which the rules' hint
    finds anything become Python strings."""
    if not rules or not len(captions):
        return captions, np.empty(0, dtype=np.int64)
    suspicious = pc.fill_null(pc.match_substring_regex(captions, hint(rules)), False)
    texts: list[str] = []
    given_up: list[bool] = []
    for caption in captions.filter(suspicious).to_pylist():
        text, hits = clean(caption, rules)
        counters.update(hits)
        texts.append(text)
        given_up.append(UNSETTLED in hits)
    places = np.flatnonzero(np.asarray(suspicious))
    return pc.replace_with_mask(captions, suspicious, pa.array(texts, pa.string())), places[given_up]
