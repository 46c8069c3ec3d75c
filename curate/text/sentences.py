"""`text.sentences`: splits a text into sentences, each a pair with the same image (Xray's ViSE)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Batch, Map
from curate.core.items import places_of
from curate.kernels.sentences import POSSIBLE, split_sentences
from curate.text.columns import plain_texts

SENTENCES = pa.list_(pa.string())


class Sentences(Map):
    """Split each text into sentences, by fixed rules and lists of abbreviations.

    Counters: sentences, and those that the settings drop, short_sentence and surplus_sentence. The list is null if the
    text is null or has no sentence; `text.filter` with `items` rejects such rows.
    """

    op: ClassVar[str] = "text.sentences"
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of texts to split.")
    min_words: int = Field(1, ge=1, description="Words below which a sentence is dropped.")
    min_chars: int = Field(1, ge=1, description="Characters below which a sentence is dropped.")
    most: int | None = Field(
        None, ge=1, description="Most sentences of a text; the first ones are kept. Null for no limit."
    )

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("sentences", SENTENCES, metadata=places_of("sentences") | {"of": self.column})])

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = plain_texts(self.op, self.column, batch.table.column(self.column))
        flat, lengths = split_column(texts.cast(pa.string()))
        row = np.repeat(np.arange(len(lengths)), lengths)
        chosen = np.asarray(self._long_enough(flat))
        batch.counters["short_sentence"] += int((~chosen).sum())
        if self.most is not None:
            rank = np.cumsum(chosen) - 1
            first = np.concatenate([[0], np.cumsum(np.bincount(row[chosen], minlength=len(lengths)))])[row]
            surplus = chosen & (rank - first >= self.most)
            batch.counters["surplus_sentence"] += int(surplus.sum())
            chosen &= ~surplus
        kept = np.bincount(row[chosen], minlength=len(lengths))
        batch.counters["sentences"] += int(kept.sum())
        offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
        return {"sentences": pa.ListArray.from_arrays(offsets, flat.filter(pa.array(chosen)), mask=pa.array(kept == 0))}

    def _long_enough(self, sentences: pa.Array) -> pa.Array:
        """Applies the limits; a sentence also needs a letter or digit."""
        passed = pc.match_substring_regex(sentences, "[0-9A-Za-z]")
        others = [any(map(str.isalnum, sentence)) for sentence in sentences.filter(pc.invert(passed)).to_pylist()]
        passed = pc.replace_with_mask(passed, pc.invert(passed), pa.array(others, pa.bool_()))
        if self.min_chars > 1:
            passed = pc.and_(passed, pc.greater_equal(pc.utf8_length(sentences), self.min_chars))
        if self.min_words > 1:
            words = pc.list_value_length(pc.utf8_split_whitespace(sentences))
            passed = pc.and_(passed, pc.greater_equal(words, self.min_words))
        return passed


def split_column(texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Texts (n,) -> sentences of all texts in order, and the number per text (n,). Only texts that may have several
    sentences become Python strings."""
    several = np.asarray(pc.fill_null(pc.match_substring_regex(texts, POSSIBLE), False))
    split = [split_sentences(text) for text in texts.filter(pa.array(several)).to_pylist()]
    lengths = np.asarray(pc.greater(pc.fill_null(pc.binary_length(texts), 0), 0)).astype(np.int64)
    lengths[several] = [len(found) for found in split]
    pieces = pa.array([sentence for found in split for sentence in found], pa.string())
    row = np.repeat(np.arange(len(texts)), lengths)
    source = row.copy()
    source[several[row]] = len(texts) + np.arange(len(pieces))
    return pa.concat_arrays([texts, pieces]).take(pa.array(source)), lengths
