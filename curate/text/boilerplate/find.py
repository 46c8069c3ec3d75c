"""`text.boilerplate`: phrases with which a pool's texts begin or end and that say nothing of the image, learned.

`image for …`, `… stock photo`, `… royalty free`: they differ from pool to pool, so that no list of them is built in.
What was found is a table that people can read; `text.strip` removes it.
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
from curate.text.boilerplate.kernels import Limits, Phrase, Words, boilerplate, words_of
from curate.text.language.language import plain_texts

KIND = "boilerplate"
EXAMPLE_CHARACTERS = 120
_EDGE_WORDS = 32
"""Words looked at from either end of a text."""


class Boilerplate(Reduce):
    """Phrases of several words at the beginning or end of many texts that are boilerplate rather than content.

    Three things tell: the phrase is frequent there; the word beside it is hardly ever the same (`image for …`, but not
    `New York Times`); and it is rarely met elsewhere (`black and white` is). They cannot tell a series from
    boilerplate (`naval semaphore flag …`): read the table, and name what should stay in `text.strip`'s `keep`.

    Learned from the `sample` rows of the smallest hash(seed, key): a share s is known to +- sqrt(s / sample). The
    artifact: `phrases`, the most frequent first: `phrase` (small letters, numbers as #), `place` (prefix, suffix,
    whole), `count` and `share` of the sample's texts, `neighbours` (2 ** entropy of the word beside it), `edge` (share
    of the texts with the phrase that begin or end with it), `example`; and `summary`: `texts` looked at.
    """

    op: ClassVar[str] = "text.boilerplate"
    kind: ClassVar[str] = KIND

    column: str = Field("text", description="Column of the texts: one text a row.")
    shortest: int = Field(2, ge=1, le=8, description="Fewest words of a phrase, numbers aside.")
    longest: int = Field(8, ge=1, le=16, description="Most words of a phrase.")
    least_count: int = Field(5, ge=2, description="Texts of the sample that a phrase must begin or end.")
    least_share: float = Field(0.001, ge=0, le=1, description="Share of the sample's texts that it must begin or end.")
    least_neighbours: float = Field(
        8,
        ge=1,
        description="Different words that it must have beside it: 2 ** entropy, so that rare ones hardly count.",
    )
    least_edge: float = Field(
        0.75, ge=0, le=1, description="Of the texts that hold it, the share that must begin or end with it."
    )
    whole: bool = Field(False, description="Whether to list whole texts of up to `longest` words that are as frequent.")
    sample: int = Field(200_000, ge=1, description="Texts looked at, at most.")
    seed: int = Field(0, ge=0, description="Seed of which texts those are.")

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def counting(self) -> dict[str, Any]:
        return {"column": self.column, "sample": self.sample, "seed": self.seed}

    def partial(self, table: Table) -> Table:
        texts = plain_texts(self.op, self.column, table.column(self.column))
        rank = ranks(self.seed, table.column("key").to_pylist())
        there = np.flatnonzero(pc.fill_null(pc.not_equal(texts, ""), False).to_numpy(zero_copy_only=False))
        chosen = there[np.argsort(rank[there])[: self.sample]]
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
        limits = Limits(self.shortest, self.longest, least, self.least_neighbours, self.least_edge)
        phrases = boilerplate(texts, limits, whole=self.whole)
        examples = _examples(phrases, texts, state.column("example").to_pylist(), self.longest)
        return {
            "phrases": _table(phrases, examples, len(texts)),
            "summary": {"texts": len(texts), "least_count": least, "phrases": len(phrases)},
        }


def _edges(words: Words) -> Words:
    return words if len(words) <= 2 * _EDGE_WORDS else words[:_EDGE_WORDS] + words[-_EDGE_WORDS:]


def _examples(phrases: Sequence[Phrase], texts: list[Words], shown: list[str], longest: int) -> list[str]:
    """The first text that has each phrase at its place."""
    found: dict[tuple[str, Words], str] = {}
    wanted = {(phrase.place, phrase.words) for phrase in phrases}
    for words, example in zip(texts, shown, strict=True):
        for length in range(1, min(longest, len(words)) + 1):
            alone = length == len(words)
            for told in (("whole", words),) if alone else (("prefix", words[:length]), ("suffix", words[-length:])):
                if told in wanted:
                    found.setdefault(told, example)
    return [found[phrase.place, phrase.words] for phrase in phrases]


def _table(phrases: Sequence[Phrase], examples: list[str], texts: int) -> Table:
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "phrase": ([" ".join(phrase.words) for phrase in phrases], pa.string()),
        "place": ([phrase.place for phrase in phrases], pa.string()),
        "count": ([phrase.count for phrase in phrases], pa.int64()),
        "share": ([phrase.count / texts for phrase in phrases], pa.float64()),
        "neighbours": ([phrase.neighbours for phrase in phrases], pa.float64()),
        "edge": ([phrase.edge for phrase in phrases], pa.float64()),
        "example": (examples, pa.string()),
    }
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
