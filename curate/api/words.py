"""Search images by words: things by the synsets that `image.concepts` named, colours by those of `image.appearance`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import InputError
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord
from curate.image.appearance import COLOURS
from curate.kernels.entries import entries_of
from curate.kernels.wordnet.hypernyms import taxonomy
from curate.text.phrases import normalised
from curate.text.stopwords import STOP_WORDS
from curate.text.wordnet.concepts import VISUAL_NOUNS as THINGS
from curate.text.wordnet.synsets import noun_senses

CONCEPTS, SHARE, COLOUR = "concepts", "concept_share", "colours"
OTHER_COLOURS = {"gray": "grey"}
NOT_SHOWN = frozenset(("", "|", "photo", "photos", "picture", "pictures", "image", "images"))


@dataclass(frozen=True)
class Words:
    """A region of a slice: rows that show each thing in one of its senses, or a kind of it, and have each colour."""

    things: tuple[tuple[str, tuple[str, ...]], ...]
    """A word or phrase, and the synsets that it may name."""
    colours: tuple[str, ...]
    left: tuple[str, ...]
    """Words that name neither."""
    columns: tuple[str, ...]

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows (n,) of a table with its columns fit all words."""
        found = np.ones(len(table), bool)
        if self.things:
            held = entries_of(table, [CONCEPTS])
            kinds = [set(taxonomy().kinds(name)) for name in held.names]
            for _, synsets in self.things:
                fits = np.array([not of.isdisjoint(synsets) for of in kinds], bool)
                found &= np.isin(np.arange(len(table)), held.row[held.item[fits[held.entry]]])
        lists = table.column(COLOUR).combine_chunks() if self.colours else None
        for colour in self.colours:
            rows = pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), colour))
            found &= np.isin(np.arange(len(table)), rows.to_numpy())
        return found

    def said(self, found: pa.Table) -> str:
        """What was searched. found: rows that fit; only senses of a word that one of them shows are named."""
        names = entries_of(found, [CONCEPTS]).names if self.things else []
        shown = {kind for name in names for kind in taxonomy().kinds(name)}
        senses = {word: [one for one in synsets if one in shown] or synsets for word, synsets in self.things}
        things = [f"{word} ({', '.join(some)})" for word, some in senses.items()]
        parts = [f"that show {' and '.join(things)}"] if things else []
        parts += [f"that are {' and '.join(self.colours)} in the middle"] if self.colours else []
        left = f"; not searched: {', '.join(self.left)}" if self.left else ""
        return f"Images {' and '.join(parts)}{left}"


def words(run: RunRecord, stage: str, text: str) -> Words | str:
    """What a text asks of the images at a stage; or why it asks nothing, in one line; "" for a run that has no
    concepts."""
    rows = LiveRows(run, stage)
    held = [name for name in (CONCEPTS, COLOUR) if name in rows.fields and len(rows.ways(name)) == 1]
    if CONCEPTS not in held:
        return ""
    try:
        things, colours, left = parsed(text, COLOUR in held)
    except InputError as error:  # no WordNet here
        return str(error)
    if not things and not colours:
        return f"WordNet has no noun {text!r}" if left else ""
    columns = [CONCEPTS] if things else []
    return Words(tuple(things.items()), tuple(colours), tuple(left), (*columns, *([COLOUR] if colours else [])))


def parsed(text: str, with_colours: bool = True) -> tuple[dict[str, tuple[str, ...]], list[str], list[str]]:
    """(things with their synsets, colours, other words) of a text. The longest phrase that is a noun of a visible thing
    counts. A colour is a colour, except at the end if it is a fruit first (an orange). Raises InputError without
    WordNet."""
    words = [OTHER_COLOURS.get(word, word) for word in normalised(text).split(" ") if word not in NOT_SHOWN]
    things: dict[str, tuple[str, ...]] = {}
    colours, left, at = list[str](), list[str](), 0
    while at < len(words):
        phrases = [words[at:stop] for stop in range(len(words), at, -1)]
        phrase = next((some for some in phrases if _names_thing(some, len(words) - at, with_colours)), None)
        if phrase is not None:
            things[" ".join(phrase)] = noun_senses(" ".join(phrase), THINGS)
        elif with_colours and words[at] in COLOURS:
            colours.append(words[at])
        elif words[at] not in STOP_WORDS:
            left.append(words[at])
        at += len(phrase or [""])
    return things, colours, left


def _names_thing(phrase: list[str], words_left: int, with_colours: bool) -> bool:
    whole = " ".join(phrase)
    every, things, numbers, fruits = (noun_senses(whole, files) for files in ((), THINGS, ("quantity",), ("food",)))
    if STOP_WORDS.issuperset(phrase) or every[:1] == numbers[:1]:
        return False
    if with_colours and STOP_WORDS.union(COLOURS).issuperset(phrase):
        return words_left == 1 and every[:1] == fruits[:1]
    return bool(things)
