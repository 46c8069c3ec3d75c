"""`text.clean`: captions as they come from the web -> text that says what is in the image."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, field_validator

from curate.core.contracts import Batch, Map
from curate.text.clean.rules import DEFAULT, NAMES, UNSETTLED, Rule, chosen, clean, hint, steps

SCHEMA = pa.schema([pa.field("text", pa.string(), metadata={"of": "caption, cleaned"})])


class Clean(Map):
    """Clean each caption by a table of rules (curate/text/clean/rules.py); a counter per rule says how many it changed.

    `text` is null where there is no caption and where nothing of it is left: `text.filter` rejects such rows, and what
    is too short. Unusable: caption_unsettled (nested so deeply that cleaning has no end).
    """

    op: ClassVar[str] = "text.clean"
    version: ClassVar[int] = 3
    batch_rows: ClassVar[int] = 4096

    rules: tuple[str, ...] = Field(
        DEFAULT, description=f"Rules to apply, always in the table's order; by default these: {', '.join(DEFAULT)}."
    )
    without: tuple[str, ...] = Field((), description="Rules among these to leave out.")
    also: tuple[str, ...] = Field(
        (), description=f"Rules to apply besides, such as {', '.join(sorted(set(NAMES) - set(DEFAULT)))}."
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

    def schema(self) -> pa.Schema:
        return SCHEMA

    def steps(self, caption: str) -> list[tuple[str, str, str]]:
        """(rule, before, after) of everything that cleaning this caption would change, in order."""
        return steps(caption, self.active())

    def process(self, batch: Batch) -> dict[str, Any]:
        captions = batch.table.column("caption").combine_chunks().cast(pa.string())
        texts, unsettled = cleaned(captions, self.active(), batch.counters)
        batch.unusable(unsettled.tolist(), "caption_unsettled")
        return {"text": pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)}


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
