"""`text.vocabulary`: the entries that texts are matched with and balanced by, from WordNet, the pool and a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial as bound
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curate.core.contracts import Artifact, Reduce, Runtime, Table
from curate.core.errors import CurateError, InputError
from curate.core.hashing import digest_bytes
from curate.core.items import texts_of
from curate.text.stopwords import STOP_WORDS
from curate.text.vocabulary import counts as vocabulary_counts
from curate.text.vocabulary.counts import Counts
from curate.text.vocabulary.entries import Vocabulary
from curate.text.wordnet import database as wordnet

_INDEXES = ("index.noun", "index.verb", "index.adj", "index.adv")


class Bigrams(BaseModel):
    """Which pairs of neighbouring words are entries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(20, ge=1, description="Texts that say the pair, at least.")
    pmi: float = Field(3.0, description="log(p12 / (p1 p2)) at least, with p the shares of texts that say them.")


class BuildVocabulary(Reduce):
    """Entries for `text.match`: WordNet's lemmas, the pool's own words and pairs of words, and what a file gives.

    MetaCLIP's sources (Xu et al. 2023, section 3.1: WordNet, and uni- and bigrams of Wikipedia by count and PMI), with
    the pool in Wikipedia's place. The artifact: `entries` (entry, source, count), sorted, no two the same to the
    matcher, each with the first source that has it: given, wordnet, unigram, bigram; count: texts of the pool that say
    it, null where that was not counted. `summary` says by source what was read, and what was empty, repeated, the
    same as another to the matcher, or too long.
    """

    op: ClassVar[str] = "text.vocabulary"
    kind: ClassVar[str] = "vocabulary"

    column: str = Field("text", description="Column of texts, or of lists of texts, whose words are counted.")
    wordnet: bool = Field(True, description="Whether all lemmas of WordNet are entries.")
    unigrams: int | None = Field(
        20, ge=1, description="Texts that say a word, at least, for it to be an entry; null takes no words of the pool."
    )
    bigrams: Bigrams | None = Field(
        Bigrams(), description="Pairs of words by `count` and `pmi`; null takes no pairs of the pool."
    )
    entries: Annotated[Path | None, Runtime()] = Field(
        None, description="File of further entries: a JSON list of strings, or .txt with one a line."
    )
    stop_words: bool = Field(
        False, description="Whether words such as `the` and `with`, and pairs with one, are entries; a file's always."
    )
    digits: bool = Field(False, description="Whether bare numbers are; a file's always are.")

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.wordnet and self.unigrams is None and self.bigrams is None and self.entries is None:
            raise ValueError("no source of entries; set wordnet, unigrams, bigrams or entries")
        return self

    def identity(self) -> dict[str, Any]:
        given = {"entries": [_is_json(self.entries), digest_bytes([_bytes(self.entries)])]} if self.entries else {}
        return given | ({"wordnet": wordnet.identity()} if self.wordnet else {})

    def preflight(self) -> list[str]:
        problems = wordnet.problems() if self.wordnet else []
        try:
            given(self.entries)
        except InputError as error:
            problems.append(str(error))
        return problems

    def scaled(self, fraction: float) -> Self:
        least = None if self.unigrams is None else max(1, round(self.unigrams * fraction))
        pairs = self.bigrams and Bigrams(count=max(1, round(self.bigrams.count * fraction)), pmi=self.bigrams.pmi)
        return self.model_copy(update={"unigrams": least, "bigrams": pairs})

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def counting(self) -> dict[str, Any]:
        counted = {"words": self.unigrams is not None or self.bigrams is not None, "pairs": self.bigrams is not None}
        return counted | {name: getattr(self, name) for name in ("column", "stop_words", "digits")}

    def partial(self, table: Table) -> Table:
        counted = self.unigrams is not None or self.bigrams is not None
        texts = texts_of(self.op, table.column(self.column), self.column).values.to_pylist() if counted else []
        return vocabulary_counts.count(texts, bound(is_term, self.stop_words, self.digits), self.bigrams is not None)

    def merge(self, states: Iterator[Table]) -> Table:
        return vocabulary_counts.merge(states)

    def finish(self, state: Table) -> Artifact:
        """Raises CurateError for a vocabulary without a single entry."""
        pool = Counts.of(state)
        made = Vocabulary()
        made.add("given", given(self.entries))
        if self.wordnet:
            made.add("wordnet", lemmas(self.stop_words, self.digits))
        if self.unigrams is not None:
            made.add("unigram", _terms(pool.unigrams.filter(pl.col("count") >= self.unigrams)))
        if self.bigrams is not None:
            made.add("bigram", _terms(frequent_pairs(pool, self.bigrams.count, self.bigrams.pmi)))
        if not made.source:
            raise CurateError(
                f"{self.op}: no entry at all out of {pool.texts:,} texts; lower `unigrams` or `bigrams`, set "
                "`wordnet: true`, or name a file in `entries`"
            )
        counts = pl.concat([pool.unigrams, pool.bigrams])
        return {"entries": made.table(counts), "summary": made.summary() | {"texts": pool.texts, "short": pool.short}}


def is_term(stop_words: bool, digits: bool, word: str) -> bool:
    """Whether a word of the matcher may be an entry, or part of a pair: neither a sign nor a single character."""
    if len(word) < 2 or (word.isdigit() and not digits):
        return False
    return stop_words or word not in STOP_WORDS


def frequent_pairs(pool: Counts, count: int, pmi: float) -> pl.DataFrame:
    """Bigrams of at least `count` texts and PMI log(n12 n / (n1 n2)); term, count."""
    words = pl.col("term").str.split_exact(" ", 1).struct.rename_fields(["first", "second"])
    pairs = pool.bigrams.filter(pl.col("count") >= count).with_columns(words.alias("words")).unnest("words")
    for side in ("first", "second"):
        pairs = pairs.join(pool.unigrams.rename({"term": side, "count": f"n_{side}"}), on=side, how="left")
    # a word that was dropped as rare is said by its pairs' texts at least
    at_least = [pl.max_horizontal(pl.col(f"n_{side}").fill_null(0), "count").log() for side in ("first", "second")]
    measured = pl.col("count").log() + pl.lit(float(max(1, pool.texts))).log() - at_least[0] - at_least[1]
    return pairs.filter(measured >= pmi).select("term", "count")


@wordnet.well_formed()
def lemmas(stop_words: bool, digits: bool) -> list[str]:
    """Every lemma of WordNet, of all parts of speech."""
    found: dict[str, None] = {}
    for name in _INDEXES:
        for line in wordnet.read(name).splitlines():
            found[line.partition(b" ")[0].decode().replace("_", " ")] = None
    return [lemma for lemma in found if " " in lemma or is_term(stop_words, digits, lemma)]


def given(path: Path | None) -> list[str]:
    """Entries of a file. Raises InputError, in one line, for what is none."""
    if path is None:
        return []
    content = _bytes(path)
    try:
        text = content.decode("utf-8-sig")
        if not _is_json(path):
            return text.splitlines()
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "a JSON list" if _is_json(path) else "a text in UTF-8, an entry a line"
        raise InputError(f"text.vocabulary.entries: {path} is not {what} ({error})") from None
    if not isinstance(value, list):
        raise InputError(
            f"text.vocabulary.entries: {path} holds a JSON {type(value).__name__}; expected a list of strings"
        )
    for place, entry in enumerate(value):
        if not isinstance(entry, str):
            raise InputError(
                f"text.vocabulary.entries: {path} holds {json.dumps(entry)[:60]} at place {place}; expected strings"
            )
    return value


def _is_json(path: Path) -> bool:
    """By its name; the same bytes are other entries as lines."""
    return path.suffix.lower() == ".json"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"text.vocabulary.entries: {path} cannot be read ({error.strerror or error}); name a JSON list or a .txt "
            "file that every worker sees"
        ) from None


def _terms(frame: pl.DataFrame) -> list[str]:
    return frame["term"].sort().to_list()
