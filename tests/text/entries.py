"""Texts with known entries, for tests of counts and balance without WordNet or a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from curate.core.contracts import Artifact, Batch, Map
from curate.core.hashing import make_key
from curate.core.items import places_of
from curate.text.counts import TextCounts

LISTS = pa.list_(pa.list_(pa.string()))


class Words(Map):
    """Words of three or more letters in each sentence of a text; null for a blank sentence."""

    op: ClassVar[str] = "tests.said"

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        said = pa.field("said", LISTS, metadata=places_of("said"))
        return pa.schema([said, pa.field("language_said", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        captions = batch.column("caption")
        said = [None if caption is None else [words(part) for part in caption.split("\n")] for caption in captions]
        return {"said": said, "language_said": [None if text is None else "<>"["<" in text] for text in captions]}


def words(text: str) -> list[str] | None:
    return sorted(set(re.findall(r"\w{3,}", text.lower()))) if text.strip() else None


def rows_of(texts: Sequence[Sequence[Sequence[str] | None] | None], languages: Sequence[str | None] = ()) -> pa.Table:
    """A table of rows with the given entries of their texts; keys by number."""
    keys = [make_key("entries", str(number)) for number in range(len(texts))]
    table = pa.table({"key": keys, "concepts": pa.array(texts, LISTS)})
    return table.append_column("language", pa.array(languages, pa.string())) if languages else table


def counts_of(stage: TextCounts, *tables: pa.Table) -> Artifact:
    return stage.finish(stage.merge(stage.partial(table) for table in tables))
