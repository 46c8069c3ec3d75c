"""`text.boilerplate`: learns phrases that many texts of a pool begin or end with and that do not describe the image.

They differ from pool to pool (`image for …`, `… stock photo`, `… royalty free`), so that no built-in list would do.
The result is a readable table, whose phrases `text.strip` removes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate.core.contracts import Artifact, Reduce, Table
from curate.core.hashing import ranks
from curate.text.boilerplate.kernels import Phrase, PhraseLimits, Words, boilerplate, words_of
from curate.text.columns import plain_texts

KIND = "boilerplate"
EXAMPLE_CHARACTERS = 120
_EDGE_WORDS = 32
"""Words read from each end of a text."""


class Boilerplate(Reduce):
    """Find phrases of several words at the beginning or end of many texts that are boilerplate rather than content.

    Such a phrase is frequent there; the word next to it varies (`image for …`, but not `New York Times`); and it is
    rare elsewhere (unlike `black and white`). A series (`naval semaphore flag …`) looks the same: read the table, and
    list phrases that should stay in `keep` of `text.strip`.

    The phrases come from the `sample` rows with the smallest hash(seed, key); a share s is exact to +- sqrt(s /
    sample). The artifact: `phrases`, the most frequent first: `phrase` (lower case, numbers as #), `place` (prefix,
    suffix, whole), `count` and `share` of the sample's texts, `neighbours` (2 ** entropy of the next word), `edge`
    (share of the texts with the phrase that begin or end with it), `example`; and `summary`: `texts` in the sample.
    """

    op: ClassVar[str] = "text.boilerplate"
    kind: ClassVar[str] = KIND

    column: str = Field("text", description="Column of texts, one per row.")
    shortest: int = Field(2, ge=1, le=8, description="Fewest words of a phrase, without numbers.")
    longest: int = Field(8, ge=1, le=16, description="Most words of a phrase.")
    least_count: int = Field(
        5, ge=2, description="Least number of texts of the sample that begin or end with a phrase."
    )
    least_share: float = Field(
        0.001, ge=0, le=1, description="Least share of the sample's texts that begin or end with it."
    )
    least_neighbours: float = Field(
        8,
        ge=1,
        description="Least number of different words next to it, as 2 ** entropy, so that rare words hardly count.",
    )
    least_edge: float = Field(
        0.75, ge=0, le=1, description="Least share of the texts with the phrase that begin or end with it."
    )
    whole: bool = Field(False, description="Whether to list frequent whole texts of up to `longest` words too.")
    sample: int = Field(200_000, ge=1, description="Most texts in the sample.")
    seed: int = Field(0, ge=0, description="Seed of the sample.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def counting(self) -> dict[str, Any]:
        return {"column": self.column, "sample": self.sample, "seed": self.seed}

    def partial(self, table: Table) -> Table:
        texts = plain_texts(self.op, self.column, table.column(self.column))
        rank = ranks(self.seed, table.column("key").to_pylist())
        with_text = np.flatnonzero(pc.fill_null(pc.not_equal(texts, ""), False).to_numpy(zero_copy_only=False))
        chosen = with_text[np.argsort(rank[with_text])[: self.sample]]
        found = texts.take(pa.array(chosen)).to_pylist()
        return pa.table(
            {
                "rank": pa.array(rank[chosen]),
                "words": pa.array([" ".join(_edges(words_of(text))) for text in found], pa.string()),
                "example": pa.array([text[:EXAMPLE_CHARACTERS] for text in found], pa.string()),
            }
        )

    def merge(self, states: Iterator[Table]) -> Table:
        held: Table | None = None
        for state in states:
            held = state if held is None else pa.concat_tables([held, state])
            if held.num_rows > 2 * self.sample:
                held = self._cut(held)
        assert held is not None
        return self._cut(held)

    def _cut(self, state: Table) -> Table:
        return state.sort_by("rank").slice(0, self.sample).combine_chunks()

    def finish(self, state: Table) -> Artifact:
        state = self._cut(state)
        texts = [tuple(words.split()) for words in state.column("words").to_pylist()]
        least = max(self.least_count, math.ceil(self.least_share * len(texts)))
        limits = PhraseLimits(self.shortest, self.longest, least, self.least_neighbours, self.least_edge)
        phrases = boilerplate(texts, limits, whole=self.whole)
        examples = _examples(phrases, texts, state.column("example").to_pylist(), self.longest)
        return {
            "phrases": _table(phrases, examples, len(texts)),
            "summary": {"texts": len(texts), "least_count": least, "phrases": len(phrases)},
        }


def _edges(words: Words) -> Words:
    return words if len(words) <= 2 * _EDGE_WORDS else words[:_EDGE_WORDS] + words[-_EDGE_WORDS:]


def _examples(phrases: Sequence[Phrase], texts: list[Words], shown: list[str], longest: int) -> list[str]:
    """The first text with each phrase in its place."""
    found: dict[tuple[str, Words], str] = {}
    wanted = {(phrase.place, phrase.words) for phrase in phrases}
    for words, example in zip(texts, shown, strict=True):
        for length in range(1, min(longest, len(words)) + 1):
            alone = length == len(words)
            for candidate in (
                (("whole", words),) if alone else (("prefix", words[:length]), ("suffix", words[-length:]))
            ):
                if candidate in wanted:
                    found.setdefault(candidate, example)
    return [found[phrase.place, phrase.words] for phrase in phrases]


def _table(phrases: Sequence[Phrase], examples: list[str], texts: int) -> Table:
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "phrase": ([" ".join(phrase.words) for phrase in phrases], pa.string()),
        "place": ([phrase.place for phrase in phrases], pa.string()),
        "count": ([phrase.texts for phrase in phrases], pa.int64()),
        "share": ([phrase.texts / texts for phrase in phrases], pa.float64()),
        "neighbours": ([phrase.neighbours for phrase in phrases], pa.float64()),
        "edge": ([phrase.edge for phrase in phrases], pa.float64()),
        "example": (examples, pa.string()),
    }
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
