"""`text.match`: which entries of a vocabulary each text has, as MetaCLIP's balance counts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.items import places_of, texts_of
from curate.text.vocabulary.trie import WordTrie


class Match(Map):
    """Every entry of a vocabulary that stands in a text on word boundaries, those within others too, without repeats.

    `ice cream` in a text matches the entries ice, cream and ice cream (MetaCLIP, Xu et al. 2023, section 3.2, with
    words as `curate/text/phrases.py` has them). Counters: texts matched and unmatched, matches.
    """

    op: ClassVar[str] = "text.match"
    ports: ClassVar[dict[str, str]] = {"vocabulary": "vocabulary"}
    batch_rows: ClassVar[int] = 8192

    column: str = Field("text", description="Column of texts, or of lists of texts, to look in.")
    output: str = Field("entries", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of entries.")

    _trie: WordTrie = PrivateAttr()
    _entries: pa.Array = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        self._entries = artifacts["vocabulary"]["entries"].column("entry").combine_chunks()
        self._trie = WordTrie(self._entries.to_pylist())

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        metadata = places_of(self.column) | {"of": f"entries of the vocabulary in {self.column}, sorted"}
        return pa.schema([pa.field(self.output, pa.list_(pa.list_(pa.string())), metadata=metadata)])

    def process(self, batch: Batch) -> dict[str, Any]:
        items = texts_of(self.op, batch.table.column(self.column), self.column)
        text, entry = self._trie.find(items.values.to_pylist())  # sorted by text, then entry; entries are sorted
        found = np.bincount(text, minlength=len(items))
        offsets = pa.array(np.concatenate([[0], np.cumsum(found)]), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, self._entries.take(pa.array(entry)))
        batch.counters["texts_matched"] += int((found > 0).sum())
        batch.counters["texts_unmatched"] += int((found == 0).sum())
        batch.counters["matches"] += len(entry)
        return {self.output: items.nest(lists, pa.list_(pa.string()))}
