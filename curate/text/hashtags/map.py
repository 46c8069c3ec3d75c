"""`text.hashtag_map`: a pool's hashtags and the canonical tag of each; an artifact that people read and edit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
from pydantic import Field

from curate.core.contracts import Artifact, Reduce, Runtime, Table
from curate.core.errors import InputError
from curate.core.hashing import digest_bytes
from curate.text.hashtags.edits import read_bytes, read_edits, to_tsv
from curate.text.hashtags.rules import UNMAPPED, Row, Settings, mapped
from curate.text.hashtags.segment import folded, humps
from curate.text.hashtags.tags import without_tags
from curate.text.language.language import plain_texts
from curate.text.vocabulary import counts as vocabulary_counts
from curate.text.vocabulary.counts import SCHEMA, SHORT, TEXTS, UNIGRAM
from curate.text.wordnet import database as wordnet

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
        pa.field("how", pa.string(), metadata={"of": "word, synset, head, spelling, edit; adjective, rare, unknown"}),
    ]
)


class HashtagMap(Reduce):
    """Map the pool's tags to canonical nouns and actions (Xray-Visual, URU), through WordNet's synsets.

    A tag is cut into its words: at separators, where case changes, and else where the words are the likeliest, by how
    often WordNet's texts and the pool's captions say them. What it stands for as a whole decides: synonyms, plurals and
    spellings of one synset are one canonical tag, that of its lemmas which the pool uses most. A tag that is a noun and
    a verb is the noun where that is a thing; what is done (`swimming`) is an action.

    The artifact: `map`, a row per tag, most frequent first, unmapped ones too: `tag`, `words`, `canonical`, `kind`
    (noun, action, unmapped), `synset`, `count` (rows), `how` (word: it is its own canonical tag; synset; head: by its
    last words; spelling: by a frequent tag one letter away; edit; of unmapped ones adjective, rare, unknown).
    `summary` adds it up. `curate text map` prints it as lines that may be changed and given back in `edits`.
    """

    op: ClassVar[str] = "text.hashtag_map"
    version: ClassVar[int] = 2
    kind: ClassVar[str] = KIND

    words: str | None = Field(
        "caption", description="Column of texts whose words help to cut tags; null relies on WordNet alone."
    )
    heads: Literal["none", "separated", "all"] = Field(
        "separated",
        description="Whether a tag of several words that WordNet does not have counts as its last words (`old-house`: "
        "house): never, if the writer has separated them, or always (`minecraft` would be a craft).",
    )
    spelling: float | None = Field(
        20, gt=1, description="An unknown tag of 5 letters or more counts as the tag one letter away that is so many "
        "times as frequent; null mends no spelling.",
    )  # fmt: skip
    least_count: int = Field(1, ge=1, description="Uses below which a canonical tag is dropped: its tags are rare.")
    edits: Annotated[Path | None, Runtime()] = Field(
        None,
        description="File of canonical tags that win over all rules: lines of tag, TAB, canonical, TAB, kind (none: "
        "unmapped), as `curate text map` prints them, or .json.",
    )

    def identity(self) -> dict[str, Any]:
        edits = {"edits": digest_bytes([read_bytes(self.edits)])} if self.edits else {}
        return edits | {"wordnet": wordnet.identity()}

    def preflight(self) -> list[str]:
        problems = wordnet.problems()
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
        """Counts of folded tags, once per row; of the words that changes of case tell; of the captions' words."""
        tags: Counter[str] = Counter()
        hints: Counter[str] = Counter()
        for row in table.column("tags").to_pylist():
            spelled = {tag: folded(tag) for tag in row or ()}
            tags.update({key for key in spelled.values() if key})
            hints.update({f"{key}\t{told}" for tag, key in spelled.items() if (told := _hint(tag)) and told != key})
        states = [_state(_TAG, tags), _state(_HINT, hints)]
        if self.words:
            captions = plain_texts(self.op, self.words, table.column(self.words), "words").to_pylist()
            texts = [text and without_tags(text) for text in captions]
            states.append(vocabulary_counts.count(texts, str.isalpha, bigrams=False))
        return pa.concat_tables(states)

    def merge(self, states: Iterator[Table]) -> Table:
        return vocabulary_counts.merge(states)

    def finish(self, state: Table) -> Artifact:
        from curate.text.hashtags.lexicon import wordnet_lexicon

        frame = pl.from_arrow(state)
        assert isinstance(frame, pl.DataFrame)
        counts = {kind: _dict(frame.filter(pl.col("kind") == kind)) for kind in (_TAG, _HINT, UNIGRAM, TEXTS, SHORT)}
        edits = read_edits(self.edits)
        settings = Settings(self.heads, self.spelling, self.least_count)
        rows = mapped(counts[_TAG], _told(counts[_HINT]), counts[UNIGRAM], wordnet_lexicon(), settings, edits)
        unused = sum(tag not in counts[_TAG] for tag in edits)
        told = summary(rows) | {"edits": len(edits), "unused_edits": unused, "short": sum(counts[SHORT].values())}
        return {"map": pa.Table.from_pylist([vars(row) for row in rows], MAP), "summary": told}

    @staticmethod
    def lines(artifact: Artifact) -> Iterator[str]:
        """The map as tab-separated lines."""
        return to_tsv(artifact["map"])


def summary(rows: list[Row]) -> dict[str, Any]:
    """Tags and uses by kind and by how, and the sizes of the two vocabularies."""
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
    """Words of a tag as its changes of case tell them, folded."""
    from curate.text.hashtags.segment import chunks

    return folded(" ".join(piece for chunk in chunks(tag) for piece in humps(chunk)))


def _told(hints: dict[str, int]) -> dict[str, str]:
    """Tag -> its most frequent hint, of equals the first by alphabet."""
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
