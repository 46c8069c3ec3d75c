"""Search images by words: things by the synsets that `image.concepts` named, colours by those of `image.appearance`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.slices import MOST_ROWS, Slice, SlicePage, SliceReader
from curate.core.errors import InputError
from curate.core.nouns import tombstones
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
LONGEST = 9
"""Words of WordNet's longest phrase."""
SAID = 5
"""Most senses that are named."""
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

    @property
    def columns(self) -> tuple[str, ...]:
        return (*((CONCEPTS,) if self.things else ()), *((COLOUR,) if self.colours else ()))

    def holds(self, table: pa.Table) -> NDArray[np.bool_]:
        """Which rows (n,) of a table with its columns fit all words."""
        found = np.ones(len(table), bool)
        if self.things:
            held = entries_of(table, [CONCEPTS])
            known = taxonomy()
            kinds = [set(known.kinds(name)) for name in held.names]
            for _, synsets in self.things:
                fits = np.array([not of.isdisjoint(synsets) for of in kinds], bool)
                found &= np.isin(np.arange(len(table)), held.row[held.item[fits[held.entry]]])
        lists = table.column(COLOUR).combine_chunks() if self.colours else None
        for colour in self.colours:
            rows = pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), colour))
            found &= np.isin(np.arange(len(table)), rows.to_numpy())
        return found

    def said(self, found: pa.Table) -> str:
        """What was searched. found: rows that fit. Named are the senses of a word that a row shows, or else all."""
        names = entries_of(found, [CONCEPTS]).names if self.things else []
        shown = {kind for name in names for kind in taxonomy().kinds(name)}
        senses = {word: [one for one in synsets if one in shown] or synsets for word, synsets in self.things}
        things = [f"{word} ({', '.join(some[:SAID])}{', …' * (len(some) > SAID)})" for word, some in senses.items()]
        parts = [f"that show {' and '.join(things)}"] if things else []
        parts += [f"that are {' and '.join(self.colours)} in the middle"] if self.colours else []
        left = f"; not searched: {', '.join(self.left)}" if self.left else ""
        order = ", the most probable first" if things and len(found) > 1 else ""
        return f"Images {' and '.join(parts)}{order}{left}"


def showing(
    run: RunRecord, stage: str, text: str, columns: Sequence[str] = (), where: str | None = None, seconds: float = 60.0
) -> tuple[SlicePage | None, str]:
    """(of the first 1,000 rows at a stage that show what a text names, found within some seconds, those without a
    tombstone; what was searched). None, and why, if it names nothing. A thing that no row shows is left out if
    another is shown."""
    asked = words(run, stage, text)
    if isinstance(asked, str):
        return None, asked
    dead = tombstones.load(run.storage)

    def page_of(one: Words) -> SlicePage:
        own = (CONCEPTS, SHARE) if one.things else ()
        reader = SliceReader(run, Slice(stage, where=where, within=one), [*own, *tombstones.COLUMNS, *columns])
        page = reader.page("", MOST_ROWS, seconds)
        table = page.table.filter(pa.array(~dead.mask(page.table)))
        return replace(page, table=table.sort_by([(SHARE, "descending")]) if own else table)

    page = page_of(asked)
    if not len(page.table) and len(asked.things) > 1:
        held = tuple(one for one in asked.things if len(page_of(replace(asked, things=(one,), colours=())).table))
        if held and held != asked.things:
            lost = tuple(word for word, _ in asked.things if word not in dict(held))
            asked = replace(asked, things=held, left=(*asked.left, *lost))
            page = page_of(asked)
    return page, asked.said(page.table)


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
        remedy = "" if set(COLOURS).isdisjoint(left) else "; to search by colours, add a stage `image.appearance`"
        return f"WordNet knows no visible thing {text!r}{remedy}" if left else ""
    return Words(tuple(things.items()), tuple(colours), tuple(left))


def parsed(text: str, with_colours: bool = True) -> tuple[dict[str, tuple[str, ...]], list[str], list[str]]:
    """(things with their synsets, colours, other words) of a text. The longest phrase that is a noun of a visible thing
    counts. A colour is a colour, except at the end if it is a fruit first (an orange); it is one of the other words if
    there are no colours. Raises InputError without WordNet."""
    words = [OTHER_COLOURS.get(word, word) for word in normalised(text).split(" ") if word not in NOT_SHOWN]
    phrases = [[words[at:stop] for stop in range(min(at + LONGEST, len(words)), at, -1)] for at in range(len(words))]
    senses = noun_senses(sorted({" ".join(some) for of in phrases for some in of}))
    things: dict[str, tuple[str, ...]] = {}
    colours, left, at = list[str](), list[str](), 0
    while at < len(words):
        named = {" ".join(some): _things(some, senses[" ".join(some)], at == len(words) - 1) for some in phrases[at]}
        phrase = next((some for some, synsets in named.items() if synsets), words[at])
        if named[phrase]:
            things[phrase] = named[phrase]
        elif words[at] in COLOURS:
            (colours if with_colours else left).append(words[at])
        elif words[at] not in STOP_WORDS:
            left.append(words[at])
        at += len(phrase.split(" "))
    return things, colours, left


def _things(phrase: list[str], senses: list[tuple[str, str]], last: bool) -> tuple[str, ...]:
    """Synsets of visible things that a phrase names: none for numbers, and for colours unless the last word is a fruit
    first."""
    first = senses[0][0] if senses else "quantity"
    if first == "quantity" or STOP_WORDS.issuperset(phrase):
        return ()
    if STOP_WORDS.union(COLOURS).issuperset(phrase) and not (last and first == "food"):
        return ()
    return tuple(name for file, name in senses if file in THINGS)
