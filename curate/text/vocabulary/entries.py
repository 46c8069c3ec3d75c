"""Merges entries of several sources into one vocabulary, distinct after normalisation, and counts what it drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from curate.text.phrases import normalised_all

LONGEST_WORDS = 20
"""Words of an entry at most."""
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
    """Entries, added source by source; an entry keeps its first source."""

    def __init__(self) -> None:
        self.source: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}

    def add(self, source: str, entries: Sequence[str]) -> None:
        """Adds entries, except those counted as empty (without words), duplicate (the same string), merged (another
        string, equal after normalisation), in_earlier_source or too_long (more than LONGEST_WORDS words)."""
        counted: Counter[str] = Counter(read=len(entries))
        distinct = list(dict.fromkeys(entries))
        counted["duplicate"] = len(entries) - len(distinct)
        for entry in normalised_all(distinct):
            if not any(map(str.isalnum, entry)):
                counted["empty"] += 1
            elif entry.count(" ") >= LONGEST_WORDS:
                counted["too_long"] += 1
            elif entry in self.source:
                counted["merged" if self.source[entry] == source else "in_earlier_source"] += 1
            else:
                self.source[entry] = source
                counted["entries"] += 1
        if entries:
            self._counts[source] = counted

    def table(self, counts: pl.DataFrame) -> pa.Table:
        """Sorted by entry, with the pool's counts (term, count)."""
        frame = pl.DataFrame({"entry": list(self.source), "source": list(self.source.values())})
        joined = frame.join(counts.rename({"term": "entry"}), on="entry", how="left").sort("entry")
        return joined.select(SCHEMA.names).to_arrow().cast(SCHEMA)

    def summary(self) -> dict[str, Any]:
        whats = ("read", "entries", "empty", "duplicate", "merged", "in_earlier_source", "too_long")
        by_source = {source: {what: counted[what] for what in whats} for source, counted in self._counts.items()}
        return {"entries": len(self.source), "sources": by_source}
