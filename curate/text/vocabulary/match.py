"""`text.match`: the entries of a vocabulary in each text, for MetaCLIP's balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.items import places_of, texts_of
from curate.text.phrases import Phrases


class Match(Map):
    """Find each entry of a vocabulary in a text on word boundaries, including entries within others, once each.

    `ice cream` in a text matches the entries ice, cream and ice cream (MetaCLIP, Xu et al. 2023, section 3.2; for words
    see curate/text/phrases.py). Counters: texts matched and unmatched, matches.
    """

    op: ClassVar[str] = "text.match"
    ports: ClassVar[dict[str, str]] = {"vocabulary": "vocabulary"}
    batch_rows: ClassVar[int] = 8192

    column: str = Field("text", description="Column of texts, or of lists of texts, to search.")
    output: str = Field("entries", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of entries.")

    _phrases: Phrases = PrivateAttr()
    _entries: pa.Array = PrivateAttr()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        self._entries = artifacts["vocabulary"]["entries"].column("entry").combine_chunks()
        self._phrases = Phrases(self._entries.to_pylist(), longest=False)

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        metadata = places_of(self.column) | {"of": f"entries of the vocabulary in {self.column}, sorted"}
        return pa.schema([pa.field(self.output, pa.list_(pa.list_(pa.string())), metadata=metadata)])

    def process(self, batch: Batch) -> dict[str, Any]:
        items = texts_of(self.op, batch.table.column(self.column), self.column)
        text, entry = self._matches(items.values)
        found = np.bincount(text, minlength=len(items))
        offsets = pa.array(np.concatenate([[0], np.cumsum(found)]), pa.int32())
        lists = pa.ListArray.from_arrays(offsets, self._entries.take(pa.array(entry)))
        batch.counters["texts_matched"] += int((found > 0).sum())
        batch.counters["texts_unmatched"] += int((found == 0).sum())
        batch.counters["matches"] += len(entry)
        return {self.output: items.nest(lists, pa.list_(pa.string()))}

    def _matches(self, texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Index of the text and of the entry (m,) of every match: each pair once, in order of texts, then entries."""
        text, entry = self._phrases.find(texts)
        size = max(1, len(self._entries))
        pair = np.sort(text.astype(np.int64) * size + entry)  # far faster than np.unique, which hashes
        return np.divmod(pair[np.diff(pair, prepend=-1) > 0], size)
