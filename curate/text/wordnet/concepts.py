"""`text.concepts`: finds WordNet synsets in texts, nouns (concepts) and verbs (actions) separately.

Synonyms share a synset (`sofa`, `couch`: `sofa.n.01`), and so do inflected forms; a name of several words is one
concept (Xray, ViSE). curate/text/wordnet/synsets.py defines the synset of a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, field_validator

from curate.core.contracts import Artifact, Batch, Map
from curate.core.items import places_of, texts_of
from curate.kernels.wordnet import database

if TYPE_CHECKING:
    from curate.text.wordnet.synsets import Synsets

NOUNS = tuple(name.removeprefix("noun.") for name in database.LEXNAMES if name.startswith("noun."))
VERBS = tuple(name.removeprefix("verb.") for name in database.LEXNAMES if name.startswith("verb."))
_VISUAL_NOUNS_TEXT = "animal artifact body event food group location object person phenomenon plant shape substance"
VISUAL_NOUNS = tuple(_VISUAL_NOUNS_TEXT.split())
"""Files of visible things."""
_VISUAL_VERBS_TEXT = "body competition consumption contact creation motion perception weather"
VISUAL_VERBS = tuple(_VISUAL_VERBS_TEXT.split())
LISTS = pa.list_(pa.string())


class Concepts(Map):
    """Find the synsets of each text: `concepts` (`ice_cream.n.01`) and `actions` (`run.v.01`), sorted and distinct.

    Counters: matched and unmatched texts. Texts without a synset have empty lists.
    """

    op: ClassVar[str] = "text.concepts"
    version: ClassVar[int] = 3
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of texts, or of lists of texts, to search.")
    nouns: tuple[str, ...] = Field(
        VISUAL_NOUNS, description=f"WordNet's lexicographer files whose nouns are concepts: {', '.join(NOUNS)}."
    )
    verbs: tuple[str, ...] = Field(
        VISUAL_VERBS, description=f"The same for verbs, which are actions: {', '.join(VERBS)}."
    )
    sense: Literal["first", "first_visual"] = Field(
        "first",
        description="first: a word's most frequent sense, if it counts; first_visual: the most frequent that counts.",
    )
    ambiguous: Literal["thing", "frequent", "both", "noun", "verb"] = Field(
        "thing",
        description="Reading of a word that is both noun and verb: the noun if it is a thing (bear, watch), the more "
        "frequent one in WordNet's texts, both, or always one.",
    )
    instances: bool = Field(False, description="Whether named entities (Paris, Stephen Crane) are concepts.")

    _synsets: Synsets = PrivateAttr()
    _names: dict[str, pa.Array] = PrivateAttr()

    @field_validator("nouns")
    @classmethod
    def _known_nouns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_files(names, NOUNS)

    @field_validator("verbs")
    @classmethod
    def _known_verbs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_files(names, VERBS)

    def identity(self) -> dict[str, Any]:
        return {"wordnet": database.identity()}

    def preflight(self) -> list[str]:
        return database.problems()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        from curate.text.wordnet.synsets import Rules, Synsets

        nouns, verbs = (f"noun.{name}" for name in self.nouns), (f"verb.{name}" for name in self.verbs)
        self._synsets = Synsets(Rules(tuple(nouns), tuple(verbs), self.sense, self.instances, self.ambiguous))
        listed = {"concepts": self._synsets.nouns, "actions": self._synsets.verbs}
        self._names = {column: pa.array(names, pa.string()) for column, names in listed.items()}

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        meanings = {"concepts": "noun synsets named in", "actions": "verb synsets named in"}
        return pa.schema(
            [
                pa.field(name, pa.list_(LISTS), metadata=places_of(self.column) | {"of": f"{what} {self.column}"})
                for name, what in meanings.items()
            ]
        )

    def process(self, batch: Batch) -> dict[str, Any]:
        items = texts_of(self.op, batch.table.column(self.column), self.column)
        texts, nouns, verbs = self._synsets.find(items.values)
        with_noun = np.bincount(texts[nouns >= 0], minlength=len(items)) > 0
        with_verb = np.bincount(texts[verbs >= 0], minlength=len(items)) > 0
        matched = int((with_noun | with_verb).sum())
        batch.counters.update(matched=matched, unmatched=len(items) - matched)
        ids = {"concepts": nouns, "actions": verbs}
        return {
            column: items.nest(lists_of(texts, ids[column], len(items), names), LISTS)
            for column, names in self._names.items()
        }


def lists_of(texts: NDArray[Any], ids: NDArray[Any], count: int, names: pa.Array) -> pa.ListArray:
    """(text, id) pairs (m,) -> list<string> (count,): the distinct names of each text, by id; ids < 0 are ignored."""
    found = ids >= 0
    wide = np.int64(max(1, len(names)))
    pairs = np.unique(texts[found].astype(np.int64) * wide + ids[found])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(pairs // wide, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, names.take(pa.array(pairs % wide)))


def known_files(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Lexicographer files, sorted and distinct, because the order does not matter. Raises ValueError for others."""
    for name in names:
        if name not in allowed:
            raise ValueError(f"{name!r} is not a lexicographer file of WordNet; choose from {', '.join(allowed)}")
    return tuple(sorted(set(names)))
