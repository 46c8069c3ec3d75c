"""Maps surface forms to synsets by a table compiled once from WordNet, so that texts are matched at memory speed.

Every form that nltk's morphy maps to a lemma of a noun or a verb (lemmas, regular and irregular inflections) becomes a
phrase with at most one noun synset and one verb synset:

1. Lemmas of a form are in nltk's order, the form itself first. Exception: a form that is both a lemma (`men`: work
   force, `eyes`: opinion) and an inflection of another lemma (`man`, `eye`) takes the other lemma first if that is
   INFLECTED times as frequent in WordNet's tagged texts. `womens` and `mens`, which web texts use for `women's`, are
   forms of `women` and `men`. `spines` is not a form of the verb `spin`, although morphy maps it there.
2. Senses of each lemma are ordered by frequency in these texts, then by WordNet's order. If that order begins with a
   named entity (an instance, spelt with a capital: Paris, not the sun) and most senses are not named, senses without a
   capital precede equally frequent ones: `bikini` is not an atoll, but `smith` is usually a surname. Apart from names
   and rules 1 and 5, the first sense of the first lemma is nltk's.
3. A sense counts if its lexicographer file was selected and it is not a named entity (unless `instances` is set).
   `first` considers the first sense only; `first_visual` takes the first sense that counts.
4. `ambiguous` chooses among several parts of speech. `thing`: captions and tags name more things than WordNet's tagged
   novels and news, so that the noun wins if it is a thing (`bear`, `building`), even if the verb or adjective is more
   frequent, by up to RARER times (see `as_thing`). `frequent`: the part of speech whose first sense is tagged most
   often (ties: noun, then verb); `white` is an adjective, neither concept nor action. Otherwise noun and verb both
   count, or always the noun, or always the verb.
5. A gerund that has become a noun (`racing`: racing.n.01) means the verb that this noun is derived from (race.v.02, to
   compete), not its verb's first sense (rush.v.01), unless that one is tagged RARER times as often (`sitting`).

Not forms: stop words, also several (`has been`), single characters, numbers, possessives (`men's` is a room) and
phrases that begin with an article (`a line` is a skirt). Phrases of several words match as a whole even if none of
their synsets counts: `black market` is not a market.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.core.errors import StorageError
from curate.core.hashing import digest, digest_bytes
from curate.core.store.cache import cache_folder, locked
from curate.core.store.storage import Storage
from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import Sense, Senses, other_counts, senses
from curate.text.phrases import Phrases, normalised, normalised_all
from curate.text.stopwords import STOP_WORDS

INFLECTED = 5
"""Rule 1: least ratio of the other lemma's uses to one plus the form's own uses. `glasses` stays spectacles (4 : 22)
and `cola` a plant (0 : 2); `arms` become limbs (11 : 104)."""

_DEEDS_TEXT = "noun.act noun.attribute noun.cognition noun.feeling noun.motive noun.process noun.relation noun.state"
_DEEDS = frozenset(_DEEDS_TEXT.split())
"""Files of nouns that are not things: `swimming`, `love`."""
_PLAIN = frozenset({"noun.animal", "noun.food", "noun.location", "noun.plant"})
"""Files of nouns that win over adjectives: `orange`, `home`, `feline`."""
RARER = {"v": 16, "": 5}
"""Rule 4: largest ratio of the verb's or adjective's uses to one plus the noun's uses. `watch` (9 : 77), `bear`
(1 : 23) and `orange` (4 : 7) stay things; `come` (0 : 276) and `stand` (4 : 169) become verbs, `simple` (0 : 56, a
plant) and `nice` (0 : 23, a city) adjectives."""

_PART = {"": 0, "n": 1, "v": 2}
_ARTICLES = ("a", "an", "the")
_SOURCES = ("synsets.py", "../../kernels/wordnet/senses.py", "../phrases.py", "../stopwords.py")
_CODE = digest_bytes((Path(__file__).parent / name).read_bytes() for name in _SOURCES)
"""Read on import, so that a table is never stored under the digest of newer code."""
TABLES = 4
"""Tables that the cache keeps, the newest, one per version of the code or of WordNet; 13 MB each."""


Ambiguous = Literal["thing", "frequent", "both", "noun", "verb"]


@dataclass(frozen=True)
class Rules:
    """Rules that choose the synset of a form."""

    nouns: tuple[str, ...]
    """Lexicographer files, such as noun.animal."""
    verbs: tuple[str, ...]
    sense: Literal["first", "first_visual"] = "first"
    instances: bool = False
    ambiguous: Ambiguous = "thing"


class Synsets:
    """Finds synsets in texts. Names are sorted, ids are indices into them. Raises InputError."""

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
        """(m,) each, per greedy longest match: index of the text, id of the noun synset, id of the verb synset (-1 for
        none)."""
        rows, found = self._phrases.find(texts)
        return rows, self._noun_of[found], self._verb_of[found]

    @cached_property
    def _place(self) -> dict[str, int]:
        return {form: index for index, form in enumerate(self._forms)}

    def lookup(self, word: str) -> tuple[str | None, str | None]:
        """Noun synset and verb synset of a word or phrase as a whole; None for a missing one."""
        index = self._place.get(normalised(word))
        if index is None:
            return None, None
        noun, verb = int(self._noun[index]), int(self._verb[index])
        return self.nouns[noun] if noun >= 0 else None, self.verbs[verb] if verb >= 0 else None


def noun_senses(phrases: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Phrase, normalised -> (lexicographer file, synset) of each noun that it may name, in any inflection, the most
    frequent first, without named entities. Raises InputError without WordNet."""
    known, found = _table(database.identity()), dict[str, list[tuple[str, str]]]()
    places = pc.index_in(pa.array(phrases, pa.string()), value_set=known.column("form")).to_pylist()
    for phrase, place in zip(phrases, places, strict=True):
        labels = [] if place is None else [label.split(" ") for label in known.column("noun")[place].as_py()]
        found[phrase] = [(file.removeprefix("noun."), name) for file, name, *named in labels if not named]
    return found


@lru_cache(maxsize=1)
def _table(identity: str) -> pa.Table:
    return table()


def _chosen(column: pa.ChunkedArray, files: Sequence[str], rules: Rules) -> tuple[list[str], NDArray[np.int32]]:
    """Sorted names of synsets, and the id (n,) of each form's synset by rule 3; -1 for none."""
    lists = column.combine_chunks()
    labels = [label.split(" ") for label in lists.values.dictionary.to_pylist()]
    counts = np.array([file in files and (rules.instances or not named) for file, _, *named in labels], dtype=bool)
    sense, start, stop = lists.values.indices.to_numpy(), lists.offsets[:-1].to_numpy(), lists.offsets[1:].to_numpy()
    fitting = np.append(np.flatnonzero(counts[sense]), len(sense))
    first = fitting[np.searchsorted(fitting, start)]
    counted = (first == start) & (start < stop) if rules.sense == "first" else first < stop
    found = sense[first[counted]]
    names = sorted({labels[index][1] for index in np.unique(found).tolist()})
    ids = {name: index for index, name in enumerate(names)}
    out = np.full(len(lists), -1, dtype=np.int32)
    out[counted] = np.array([ids.get(name, -1) for _, name, *_ in labels], dtype=np.int32)[found]
    return names, out


def _decided(
    noun: NDArray[np.int32], verb: NDArray[np.int32], known: pa.Table, rules: Rules
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids (n,) after the choice between parts of speech by rule 4."""
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
    """A row per form: `form` (normalised), `noun` and `verb` (its senses in order: lexicographer file, synset and, for
    a named entity, `named`), `part` (0: neither, 1: noun, 2: verb, by frequency), `thing` (the same with preference
    for things), `deed` (the verb synset that its first noun sense is derived from). Read from the cache, after
    compiling it there in some seconds."""
    name = digest([database.identity(), _CODE, unicodedata.unidata_version])
    file = cache_folder("synsets") / f"{name}.arrow"
    kept = _kept(file)
    if kept is not None:
        return kept
    try:
        with locked(file.parent):
            kept = _kept(file)  # another process may have compiled it in the meantime
            if kept is None:
                kept = compiled(database.read)
                _publish(kept, file)
    except (OSError, StorageError):  # cache not writable: compile in each process
        kept = compiled(database.read) if kept is None else kept
    return kept


def _kept(file: Path) -> pa.Table | None:
    """None if the file is missing or corrupt (a full disk, a power cut); the caller compiles it."""
    try:
        with pa.memory_map(str(file)) as source:
            return pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowInvalid):
        return None


def _publish(table: pa.Table, file: Path) -> None:
    with Storage(str(file.parent)).publish(file.name) as aside, pa.ipc.new_file(str(aside), table.schema) as writer:
        writer.write_table(table)
    for old in sorted(file.parent.glob("*.arrow"), key=lambda path: path.stat().st_mtime_ns)[:-TABLES]:
        old.unlink()  # processes that have mapped it keep their mapping


@database.well_formed()
def compiled(read: Callable[[str], bytes]) -> pa.Table:
    """The table for WordNet's files; `read` returns a file by name."""
    lemmas = senses("v", read)
    nouns, verbs = senses_by_form(senses("n", read)), senses_by_form(lemmas)
    adjectives = other_counts(read)
    others = dict(zip(normalised_all(list(adjectives)), adjectives.values(), strict=True))
    forms = [form for form in sorted(nouns.keys() | verbs.keys()) if is_form(form)]
    parts, things, deeds = [], [], []
    for form in forms:
        noun, verb = (listed[form][0] if form in listed else None for listed in (nouns, verbs))
        parts.append(_PART[most_often(noun, verb, others.get(form, 0))])
        things.append(_PART[as_thing(form, noun, verb, others.get(form, 0))])
        deed = derived(noun, verbs[form]) if noun and verb else None
        deeds.append(deed.synset if deed else None)
        if noun and deed and things[-1] == _PART["v"] and form.endswith("ing") and form not in lemmas.of:
            verbs[form] = gerund_first(form, noun, deed, verbs[form])
    columns = {"noun": _lists(forms, nouns), "verb": _lists(forms, verbs)}
    choices = {"part": pa.array(parts, pa.int8()), "thing": pa.array(things, pa.int8())}
    return pa.table({"form": forms, **columns, **choices, "deed": pa.array(deeds, pa.string())})


def most_often(noun: Sense | None, verb: Sense | None, other: int) -> str:
    """Most frequent part of speech of a form (n, v or the empty string), by its first senses and its uses as another
    part of speech."""
    nouns, verbs = (-1 if sense is None else sense.uses for sense in (noun, verb))
    return "" if other > max(nouns, verbs) else "n" if nouns >= verbs else "v"


def as_thing(form: str, noun: Sense | None, verb: Sense | None, other: int) -> str:
    """Part of speech of a form in captions and tags: n, v or the empty string.

    The noun if it is a thing. If the noun is a person (`cook`) or a named entity (`Tours`), or if the form is far more
    frequent as another part of speech, the most frequent part of speech. If the noun is an activity or a state: the
    verb for forms in -ing (`swimming`), otherwise the more frequent one (`love`). A form that is mainly an adjective or
    adverb is neither, except for animals, food, plants and places (`orange`).
    """
    part = most_often(noun, verb, other)
    if noun is None or part == "n":
        return "v" if noun and verb and noun.lexname in _DEEDS and form.endswith("ing") else part
    rarer = (verb.uses if part == "v" and verb else other) > RARER[part] * (noun.uses + 1)
    if rarer or (part == "v" and (noun.named or noun.lexname == "noun.person")):
        return part
    kept = noun.lexname in _PLAIN if part == "" else noun.lexname not in _DEEDS
    return "n" if kept else part


def derived(noun: Sense, verbs: Sequence[Sense]) -> Sense | None:
    """Which of a form's verb senses its noun sense is derived from (`dance`, an act: dance.v.02, to move in a pattern):
    the most frequent one, ties in WordNet's order."""
    found = [sense for sense in verbs if sense.offset in noun.verbs]
    return min(found, key=lambda sense: (-sense.uses, noun.verbs.index(sense.offset)), default=None)


def gerund_first(form: str, noun: Sense, deed: Sense, verbs: list[Sense]) -> list[Sense]:
    """The verb senses of a gerund by rule 5."""
    own = noun.synset.rsplit(".", 2)[0] == form.replace(" ", "_")
    if not own or verbs[0].uses > RARER["v"] * (deed.uses + 1):
        return verbs
    return [deed, *(sense for sense in verbs if sense != deed)]


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
    """Whether a normalised form may have a synset."""
    words = form.split(" ")
    if words[0] in _ARTICLES or STOP_WORDS.issuperset(words):
        return False
    return any(len(word) > 1 for word in words) and not all(word.isdigit() for word in words)


def senses_by_form(known: Senses) -> dict[str, list[Sense]]:
    """Normalised form -> its senses by rules 1 and 2. Among forms with the same normalised form (`t-shirt`, `t_shirt`),
    the one with `_` between its words counts, then the one with the most frequent sense, then the first
    alphabetically."""
    found: dict[str, tuple[tuple[bool, int], list[Sense]]] = {}
    forms = known.forms()
    listed = sorted(forms)
    for form, plain in zip(listed, normalised_all(listed), strict=True):
        if plain and not form.endswith("'s"):
            ranked = senses_in_order(known, form, forms[form])
            rank = form.replace("_", " ") == plain, ranked[0].uses
            if plain not in found or rank > found[plain][0]:
                found[plain] = rank, ranked
    return {plain: ranked for plain, (_, ranked) in found.items()}


def senses_in_order(known: Senses, form: str, lemmas: list[str]) -> list[Sense]:
    """The senses of a form with these lemmas (`Senses.lemmas_of`), in order."""
    if known.is_bare_possessive(form):
        return senses_in_order(known, form[:-1], lemmas)
    if lemmas[0] == form and len(lemmas) > 1:
        own, other = (max(sense.uses for sense in known.of[lemma]) for lemma in lemmas[:2])
        if other > INFLECTED * (own + 1):
            lemmas = [*lemmas[1:], form]
    return [sense for lemma in lemmas for sense in _by_frequency(known.of[lemma])]


def _by_frequency(listed: tuple[Sense, ...]) -> Sequence[Sense]:
    if len(listed) == 1:
        return listed
    capitals_last = listed[0].named and 2 * sum(sense.named for sense in listed) <= len(listed)
    return sorted(listed, key=lambda sense: (-sense.uses, capitals_last and not sense.small))
