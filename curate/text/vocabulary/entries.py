"""Entries of several sources made one vocabulary: no two the same to the matcher, and a count of what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from curate.text.phrases import normalised_all
from curate.text.vocabulary.trie import LONGEST_WORDS

SCHEMA = pa.schema(
    [
        pa.field(
            "entry", pa.string(), metadata={"of": "what texts are matched with: words without case, between spaces"}
        ),
        pa.field("source", pa.string(), metadata={"of": "given, wordnet, unigram or bigram: the first that has it"}),
        pa.field("count", pa.int64(), metadata={"unit": "texts of the pool that say it; null where not counted"}),
    ]
)


class Vocabulary:
    """Grows source by source; an entry keeps the first."""

    def __init__(self) -> None:
        self.source: dict[str, str] = {}
        self._told: dict[str, Counter[str]] = {}

    def add(self, source: str, entries: Sequence[str]) -> None:
        """Count what is read, empty (no word in it), duplicate (the same string again), merged (another string, the
        same to the matcher), in_earlier_source, too_long (more words than the matcher's entries may have); add the
        rest."""
        told: Counter[str] = Counter(read=len(entries))
        distinct = list(dict.fromkeys(entries))
        told["duplicate"] = len(entries) - len(distinct)
        for entry in normalised_all(distinct):
            if not any(map(str.isalnum, entry)):
                told["empty"] += 1
            elif entry.count(" ") >= LONGEST_WORDS:
                told["too_long"] += 1
            elif entry in self.source:
                told["merged" if self.source[entry] == source else "in_earlier_source"] += 1
            else:
                self.source[entry] = source
                told["entries"] += 1
        if entries:
            self._told[source] = told

    def table(self, counts: pl.DataFrame) -> pa.Table:
        """Sorted by entry, with the pool's counts (term, count)."""
        frame = pl.DataFrame({"entry": list(self.source), "source": list(self.source.values())})
        joined = frame.join(counts.rename({"term": "entry"}), on="entry", how="left").sort("entry")
        return joined.select(SCHEMA.names).to_arrow().cast(SCHEMA)

    def summary(self) -> dict[str, Any]:
        whats = ("read", "entries", "empty", "duplicate", "merged", "in_earlier_source", "too_long")
        by_source = {source: {what: told[what] for what in whats} for source, told in self._told.items()}
        return {"entries": len(self.source), "sources": by_source}
