"""Surface forms -> synsets, compiled once from WordNet and kept as a table, so that texts are matched at memory speed.

Every form that nltk's morphy maps to a lemma of a noun or a verb (lemmas themselves, regular and irregular inflections)
becomes a phrase with at most one noun synset and one verb synset:

1. Lemmas of a form in nltk's order, the form itself first; but a form that is itself a lemma (`men`: work force,
   `eyes`: opinion) gives way to what it is an inflection of (`man`, `eye`) where WordNet's tagged texts have that
   INFLECTED times as often. `womens` and `mens`, which web texts write for `women's`, are forms of `women` and `men`;
   `spines` is none of the verb `spin`, as morphy has it.
2. Senses of each lemma by how often these texts have them, then in WordNet's order; but where that begins with a name
   (an instance, spelt with a capital: Paris, not the sun) what is spelt without a capital goes before what is as
   frequent, if names are not the majority: `bikini` is no atoll, but `smith` is more often somebody. The first of the
   first lemma is nltk's first but for names and 1.
3. A sense counts if it is in one of the lexicographer files asked for, and if it has no name, unless instances are
   asked for. `first` looks at the first sense only; with `first_visual` the first sense that counts is taken.
4. A form that can be several parts of speech is one of them, by `ambiguous`. `thing`: captions and tags name things
   more than WordNet's tagged novels and news do, so that it is the noun if that is one (`bear`, `building`), though the
   verb or adjective be more frequent, by up to RARER times; see `as_thing`. `frequent`: the one whose first sense is
   tagged most often (equal: noun, then verb): `white` is an adjective, and so neither concept nor action. Or it is a
   noun and a verb, always a noun, or always a verb.

Stop words, also several (`has been`), single characters, bare numbers, possessives (`men's` is a room) and what begins
with an article (`a line` is a skirt) are no forms. Phrases of several words are matched whole even if they then have no
synset that counts: `black market` is no market.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.hashing import digest, digest_bytes
from curate.core.store.cache import cache_folder
from curate.text.phrases import Phrases, normalised, normalised_all
from curate.text.stopwords import STOP_WORDS
from curate.text.wordnet import database as wordnet
from curate.text.wordnet.senses import Sense, Senses, other_counts, senses

INFLECTED = 5
"""See 1. above: so much more often than the form's own sense, of which one more is counted than there are. Keeps
`glasses` spectacles (4 : 22) and `cola` a plant (0 : 2), makes `arms` limbs (11 : 104)."""

_DEEDS_TEXT = "noun.act noun.attribute noun.cognition noun.feeling noun.motive noun.process noun.relation noun.state"
_DEEDS = frozenset(_DEEDS_TEXT.split())
"""Files of nouns that name no thing: `swimming`, `love`."""
_PLAIN = frozenset({"noun.animal", "noun.food", "noun.location", "noun.plant"})
"""Files of nouns that are meant even if the word is an adjective elsewhere: `orange`, `home`, `feline`."""
RARER = {"v": 16, "": 5}
"""See 4. above: so much more frequent than the thing, of which one more is counted than there are, may the verb or the
adjective be. Keeps `watch` (9 : 77), `bear` (1 : 23) and `orange` (4 : 7) things; makes `come` (0 : 276) and `stand`
(4 : 169) verbs, `simple` (0 : 56, a plant) and `nice` (0 : 23, a city) adjectives."""

_PART = {"": 0, "n": 1, "v": 2}
_ARTICLES = ("a", "an", "the")
_SOURCES = ("synsets.py", "senses.py", "../phrases.py", "../stopwords.py")
_CODE = digest_bytes((Path(__file__).parent / name).read_bytes() for name in _SOURCES)
"""Read when the code is, so that a table is never kept under the name of code that did not make it."""
TABLES = 4
"""Kept in the cache; 15 MB each."""


Ambiguous = Literal["thing", "frequent", "both", "noun", "verb"]


@dataclass(frozen=True)
class Rules:
    """Which of its synsets a form stands for."""

    nouns: tuple[str, ...]
    """Lexicographer files, such as noun.animal."""
    verbs: tuple[str, ...]
    sense: Literal["first", "first_visual"] = "first"
    instances: bool = False
    ambiguous: Ambiguous = "thing"


class Synsets:
    """Finds synsets in texts by a table of `table`; names are sorted, ids are places in them. Raises InputError."""

    def __init__(self, rules: Rules, known: pa.Table | None = None) -> None:
        known = table() if known is None else known
        self._forms: list[str] = known.column("form").to_pylist()
        self.nouns, self._noun = _chosen(known.column("noun"), rules.nouns, rules)
        self.verbs, self._verb = _chosen(known.column("verb"), rules.verbs, rules)
        noun, verb = _decided(self._noun, self._verb, known, rules)
        several = pc.match_substring(known.column("form"), " ").to_numpy()
        self._used = np.flatnonzero((noun >= 0) | (verb >= 0) | several)
        self._noun_of, self._verb_of = noun[self._used], verb[self._used]
        self._phrases = Phrases([self._forms[index] for index in self._used.tolist()], longest=True)

    def find(self, texts: pa.Array | Sequence[str | None]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """(m,) each: index of the text, id of the noun synset (-1: none), id of the verb synset, of every greedy
        longest match."""
        rows, found = self._phrases.find(texts)
        return rows, self._noun_of[found], self._verb_of[found]

    @cached_property
    def _place(self) -> dict[str, int]:
        return {form: index for index, form in enumerate(self._forms)}

    def lookup(self, word: str) -> tuple[str | None, str | None]:
        """Noun synset and verb synset that a word or phrase stands for, as a whole, both where it has both."""
        index = self._place.get(normalised(word))
        if index is None:
            return None, None
        noun, verb = int(self._noun[index]), int(self._verb[index])
        return self.nouns[noun] if noun >= 0 else None, self.verbs[verb] if verb >= 0 else None


def _chosen(column: pa.ChunkedArray, files: Sequence[str], rules: Rules) -> tuple[list[str], NDArray[np.int32]]:
    """Sorted names of synsets, and the id (n,) of that which each form stands for; -1 for none (3. above)."""
    lists = column.combine_chunks()
    labels = [label.split(" ") for label in lists.values.dictionary.to_pylist()]
    counts = np.array([file in files and (rules.instances or not named) for file, _, *named in labels], dtype=bool)
    sense, start, stop = lists.values.indices.to_numpy(), lists.offsets[:-1].to_numpy(), lists.offsets[1:].to_numpy()
    fitting = np.append(np.flatnonzero(counts[sense]), len(sense))
    first = fitting[np.searchsorted(fitting, start)]
    there = (first == start) & (start < stop) if rules.sense == "first" else first < stop
    found = sense[first[there]]
    names = sorted({labels[index][1] for index in np.unique(found).tolist()})
    ids = {name: index for index, name in enumerate(names)}
    out = np.full(len(lists), -1, dtype=np.int32)
    out[there] = np.array([ids.get(name, -1) for _, name, *_ in labels], dtype=np.int32)[found]
    return names, out


def _decided(
    noun: NDArray[np.int32], verb: NDArray[np.int32], known: pa.Table, rules: Rules
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids (n,) after the choice between parts of speech (4. above)."""
    if rules.ambiguous in ("frequent", "thing"):
        part = known.column("part" if rules.ambiguous == "frequent" else "thing").to_numpy()
        return np.where(part == _PART["n"], noun, -1), np.where(part == _PART["v"], verb, -1)
    if rules.ambiguous == "noun":
        return noun, np.where(noun >= 0, -1, verb)
    if rules.ambiguous == "verb":
        return np.where(verb >= 0, -1, noun), verb
    return noun, verb


# --- the table --------------------------------------------------------------------------------------------------------


def table() -> pa.Table:
    """A row per form: `form` (normalised), `noun` and `verb` (its senses in order, as lexicographer file, synset and,
    if it has a name, `named`), `part` (0: neither, 1: noun, 2: verb is what it is most often), `thing` (the same, but
    things first). From the cache; compiled there first, which takes seconds."""
    name = digest([wordnet.identity(), _CODE, unicodedata.unidata_version])
    file = cache_folder("synsets") / f"{name}.arrow"
    kept = _kept(file)
    if kept is not None:
        return kept
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with (file.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = _kept(file)
            if kept is None:  # no other process was quicker
                kept = compiled(wordnet.read)
                _publish(kept, file)
            return kept
    except OSError:  # a cache that cannot be written: compiled for each process
        return compiled(wordnet.read) if kept is None else kept


def _kept(file: Path) -> pa.Table | None:
    """None where there is no such file, or a broken one (a full disk, a power cut), which is then made again."""
    try:
        with pa.memory_map(str(file)) as source:
            kept = pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid):
        return None
    with contextlib.suppress(OSError):  # of somebody else
        os.utime(file)
    return kept


def _publish(made: pa.Table, file: Path) -> None:
    """Whole or not at all. Of other tables, those of another code or WordNet, the last used stay."""
    with tempfile.TemporaryDirectory(dir=file.parent) as aside:
        with open(f"{aside}/table", "wb") as sink:
            with pa.ipc.new_file(sink, made.schema) as writer:
                writer.write_table(made)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(f"{aside}/table", file)
    others = sorted(file.parent.glob("*.arrow"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in others[TABLES:]:  # a process that has mapped it keeps what it has
        path.unlink()


@wordnet.well_formed()
def compiled(read: Callable[[str], bytes]) -> pa.Table:
    """The table of WordNet's files, which `read` gives by name."""
    nouns, verbs = ordered(senses("n", read)), ordered(senses("v", read))
    adjectives = other_counts(read)
    others = dict(zip(normalised_all(list(adjectives)), adjectives.values(), strict=True))
    forms = [form for form in sorted(nouns.keys() | verbs.keys()) if is_form(form)]
    parts, things = [], []
    for form in forms:
        noun, verb = (listed[form][0] if form in listed else None for listed in (nouns, verbs))
        parts.append(_PART[most_often(noun, verb, others.get(form, 0))])
        things.append(_PART[as_thing(form, noun, verb, others.get(form, 0))])
    columns = {"noun": _lists(forms, nouns), "verb": _lists(forms, verbs)}
    choices = {"part": pa.array(parts, pa.int8()), "thing": pa.array(things, pa.int8())}
    return pa.table({"form": forms, **columns, **choices})


def most_often(noun: Sense | None, verb: Sense | None, other: int) -> str:
    """What a form is most often, by its first senses and how often it is tagged as another part of speech: n, v or the
    empty string."""
    nouns, verbs = (-1 if sense is None else sense.count for sense in (noun, verb))
    return "" if other > max(nouns, verbs) else "n" if nouns >= verbs else "v"


def as_thing(form: str, noun: Sense | None, verb: Sense | None, other: int) -> str:
    """What a form is where things are named: n, v or the empty string, of those that it can be.

    The noun if it names a thing; if that is somebody (`cook`) or has a name (`Tours`), or if the form is far more
    frequent as another part of speech, it is what it is most often. If the noun names what is done, the form is the
    verb where it ends in -ing (`swimming`), and else what is more frequent (`love`). What is an adjective or adverb
    first is neither, but for animals, food, plants and places (`orange`).
    """
    part = most_often(noun, verb, other)
    if noun is None or part == "n":
        return "v" if noun and verb and noun.lexname in _DEEDS and form.endswith("ing") else part
    rarer = (verb.count if part == "v" and verb else other) > RARER[part] * (noun.count + 1)
    if rarer or (part == "v" and (noun.named or noun.lexname == "noun.person")):
        return part
    kept = noun.lexname in _PLAIN if part == "" else noun.lexname not in _DEEDS
    return "n" if kept else part


def _lists(forms: list[str], known: dict[str, list[Sense]]) -> pa.ListArray:
    """list<dictionary<string>> (n,): labels of each form's senses."""
    labels: dict[str, int] = {}
    codes, offsets = [], [0]
    for form in forms:
        for sense in known.get(form, ()):
            label = f"{sense.lexname} {sense.synset}{' named' if sense.named else ''}"
            codes.append(labels.setdefault(label, len(labels)))
        offsets.append(len(codes))
    values = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(labels), pa.string()))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def is_form(form: str) -> bool:
    """Whether a normalised form may stand for anything."""
    words = form.split(" ")
    if words[0] in _ARTICLES or STOP_WORDS.issuperset(words):
        return False
    return any(len(word) > 1 for word in words) and not all(word.isdigit() for word in words)


def ordered(known: Senses) -> dict[str, list[Sense]]:
    """Normalised form -> its senses (1. and 2. above). Of forms that are the same once normalised (`t-shirt`,
    `t_shirt`) that with `_` between its words counts, then that of the most frequent sense, then the first by
    alphabet."""
    found: dict[str, tuple[tuple[bool, int], list[Sense]]] = {}
    forms = known.forms()
    listed = sorted(forms)
    for form, plain in zip(listed, normalised_all(listed), strict=True):
        if plain and not form.endswith("'s"):
            told = in_order(known, form, forms[form])
            rank = form.replace("_", " ") == plain, told[0].count
            if plain not in found or rank > found[plain][0]:
                found[plain] = rank, told
    return {plain: told for plain, (_, told) in found.items()}


def in_order(known: Senses, form: str, lemmas: list[str]) -> list[Sense]:
    """The senses of a form of these lemmas (`Senses.lemmas_of`)."""
    if known.cut(form):
        return in_order(known, form[:-1], lemmas)
    if lemmas[0] == form and len(lemmas) > 1:
        own, other = (max(sense.count for sense in known.of[lemma]) for lemma in lemmas[:2])
        if other > INFLECTED * (own + 1):
            lemmas = [*lemmas[1:], form]
    return [sense for lemma in lemmas for sense in _by_frequency(known.of[lemma])]


def _by_frequency(listed: tuple[Sense, ...]) -> Sequence[Sense]:
    if len(listed) == 1:
        return listed
    capitals_last = listed[0].named and 2 * sum(sense.named for sense in listed) <= len(listed)
    return sorted(listed, key=lambda sense: (-sense.count, capitals_last and not sense.small))
