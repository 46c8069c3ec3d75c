"""`text.sentences`: a text becomes its sentences, each a pair with the same image (Xray's ViSE)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Batch, Map
from curate.core.items import places_of
from curate.text.language.language import plain_texts
from curate.text.sentences_kernels import POSSIBLE, split_sentences

SENTENCES = pa.list_(pa.string())


class Sentences(Map):
    """Split each text into sentences by rules (curate/text/sentences_kernels.py). Counters: sentences made;
    short_sentence and surplus_sentence say how many the settings left out.

    The list is null where a text is missing or has no sentence: `text.filter` with `items` rejects such rows.
    """

    op: ClassVar[str] = "text.sentences"
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of texts to split.")
    min_words: int = Field(1, ge=1, description="Words below which a sentence is left out.")
    min_chars: int = Field(1, ge=1, description="Characters below which a sentence is left out.")
    most: int | None = Field(None, ge=1, description="Sentences of a text at most, the first ones; no limit when null.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("sentences", SENTENCES, metadata=places_of("sentences") | {"of": self.column})])

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = plain_texts(self.op, self.column, batch.table.column(self.column))
        flat, lengths = split_column(texts.cast(pa.string()))
        row = np.repeat(np.arange(len(lengths)), lengths)
        told = np.asarray(self._long_enough(flat))
        batch.counters["short_sentence"] += int((~told).sum())
        if self.most is not None:
            rank = np.cumsum(told) - 1
            first = np.concatenate([[0], np.cumsum(np.bincount(row[told], minlength=len(lengths)))])[row]
            surplus = told & (rank - first >= self.most)
            batch.counters["surplus_sentence"] += int(surplus.sum())
            told &= ~surplus
        kept = np.bincount(row[told], minlength=len(lengths))
        batch.counters["sentences"] += int(kept.sum())
        offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
        return {"sentences": pa.ListArray.from_arrays(offsets, flat.filter(pa.array(told)), mask=pa.array(kept == 0))}

    def _long_enough(self, sentences: pa.Array) -> pa.Array:
        """A sentence has a letter or digit, whatever the settings."""
        told = pc.match_substring_regex(sentences, "[0-9A-Za-z]")
        others = [any(map(str.isalnum, sentence)) for sentence in sentences.filter(pc.invert(told)).to_pylist()]
        told = pc.replace_with_mask(told, pc.invert(told), pa.array(others, pa.bool_()))
        if self.min_chars > 1:
            told = pc.and_(told, pc.greater_equal(pc.utf8_length(sentences), self.min_chars))
        if self.min_words > 1:
            words = pc.list_value_length(pc.utf8_split_whitespace(sentences))
            told = pc.and_(told, pc.greater_equal(words, self.min_words))
        return told


def split_column(texts: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Texts (n,) -> sentences one after the other, and how many each text has (n,). Only texts that may have several
    become Python strings."""
    several = np.asarray(pc.fill_null(pc.match_substring_regex(texts, POSSIBLE), False))
    split = [split_sentences(text) for text in texts.filter(pa.array(several)).to_pylist()]
    lengths = np.asarray(pc.greater(pc.fill_null(pc.binary_length(texts), 0), 0)).astype(np.int64)
    lengths[several] = [len(found) for found in split]
    made = pa.array([sentence for found in split for sentence in found], pa.string())
    row = np.repeat(np.arange(len(texts)), lengths)
    source = row.copy()
    source[several[row]] = len(texts) + np.arange(len(made))
    return pa.concat_arrays([texts, made]).take(pa.array(source)), lengths
