"""`text.hashtag_map`: maps the hashtags of a pool to canonical tags; an artifact that people can edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
from pydantic import Field, field_validator

from curate.core.contracts import Artifact, Location, Reduce, Runtime, Table
from curate.core.errors import InputError
from curate.core.hashing import digest_bytes
from curate.kernels.wordnet import database
from curate.text.columns import plain_texts
from curate.text.hashtags.edits import read_bytes, read_edits, to_tsv
from curate.text.hashtags.rules import UNMAPPED, Row, Settings, map_tags
from curate.text.hashtags.segment import folded, split_at_case
from curate.text.hashtags.tags import without_tags
from curate.text.vocabulary.terms import SCHEMA, SHORT, TEXTS, UNIGRAM, count_terms, merge_terms
from curate.text.wordnet.concepts import NOUNS, VERBS, VISUAL_NOUNS, VISUAL_VERBS, known_files

KIND = "hashtag_map"
_TAG, _HINT = "tag", "hint"
MAP = pa.schema(
    [
        pa.field("tag", pa.string(), metadata={"of": "the tag without case and signs, a space for each separator"}),
        pa.field("words", pa.string(), metadata={"of": "the words it was cut into"}),
        pa.field("canonical", pa.string(), metadata={"of": "the tag it counts as; null for unmapped ones"}),
        pa.field("kind", pa.string(), metadata={"of": "noun, action or unmapped"}),
        pa.field("synset", pa.string(), metadata={"of": "the WordNet synset it was mapped by"}),
        pa.field("count", pa.int64(), metadata={"unit": "rows with the tag"}),
        pa.field("how", pa.string(), metadata={"of": "word, synset, head, spelling, edit; or why it is unmapped"}),
    ]
)


VISUAL_OBJECTS = tuple(name for name in VISUAL_NOUNS if name != "event")
"""Without events such as success."""


class HashtagMap(Reduce):
    """Map the pool's tags to canonical nouns and actions (Xray-Visual, URU), through WordNet's synsets.

    A tag is split into words at separators and changes of case, otherwise into the most likely words by their
    frequency in WordNet's texts and the pool's captions. Its reading as a whole decides: synonyms, plurals and
    spellings of one synset share one canonical tag, the synset's lemma that the pool uses most. A tag that is both noun
    and verb is the noun if that is a thing; activities (`swimming`) are actions. Nouns of visible things and visible
    actions count, others (`happiness`, `monday`) and names (`paris`) do not. Without `verbs` there are only nouns.

    The artifact: `map`, a row per tag, including unmapped tags, most frequent first: `tag`, `words`, `canonical`,
    `kind` (noun, action, unmapped), `synset`, `count` (rows), `how` (word: its own canonical tag; synset; head: by its
    last words; spelling: by a frequent tag one letter away; edit; adjective, not_visual, rare and unknown for unmapped
    tags); and a `summary` of totals. `curate text map` prints lines to change and to give to `edits`.
    """

    op: ClassVar[str] = "text.hashtag_map"
    version: ClassVar[int] = 3
    kind: ClassVar[str] = KIND

    words: str | None = Field(
        "caption", description="Column of texts whose words help to split tags; null uses WordNet alone."
    )
    heads: Literal["none", "separated", "all"] = Field(
        "separated",
        description="Whether a tag of several words that is not in WordNet counts as its last words (`old-house`: "
        "house). none: never; separated: if the words have separators; all: always (`minecraft` would be a craft).",
    )
    spelling: float | None = Field(
        20, gt=1, description="An unknown tag of 5 or more letters counts as a tag one letter away that is this many "
        "times as frequent; null corrects no spelling.",
    )  # fmt: skip
    nouns: tuple[str, ...] = Field(
        VISUAL_OBJECTS, description=f"WordNet's lexicographer files whose nouns count: {', '.join(NOUNS)}."
    )
    verbs: tuple[str, ...] = Field(
        VISUAL_VERBS, description=f"The same for verbs, which are actions; none for a set of nouns: {', '.join(VERBS)}."
    )
    instances: bool = Field(False, description="Whether named entities (Paris, Stephen Crane) count.")
    least_count: int = Field(
        1, ge=1, description="Uses below which a canonical tag is dropped and its tags are `rare`."
    )
    most: int | None = Field(
        None, ge=1, description="Size of the vocabulary: the canonical tags of most uses; null for all."
    )
    edits: Annotated[Path | None, Runtime(), Location()] = Field(
        None,
        description="File of canonical tags that override all rules: lines of tag, TAB, canonical, TAB, kind (none: "
        "unmapped), as printed by `curate text map`, or .json.",
    )

    @field_validator("nouns")
    @classmethod
    def _known_nouns(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_files(names, NOUNS)

    @field_validator("verbs")
    @classmethod
    def _known_verbs(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_files(names, VERBS)

    def identity(self) -> dict[str, Any]:
        edits = {"edits": digest_bytes([read_bytes(self.edits)])} if self.edits else {}
        return edits | {"wordnet": database.identity()}

    def preflight(self) -> list[str]:
        problems = database.problems()
        try:
            read_edits(self.edits)
        except InputError as error:
            problems.append(str(error))
        return problems

    def reads(self) -> tuple[str, ...]:
        return ("tags", *([self.words] if self.words else []))

    def counting(self) -> dict[str, Any]:
        return {"words": self.words}

    def partial(self, table: Table) -> Table:
        """Counts folded tags (once per row), splits of tags by case, and words of the captions."""
        tags: Counter[str] = Counter()
        hints: Counter[str] = Counter()
        for row in table.column("tags").to_pylist():
            spelled = {tag: folded(tag) for tag in row or ()}
            tags.update({key for key in spelled.values() if key})
            hints.update({f"{key}\t{hint}" for tag, key in spelled.items() if (hint := _hint(tag)) and hint != key})
        states = [_state(_TAG, tags), _state(_HINT, hints)]
        if self.words:
            captions = plain_texts(self.op, self.words, table.column(self.words), "words").to_pylist()
            texts = [text and without_tags(text) for text in captions]
            states.append(count_terms(texts, str.isalpha, bigrams=False))
        return pa.concat_tables(states)

    def merge(self, states: Iterator[Table]) -> Table:
        return merge_terms(states)

    def finish(self, state: Table) -> Artifact:
        from curate.text.hashtags.lexicon import wordnet_lexicon

        frame = pl.from_arrow(state)
        assert isinstance(frame, pl.DataFrame)
        counts = {kind: _dict(frame.filter(pl.col("kind") == kind)) for kind in (_TAG, _HINT, UNIGRAM, TEXTS, SHORT)}
        edits = read_edits(self.edits)
        files = {f"noun.{name}" for name in self.nouns} | {f"verb.{name}" for name in self.verbs}
        files |= {""} if self.instances else set()
        settings = Settings(self.heads, self.spelling, self.least_count, self.most, frozenset(files))
        rows = map_tags(counts[_TAG], _best_hints(counts[_HINT]), counts[UNIGRAM], wordnet_lexicon(), settings, edits)
        unused = sum(tag not in counts[_TAG] for tag in edits)
        totals = summary(rows) | {"edits": len(edits), "unused_edits": unused, "short": sum(counts[SHORT].values())}
        return {"map": pa.Table.from_pylist([vars(row) for row in rows], MAP), "summary": totals}

    @staticmethod
    def lines(artifact: Artifact) -> Iterator[str]:
        """The map as tab-separated lines."""
        return to_tsv(artifact["map"])


def summary(rows: list[Row]) -> dict[str, Any]:
    """Tags and uses by `kind` and `how`, and the sizes of the two vocabularies."""
    tags, uses, how = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        tags[row.kind] += 1
        uses[row.kind] += row.count
        how[row.how] += 1
    vocabulary = {kind: len({row.canonical for row in rows if row.kind == kind}) for kind in ("noun", "action")}
    total = sum(uses.values())
    return {
        "tags": len(rows),
        "uses": total,
        "mapped_share": 1 - uses[UNMAPPED] / total if total else None,
        "tags_by_kind": dict(sorted(tags.items())),
        "uses_by_kind": dict(sorted(uses.items())),
        "tags_by_how": dict(sorted(how.items())),
        "vocabulary": vocabulary,
    }


def _hint(tag: str) -> str:
    """Words of a tag by its changes of case, folded."""
    from curate.text.hashtags.segment import chunks

    return folded(" ".join(piece for chunk in chunks(tag) for piece in split_at_case(chunk)))


def _best_hints(hints: dict[str, int]) -> dict[str, str]:
    """Tag -> its most frequent hint; ties alphabetically."""
    best: dict[str, str] = {}
    for pair, _ in sorted(hints.items(), key=lambda item: (-item[1], item[0])):
        tag, _, words = pair.partition("\t")
        best.setdefault(tag, words)
    return best


def _state(kind: str, counts: Counter[str]) -> pa.Table:
    terms = sorted(counts)
    return pa.table([[kind] * len(terms), terms, [counts[term] for term in terms]], schema=SCHEMA)


def _dict(frame: pl.DataFrame) -> dict[str, int]:
    return dict(zip(frame["term"], frame["count"], strict=True))
