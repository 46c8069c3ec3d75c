"""`text.clean`: turns captions of the web into text that describes the image."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, field_validator

from curate.core.contracts import Added, Batch, Map
from curate.text.clean.rules import DEFAULT, NAMES, UNSETTLED, Rule, clean, hint, rules_named, steps
from curate.text.columns import plain_texts


class Clean(Map):
    """Clean each caption by a table of rules (curate/text/clean/rules.py).

    A counter per rule has the number of captions that the rule changed. The result is null for a null caption, and if
    nothing remains; `text.filter` rejects such rows and texts that are too short. Unusable: caption_unsettled (nested
    so deeply that cleaning does not settle).
    """

    op: ClassVar[str] = "text.clean"
    version: ClassVar[int] = 4
    batch_rows: ClassVar[int] = 4096

    rules: tuple[str, ...] = Field(
        DEFAULT, description=f"Rules to apply, always in the table's order (default: {', '.join(DEFAULT)})."
    )
    without: tuple[str, ...] = Field((), description="Rules to leave out.")
    also: tuple[str, ...] = Field(
        (), description=f"Rules to apply in addition, such as {', '.join(sorted(set(NAMES) - set(DEFAULT)))}."
    )

    column: Annotated[str, Added()] = Field("caption", description="Column of texts to clean.")
    output: Annotated[str, Added()] = Field(
        "text", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of cleaned texts."
    )

    @field_validator("rules", "without", "also")
    @classmethod
    def _known_rules(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise ValueError(f"unknown rule {unknown[0]!r}; choose from {', '.join(NAMES)}")
        return tuple(name for name in NAMES if name in names)

    def active(self) -> tuple[Rule, ...]:
        """The rules in effect, in order."""
        return rules_named({*self.rules, *self.also} - set(self.without))

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.output, pa.string(), metadata={"of": f"{self.column}, cleaned"})])

    def steps(self, caption: str) -> list[tuple[str, str, str]]:
        """(rule, before, after) of each change that cleaning makes to the caption, in order."""
        return steps(caption, self.active())

    def process(self, batch: Batch) -> dict[str, Any]:
        captions = plain_texts(self.op, self.column, batch.table.column(self.column)).cast(pa.string())
        texts, unsettled = clean_column(captions, self.active(), batch.counters)
        batch.unusable(unsettled.tolist(), "caption_unsettled")
        return {self.output: pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)}


def clean_column(
    captions: pa.Array, rules: tuple[Rule, ...], counters: Counter[str]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """Captions (n,) -> texts (n,), and the indices of captions that did not settle. Only captions in which the rules'
    hint finds something become Python strings."""
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
