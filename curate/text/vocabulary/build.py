"""`text.vocabulary`: the entries to match and balance texts by, from WordNet, the pool and a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial as bound
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import polars as pl
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curate.core.contracts import Artifact, Location, Reduce, Runtime, Table
from curate.core.errors import CurateError, InputError
from curate.core.hashing import digest_bytes
from curate.core.items import texts_of
from curate.kernels.wordnet import database
from curate.text.phrases import normalised_all
from curate.text.stopwords import STOP_WORDS
from curate.text.vocabulary.terms import TermCounts, count_terms, merge_terms

LONGEST_WORDS = 20
"""Words of an entry at most."""
SCHEMA = pa.schema(
    [
        pa.field(
            "entry", pa.string(), metadata={"of": "what texts are matched with: words without case, between spaces"}
        ),
        pa.field("source", pa.string(), metadata={"of": "given, wordnet, unigram or bigram: the first that has it"}),
        pa.field("count", pa.int64(), metadata={"unit": "texts of the pool that say it; null where not counted"}),
    ]
)
_INDEXES = ("index.noun", "index.verb", "index.adj", "index.adv")


class Bigrams(BaseModel):
    """Limits for pairs of neighbouring words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=20, ge=1, description="Least number of texts with the pair.")
    pmi: float = Field(
        default=3.0, description="Least log(p12 / (p1 p2)), with p the shares of texts with the pair or word."
    )


class BuildVocabulary(Reduce):
    """List entries for `text.match`: WordNet's lemmas, words and pairs of words of the pool, entries of a file.

    MetaCLIP's sources (Xu et al. 2023, section 3.1) are WordNet and the uni- and bigrams of Wikipedia, by count and
    PMI; here the pool replaces Wikipedia. The artifact: `entries` (entry, source, count), sorted and distinct after
    normalisation. `source` is the first that has the entry: given, wordnet, unigram, bigram. `count` is the number of
    texts of the pool with it, null if it was not counted. `summary` has, by source, the entries read, empty, repeated,
    merged with an equal one, and too long.
    """

    op: ClassVar[str] = "text.vocabulary"
    kind: ClassVar[str] = "vocabulary"

    column: str = Field("text", description="Column of texts, or of lists of texts, in which to count words.")
    wordnet: bool = Field(True, description="Whether to include all lemmas of WordNet.")
    unigrams: int | None = Field(
        20, ge=1, description="Least number of texts with a word of the pool; null takes no words of the pool."
    )
    bigrams: Bigrams | None = Field(
        Bigrams(), description="Limits for pairs of words of the pool, `count` and `pmi`; null takes no pairs."
    )
    entries: Annotated[Path | None, Runtime(), Location()] = Field(
        None, description="File of more entries: a JSON list of strings, or .txt with one per line."
    )
    stop_words: bool = Field(
        False,
        description="Whether to include words such as `the`, and pairs with them; a file's are always included.",
    )
    digits: bool = Field(False, description="Whether to include numbers; a file's are always included.")

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if not self.wordnet and self.unigrams is None and self.bigrams is None and self.entries is None:
            raise ValueError("no source of entries; set wordnet, unigrams, bigrams or entries")
        return self

    def identity(self) -> dict[str, Any]:
        given = {"entries": [_is_json(self.entries), digest_bytes([_bytes(self.entries)])]} if self.entries else {}
        return given | ({"wordnet": database.identity()} if self.wordnet else {})

    def preflight(self) -> list[str]:
        problems = database.problems() if self.wordnet else []
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
        return count_terms(texts, bound(is_term, self.stop_words, self.digits), self.bigrams is not None)

    def merge(self, states: Iterator[Table]) -> Table:
        return merge_terms(states)

    def finish(self, state: Table) -> Artifact:
        """Raises CurateError for a vocabulary without entries."""
        pool = TermCounts.of(state)
        vocabulary = Vocabulary()
        vocabulary.add("given", given(self.entries))
        if self.wordnet:
            vocabulary.add("wordnet", lemmas(self.stop_words, self.digits))
        if self.unigrams is not None:
            vocabulary.add("unigram", _terms(pool.unigrams.filter(pl.col("count") >= self.unigrams)))
        if self.bigrams is not None:
            vocabulary.add("bigram", _terms(frequent_pairs(pool, self.bigrams.count, self.bigrams.pmi)))
        if not vocabulary.source:
            raise CurateError(
                f"{self.op}: no entries from {pool.texts:,} texts; lower `unigrams` or `bigrams`, set "
                "`wordnet: true`, or name a file in `entries`"
            )
        counts = pl.concat([pool.unigrams, pool.bigrams])
        return {
            "entries": vocabulary.table(counts),
            "summary": vocabulary.summary() | {"texts": pool.texts, "short": pool.short},
        }


class Vocabulary:
    """Entries, added source by source; an entry keeps its first source."""

    def __init__(self) -> None:
        self.source: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}

    def add(self, source: str, entries: Sequence[str]) -> None:
        """Adds entries, except those counted as empty (without words), duplicate (the same string), merged (another
        string, equal after normalisation), in_earlier_source or too_long (more than LONGEST_WORDS words)."""
        counted: Counter[str] = Counter(read=len(entries))
        distinct = list(dict.fromkeys(entries))
        counted["duplicate"] = len(entries) - len(distinct)
        for entry in normalised_all(distinct):
            if not any(map(str.isalnum, entry)):
                counted["empty"] += 1
            elif entry.count(" ") >= LONGEST_WORDS:
                counted["too_long"] += 1
            elif entry in self.source:
                counted["merged" if self.source[entry] == source else "in_earlier_source"] += 1
            else:
                self.source[entry] = source
                counted["entries"] += 1
        if entries:
            self._counts[source] = counted

    def table(self, counts: pl.DataFrame) -> pa.Table:
        """Sorted by entry, with the pool's counts (term, count)."""
        frame = pl.DataFrame({"entry": list(self.source), "source": list(self.source.values())})
        joined = frame.join(counts.rename({"term": "entry"}), on="entry", how="left").sort("entry")
        return joined.select(SCHEMA.names).to_arrow().cast(SCHEMA)

    def summary(self) -> dict[str, Any]:
        whats = ("read", "entries", "empty", "duplicate", "merged", "in_earlier_source", "too_long")
        by_source = {source: {what: counted[what] for what in whats} for source, counted in self._counts.items()}
        return {"entries": len(self.source), "sources": by_source}


def is_term(stop_words: bool, digits: bool, word: str) -> bool:
    """Whether a normalised word may be an entry or part of a pair: not a sign nor a single character."""
    if len(word) < 2 or (word.isdigit() and not digits):
        return False
    return stop_words or word not in STOP_WORDS


def frequent_pairs(pool: TermCounts, count: int, pmi: float) -> pl.DataFrame:
    """Bigrams (term, count) with at least `count` texts and `pmi`, log(n12 n / (n1 n2))."""
    words = pl.col("term").str.split_exact(" ", 1).struct.rename_fields(["first", "second"])
    pairs = pool.bigrams.filter(pl.col("count") >= count).with_columns(words.alias("words")).unnest("words")
    for side in ("first", "second"):
        pairs = pairs.join(pool.unigrams.rename({"term": side, "count": f"n_{side}"}), on=side, how="left")
    # a word that was dropped as rare is at least in its pairs' texts
    at_least = [pl.max_horizontal(pl.col(f"n_{side}").fill_null(0), "count").log() for side in ("first", "second")]
    measured = pl.col("count").log() + pl.lit(float(max(1, pool.texts))).log() - at_least[0] - at_least[1]
    return pairs.filter(measured >= pmi).select("term", "count")


@database.well_formed()
def lemmas(stop_words: bool, digits: bool) -> list[str]:
    """All lemmas of WordNet, of every part of speech."""
    found: dict[str, None] = {}
    for name in _INDEXES:
        for line in database.read(name).splitlines():
            found[line.partition(b" ")[0].decode().replace("_", " ")] = None
    return [lemma for lemma in found if " " in lemma or is_term(stop_words, digits, lemma)]


def given(path: Path | None) -> list[str]:
    """Entries of a file. Raises InputError (one line) for a file of another format."""
    if path is None:
        return []
    content = _bytes(path)
    try:
        text = content.decode("utf-8-sig")
        if not _is_json(path):
            return text.splitlines()
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "a JSON list" if _is_json(path) else "a UTF-8 text with one entry per line"
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
    """By the file's suffix: the same bytes have other entries as lines."""
    return path.suffix.lower() == ".json"


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"text.vocabulary.entries: cannot read {path} ({error.strerror or error}); give a JSON list or a .txt "
            "file that all workers can read"
        ) from None


def _terms(frame: pl.DataFrame) -> list[str]:
    return frame["term"].sort().to_list()
