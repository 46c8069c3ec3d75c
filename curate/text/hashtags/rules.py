"""Maps tags to canonical tags (Xray-Visual, URU) by the synset of a tag's words, so that synonyms, plurals and
spellings count together; otherwise by its head noun, or by a far more frequent tag one letter away."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from curate.core.errors import TargetError
from curate.text.hashtags.lexicon import Lexicon, Reading, inflects, one_edit_apart
from curate.text.hashtags.segment import Segmenter
from curate.text.stopwords import STOP_WORDS

UNMAPPED = "unmapped"
LEAST_TEXTS = 5
"""Least number of texts of the pool with a word that is not in WordNet, for segmentation to use it."""
LEAST_WORD = 3
"""Least letters of a word of the pool, or of a head."""
LEAST_LETTERS = 5
"""Least letters of a tag whose spelling may be corrected."""


@dataclass(frozen=True)
class Settings:
    heads: Literal["none", "separated", "all"] = "separated"
    spelling: float | None = 20
    least_count: int = 1
    most: int | None = None
    files: frozenset[str] | None = None
    """Lexicographer files whose synsets are canonical tags, "" for named entities; None for all."""


@dataclass(frozen=True)
class Row:
    """The mapping of a tag. how: word (its own canonical tag), synset, head, spelling, edit; for unmapped tags
    adjective, not_visual, rare, unknown, edit."""

    tag: str
    words: str
    canonical: str | None
    kind: str
    synset: str | None
    count: int
    how: str


@dataclass(frozen=True)
class Edit:
    """A user's mapping of a tag. canonical None: unmapped; kind None: the kind of the canonical tag, otherwise noun."""

    canonical: str | None
    kind: str | None = None


def map_tags(
    counts: Mapping[str, int],
    hints: Mapping[str, str],
    word_counts: Mapping[str, int],
    lexicon: Lexicon,
    settings: Settings,
    edits: Mapping[str, Edit],
) -> list[Row]:
    """Rows of all tags (folded -> count), most frequent first. hints: tag -> its words by changes of case; word_counts:
    word -> number of texts of the pool with it."""
    segmenter = Segmenter(_frequencies(word_counts, lexicon))
    read = {tag: _read(tag, hints.get(tag), lexicon, segmenter, settings) for tag in counts}
    names = _names(counts, read, lexicon)
    rows = {tag: _row(tag, counts[tag], *found, names) for tag, found in read.items()}
    if settings.spelling is not None:
        rows |= dict(_respelled(rows, settings.spelling))
    rows |= dict(_edited(rows, edits))
    return sorted(_without_rare(rows, settings), key=lambda row: (-row.count, row.tag))


def _frequencies(word_counts: Mapping[str, int], lexicon: Lexicon) -> dict[str, float]:
    """Frequencies of words for segmentation, without the pool's shortest words, which would fit into any tag."""
    own = {
        word: count
        for word, count in word_counts.items()
        if word in lexicon.weights or (count >= LEAST_TEXTS and len(word) >= LEAST_WORD)
    }
    return {word: lexicon.weights.get(word, 0) + own.get(word, 0) for word in {**lexicon.weights, **own}}


def _read(
    tag: str, hint: str | None, lexicon: Lexicon, segmenter: Segmenter, settings: Settings
) -> tuple[str, Reading | None, str]:
    """(words, reading, how). A tag whose reading is in none of the selected files has the reading of the verb that it
    is derived from (`hug`, an act), or none."""
    words, reading, how = _understood(tag, hint, lexicon, segmenter, settings.heads)
    if reading is None or settings.files is None or lexicon.files[reading.synset] in settings.files:
        return words, reading, how
    deed = lexicon.deeds.get(words)
    if reading.kind == "noun" and deed is not None and lexicon.files[deed] in settings.files:
        return words, Reading("action", deed), how
    return words, None, "not_visual"


def _understood(
    tag: str, hint: str | None, lexicon: Lexicon, segmenter: Segmenter, heads: str
) -> tuple[str, Reading | None, str]:
    """(words, reading, how) by the whole tag, otherwise by its words as a phrase, otherwise by the head: the last
    chunks, or with `all` the last words."""
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
    """The canonical tag of each synset: the lemma that the pool's tags use most, inflected or not; ties in WordNet's
    order."""
    uses_of: defaultdict[Reading, list[tuple[str, int]]] = defaultdict(list)
    for tag, (words, reading, how) in read.items():
        if reading is not None:
            uses_of[reading] += [(words, counts[tag])] if how == "synset" else []
    names = {}
    for reading, forms in uses_of.items():
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
    """Corrects unknown tags that are one letter (wrong, missing, extra, swapped) away from a mapped tag with the same
    first letter and `times` the frequency: the most frequent one, ties alphabetically."""
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
            if other.count >= times * row.count and other.tag[0] == row.tag[0] and one_edit_apart(row.tag, other.tag)
        ]
        if fitting:
            best = min(fitting, key=lambda other: (-other.count, other.tag))
            yield row.tag, replace(row, canonical=best.canonical, kind=best.kind, synset=best.synset, how="spelling")


def _spelt(tag: str) -> bool:
    return len(tag) >= LEAST_LETTERS and tag.isalpha()


def _shortened(word: str) -> set[str]:
    """The word and all its versions without one letter; two words one edit apart share one of these."""
    return {word, *(word[:at] + word[at + 1 :] for at in range(len(word)))}


def _edited(rows: Mapping[str, Row], edits: Mapping[str, Edit]) -> Iterator[tuple[str, Row]]:
    """The rows that an edit changes."""
    kinds = {row.canonical: row.kind for row in rows.values() if row.canonical}
    synset_of: dict[tuple[str, str | None], str | None] = {
        (row.kind, row.canonical): row.synset for row in rows.values() if row.canonical
    }
    for tag, edit in edits.items():
        row = rows.get(tag)
        if row is None:
            continue
        kind = UNMAPPED if edit.canonical is None else edit.kind or kinds.get(edit.canonical, "noun")
        if (edit.canonical, kind) != (row.canonical, row.kind):
            synset = synset_of.get((kind, edit.canonical))
            yield tag, replace(row, canonical=edit.canonical, kind=kind, synset=synset, how="edit")


def _without_rare(rows: Mapping[str, Row], settings: Settings) -> Iterator[Row]:
    """Unmaps the tags of canonical tags with fewer than `least_count` uses, except edited ones, and of those beyond the
    `most` used, edited ones first; ties alphabetically. Raises TargetError if there are fewer than `most`."""
    uses: defaultdict[tuple[str, str], int] = defaultdict(int)
    edited = set()
    for row in rows.values():
        if row.canonical is not None:
            uses[row.canonical, row.kind] += row.count
            if row.how == "edit":
                edited.add((row.canonical, row.kind))
    kept = {tag for tag, count in uses.items() if count >= settings.least_count or tag in edited}
    if settings.most is not None:
        if settings.most > len(kept):
            raise TargetError(
                f"text.hashtag_map.most: {settings.most:,} canonical tags, but only {len(kept):,} occur; lower it, or "
                "leave it out for all"
            )
        kept = set(sorted(kept, key=lambda tag: (tag not in edited, -uses[tag], tag))[: settings.most])
    for row in rows.values():
        rare = row.canonical is not None and (row.canonical, row.kind) not in kept
        yield replace(row, canonical=None, kind=UNMAPPED, synset=None, how="rare") if rare else row
