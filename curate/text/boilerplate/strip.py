"""`text.strip`: removes boilerplate from the beginning and end of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from curate.core.contracts import Artifact, Batch, Map
from curate.core.errors import CurateError
from curate.text.boilerplate.find import KIND
from curate.text.boilerplate.kernels import Stripper, Words, words_of
from curate.text.columns import plain_texts


class Strip(Map):
    """Remove the phrases of `text.boilerplate` and of `also` from both ends of each text, repeatedly.

    Matching ignores case and the characters between words; a number matches any number. The counter `stripped` has the
    number of changed texts. The output is null for a null text, and if nothing remains; `text.filter` rejects such
    rows.
    """

    op: ClassVar[str] = "text.strip"
    ports: ClassVar[dict[str, str]] = {"boilerplate": KIND}
    optional_ports: ClassVar[tuple[str, ...]] = ("boilerplate",)
    batch_rows: ClassVar[int] = 1024

    column: str = Field("text", description="Column of texts, one per row.")
    output: str = Field("stripped", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of stripped texts.")
    also: tuple[str, ...] = Field((), description="More phrases to remove from either end.")
    keep: tuple[str, ...] = Field((), description="Phrases of the table to keep.")

    _stripper: Stripper = PrivateAttr()

    @field_validator("also", "keep")
    @classmethod
    def _phrases(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        for phrase in phrases:
            if not _words(phrase):
                raise ValueError(f"{phrase!r} has no word; write phrases such as 'stock photo', # for any number")
        return phrases

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if there is neither a table nor a phrase to remove."""
        if "boilerplate" not in artifacts and not self.also:
            raise CurateError(
                f"{self.op}: no phrases to remove; set `boilerplate` to a stage, or list phrases in `also`"
            )
        places: dict[str, set[Words]] = {"prefix": set(), "suffix": set(), "whole": set()}
        if "boilerplate" in artifacts:
            table = artifacts["boilerplate"]["phrases"]
            for phrase, place in zip(
                table.column("phrase").to_pylist(), table.column("place").to_pylist(), strict=True
            ):
                places[place].add(tuple(phrase.split()))
        keep, also = {_words(phrase) for phrase in self.keep}, {_words(phrase) for phrase in self.also}
        self._stripper = Stripper(
            (places["prefix"] - keep) | also, (places["suffix"] - keep) | also, places["whole"] - keep
        )

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(self.output, pa.string(), metadata={"of": f"{self.column}, without boilerplate"})])

    def process(self, batch: Batch) -> dict[str, Any]:
        texts = plain_texts(self.op, self.column, batch.table.column(self.column)).to_pylist()
        left = [self._stripper.strip(text) if text else text for text in texts]
        batch.counters["stripped"] += sum(a != b for a, b in zip(texts, left, strict=True))
        return {self.output: [rest or None for rest in left]}


def _words(phrase: str) -> Words:
    """Words of a phrase as people write it or as in the table, with # for any number."""
    return words_of(phrase.replace("#", " 0 "))
