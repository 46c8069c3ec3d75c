"""`text.concepts`: WordNet synsets that a text names, nouns (concepts) and verbs (actions) apart.

What the balance counts: synonyms are one synset (`sofa`, `couch`: `sofa.n.01`), inflected forms too, names of several
words are one concept (Xray, ViSE). Which synset a word stands for is said in curate/text/wordnet/synsets.py.
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
from curate.text.wordnet import database as wordnet

if TYPE_CHECKING:
    from curate.text.wordnet.synsets import Synsets

NOUNS = tuple(name.removeprefix("noun.") for name in wordnet.LEXNAMES if name.startswith("noun."))
VERBS = tuple(name.removeprefix("verb.") for name in wordnet.LEXNAMES if name.startswith("verb."))
_SEEN = "Tops animal artifact body event food group location object person phenomenon plant shape substance"
VISUAL_NOUNS = tuple(_SEEN.split())
"""What can be seen; `Tops` has the words that the others begin with (animal, person, plant, food)."""
_SEEN_DONE = "body competition consumption contact creation motion perception weather"
VISUAL_VERBS = tuple(_SEEN_DONE.split())
LISTS = pa.list_(pa.string())


class Concepts(Map):
    """Find the synsets of each text: `concepts` (`ice_cream.n.01`) and `actions` (`run.v.01`), sorted, each once.

    Counters: matched and unmatched texts. Texts without any have empty lists.
    """

    op: ClassVar[str] = "text.concepts"
    version: ClassVar[int] = 2
    batch_rows: ClassVar[int] = 4096

    column: str = Field("text", description="Column of texts, or of a list of texts per row, to look at.")
    nouns: tuple[str, ...] = Field(
        VISUAL_NOUNS, description=f"WordNet's lexicographer files of nouns that count: {', '.join(NOUNS)}."
    )
    verbs: tuple[str, ...] = Field(VISUAL_VERBS, description=f"The same of verbs, for actions: {', '.join(VERBS)}.")
    sense: Literal["first", "first_visual"] = Field(
        "first",
        description="first: a word's most frequent sense or nothing; first_visual: its most frequent one that counts.",
    )
    ambiguous: Literal["thing", "frequent", "both", "noun", "verb"] = Field(
        "thing",
        description="What a word is that can be a noun and a verb: the noun if that is a thing (bear, watch), the more "
        "frequent in WordNet's texts, both, or always one.",
    )
    instances: bool = Field(False, description="Whether what has a name (Paris, Stephen Crane) counts as a concept.")

    _synsets: Synsets = PrivateAttr()
    _names: dict[str, pa.Array] = PrivateAttr()

    @field_validator("nouns")
    @classmethod
    def _known_nouns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, NOUNS)

    @field_validator("verbs")
    @classmethod
    def _known_verbs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, VERBS)

    def identity(self) -> dict[str, Any]:
        return {"wordnet": wordnet.identity()}

    def preflight(self) -> list[str]:
        return wordnet.problems()

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        from curate.text.wordnet.synsets import Rules, Synsets

        nouns, verbs = (f"noun.{name}" for name in self.nouns), (f"verb.{name}" for name in self.verbs)
        self._synsets = Synsets(Rules(tuple(nouns), tuple(verbs), self.sense, self.instances, self.ambiguous))
        listed = {"concepts": self._synsets.nouns, "actions": self._synsets.verbs}
        self._names = {column: pa.array(names, pa.string()) for column, names in listed.items()}

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        said = {"concepts": "noun synsets named in", "actions": "verb synsets named in"}
        return pa.schema(
            [
                pa.field(name, pa.list_(LISTS), metadata=places_of(self.column) | {"of": f"{what} {self.column}"})
                for name, what in said.items()
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
    """(text, id) pairs (m,), ids < 0 left out -> list<string> (count,): names of each text, by id, each once."""
    there = ids >= 0
    wide = np.int64(max(1, len(names)))
    pairs = np.unique(texts[there].astype(np.int64) * wide + ids[there])
    offsets = np.concatenate([[0], np.cumsum(np.bincount(pairs // wide, minlength=count))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, names.take(pa.array(pairs % wide)))


def _known(names: tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Sorted, each once, since their order says nothing."""
    for name in names:
        if name not in allowed:
            raise ValueError(f"{name!r} is no lexicographer file of WordNet; choose from {', '.join(allowed)}")
    return tuple(sorted(set(names)))
