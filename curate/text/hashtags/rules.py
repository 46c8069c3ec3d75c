"""Tags -> canonical tags (Xray-Visual, URU): by the synset that a tag's words stand for, so that synonyms, plurals and
spellings count together; what is not found by a head noun, or by a far more frequent tag one letter away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from curate.text.hashtags.lexicon import Lexicon, Reading, inflects, one_apart
from curate.text.hashtags.segment import Segmenter
from curate.text.stopwords import STOP_WORDS

UNMAPPED = "unmapped"
LEAST_SAID = 5
"""Texts of the pool that say a word which WordNet does not have, for segmentation to take it for one."""
LEAST_WORD = 3
"""Letters of a word of the pool, or of a head."""
LEAST_LETTERS = 5
"""Letters of a tag whose spelling may be mended."""


@dataclass(frozen=True)
class Settings:
    heads: Literal["none", "separated", "all"] = "separated"
    spelling: float | None = 20
    least_count: int = 1


@dataclass(frozen=True)
class Row:
    """What became of a tag. how: word (it is its own canonical), synset, head, spelling, edit; of unmapped ones
    adjective, rare, unknown, edit."""

    tag: str
    words: str
    canonical: str | None
    kind: str
    synset: str | None
    count: int
    how: str


@dataclass(frozen=True)
class Edit:
    """What somebody wants a tag to be; canonical None: unmapped. kind None: that of the canonical tag, else noun."""

    canonical: str | None
    kind: str | None = None


def mapped(
    counts: Mapping[str, int],
    hints: Mapping[str, str],
    said: Mapping[str, int],
    lexicon: Lexicon,
    settings: Settings,
    edits: Mapping[str, Edit],
) -> list[Row]:
    """Rows of all tags (folded -> count), most frequent first. hints: tag -> its words, as changes of case tell them;
    said: word -> how many of the pool's texts say it."""
    segmenter = Segmenter(_frequencies(said, lexicon))
    read = {tag: _read(tag, hints.get(tag), lexicon, segmenter, settings.heads) for tag in counts}
    names = _names(counts, read, lexicon)
    rows = {tag: _row(tag, counts[tag], *found, names) for tag, found in read.items()}
    if settings.spelling is not None:
        rows |= dict(_respelled(rows, settings.spelling))
    rows |= dict(_edited(rows, edits))
    return sorted(_without_rare(rows, settings.least_count), key=lambda row: (-row.count, row.tag))


def _frequencies(said: Mapping[str, int], lexicon: Lexicon) -> dict[str, float]:
    """How common words are, for segmentation; the pool's own shortest ones would make up anything."""
    own = {
        word: count
        for word, count in said.items()
        if word in lexicon.weights or (count >= LEAST_SAID and len(word) >= LEAST_WORD)
    }
    return {word: lexicon.weights.get(word, 0) + own.get(word, 0) for word in {**lexicon.weights, **own}}


def _read(
    tag: str, hint: str | None, lexicon: Lexicon, segmenter: Segmenter, heads: str
) -> tuple[str, Reading | None, str]:
    """(words, reading, how) by the tag as it stands, else by its words as a phrase, else by their head: the last chunk
    or chunks; with `all` also the last word or words of a run of letters."""
    whole = lexicon.reading(tag)
    if whole is not None:
        return tag, whole, "synset"
    if lexicon.knows(tag) or tag in STOP_WORDS:
        return tag, None, "adjective"
    parts = [segmenter.words(chunk) for chunk in (hint or tag).split()]
    words = [word for part in parts for word in part]
    phrase = " ".join(words)
    found = lexicon.reading(phrase)
    if found is not None:
        return phrase, found, "synset"
    ends = {"none": [], "separated": parts[1:], "all": [[word] for word in words[1:]]}[heads]
    for start in range(len(ends)):
        head = " ".join(word for part in ends[start:] for word in part)
        found = lexicon.reading(head) if len(head) >= LEAST_WORD else None
        if found is not None:
            return phrase, found, "head"
    return phrase, None, "unknown"


def _names(
    counts: Mapping[str, int], read: Mapping[str, tuple[str, Reading | None, str]], lexicon: Lexicon
) -> dict[Reading, str]:
    """The canonical tag of each synset: that of its lemmas which the pool's tags have most often, inflected or not; of
    equals the first in WordNet."""
    said: defaultdict[Reading, list[tuple[str, int]]] = defaultdict(list)
    for tag, (words, reading, how) in read.items():
        if reading is not None:
            said[reading] += [(words, counts[tag])] if how == "synset" else []
    names = {}
    for reading, forms in said.items():
        lemmas = lexicon.names(reading)
        uses = [sum(n for form, n in forms if inflects(form, lemma, reading.kind)) for lemma in lemmas]
        names[reading] = lemmas[uses.index(max(uses))]
    return names


def _row(tag: str, count: int, words: str, reading: Reading | None, how: str, names: Mapping[Reading, str]) -> Row:
    if reading is None:
        return Row(tag, words, None, UNMAPPED, None, count, how)
    canonical = names[reading]
    how = "word" if canonical == tag else how
    return Row(tag, words, canonical, reading.kind, reading.synset, count, how)


def _respelled(rows: Mapping[str, Row], times: float) -> Iterator[tuple[str, Row]]:
    """Unknown tags that are one letter (wrong, missing, too many, swapped) away from a mapped one of the same first
    letter that is `times` as frequent; of several the most frequent, then the first by alphabet."""
    unknown = [row for row in rows.values() if row.how == "unknown" and _spelt(row.tag)]
    least = times * min((row.count for row in unknown), default=1)
    near: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows.values():
        if row.canonical is not None and row.count >= least and _spelt(row.tag):
            for form in _shortened(row.tag):
                near[form].append(row)
    for row in unknown:
        found = {other.tag: other for form in _shortened(row.tag) for other in near.get(form, ())}
        fitting = [
            other
            for other in found.values()
            if other.count >= times * row.count and other.tag[0] == row.tag[0] and one_apart(row.tag, other.tag)
        ]
        if fitting:
            best = min(fitting, key=lambda other: (-other.count, other.tag))
            yield row.tag, replace(row, canonical=best.canonical, kind=best.kind, synset=best.synset, how="spelling")


def _spelt(tag: str) -> bool:
    return len(tag) >= LEAST_LETTERS and tag.isalpha()


def _shortened(word: str) -> set[str]:
    """The word, and the word without any one of its letters: two words one edit apart share one of these."""
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def _edited(rows: Mapping[str, Row], edits: Mapping[str, Edit]) -> Iterator[tuple[str, Row]]:
    """Rows that an edit changes."""
    kinds = {row.canonical: row.kind for row in rows.values() if row.canonical}
    synset_of = {(row.kind, row.canonical): row.synset for row in rows.values() if row.canonical}
    for tag, edit in edits.items():
        row = rows.get(tag)
        if row is None:
            continue
        kind = UNMAPPED if edit.canonical is None else edit.kind or kinds.get(edit.canonical, "noun")
        if (edit.canonical, kind) != (row.canonical, row.kind):
            synset = synset_of.get((kind, edit.canonical))
            yield tag, replace(row, canonical=edit.canonical, kind=kind, synset=synset, how="edit")


def _without_rare(rows: Mapping[str, Row], least: int) -> Iterator[Row]:
    """A canonical tag with fewer uses than `least` is none; edited ones stay."""
    uses: defaultdict[tuple[str, str | None], int] = defaultdict(int)
    for row in rows.values():
        uses[row.kind, row.canonical] += row.count
    for row in rows.values():
        rare = row.canonical is not None and row.how != "edit" and uses[row.kind, row.canonical] < least
        yield replace(row, canonical=None, kind=UNMAPPED, synset=None, how="rare") if rare else row
