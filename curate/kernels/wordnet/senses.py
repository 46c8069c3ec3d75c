"""Reads WordNet's dict files (wndb(5WN), cntlist(5WN)) into senses: the synsets of each lemma, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from curate.kernels.wordnet.database import LEXNAMES

PARTS = {"n": "noun", "v": "verb"}
"""Parts of speech of concepts and actions, and their files."""
_SENSE_TYPE = {"n": b"1", "v": b"2"}

SUFFIXES = {
    "n": (
        ("s", ""),
        ("ses", "s"),
        ("ves", "f"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "v": (
        ("s", ""),
        ("ies", "y"),
        ("es", "e"),
        ("es", ""),
        ("ed", "e"),
        ("ed", ""),
        ("ing", "e"),
        ("ing", ""),
    ),
}
"""Endings of inflected forms and of their lemmas, by morphy(7WN), in nltk's order."""
_BY_LAST_LETTER = {
    part: {letter: [rule for rule in rules if rule[0][-1] == letter] for letter in {old[-1] for old, _ in rules}}
    for part, rules in SUFFIXES.items()
}


class Sense(NamedTuple):
    synset: str
    """nltk's name: first lemma, part of speech, number among that lemma's senses (`ice_cream.n.01`)."""
    lexname: str
    """Its lexicographer file, such as noun.artifact."""
    uses: int
    """Count of the lemma with this sense in WordNet's tagged texts."""
    small: bool
    """Whether this sense spells the lemma without capitals."""
    named: bool
    """Whether it is a named entity: an instance of its hypernym, spelt with a capital."""
    offset: bytes = b""
    """Of its synset, in the data file of its part of speech."""
    verbs: tuple[bytes, ...] = ()
    """Offsets of the verb synsets that it is derived from (pointer `+`)."""


@dataclass(frozen=True)
class Senses:
    """All lemmas of one part of speech."""

    part: str
    of: dict[str, tuple[Sense, ...]]
    """Lemma (lower case, `_` between words) -> its senses, in WordNet's order."""
    irregular: dict[str, list[str]]
    """Irregular forms -> their lemmas."""

    def lemmas_of(self, form: str) -> list[str]:
        """Possible lemmas of a form, the form itself first, like nltk's `_morphy`."""
        if form in self.irregular:
            found = self.irregular[form]
        else:
            rules = _BY_LAST_LETTER[self.part].get(form[-1:], ())
            found = [form[: -len(old)] + new for old, new in rules if form.endswith(old)]
        return [lemma for lemma in dict.fromkeys([form, *found]) if lemma in self.of]

    def is_bare_possessive(self, form: str) -> bool:
        """Whether a form is the possessive of an irregular plural without its apostrophe: `womens`."""
        plural = form[:-1]
        if self.part != "n" or form[-1:] != "s" or plural[-1:] == "s":
            return False
        return plural in self.irregular or (plural.endswith("men") and f"{plural[:-3]}man" in self.of)

    def forms(self) -> dict[str, list[str]]:
        """Every form and its lemmas, by `lemmas_of` with two exceptions: `womens` (`is_bare_possessive`) is a form of
        `woman`, and verbs do not get an -es that English does not spell (`spines` of spin, `capes` of cap)."""
        known = {*self.of, *self.irregular}
        for old, new in SUFFIXES[self.part]:
            known |= {lemma[: len(lemma) - len(new)] + old for lemma in self.of if lemma.endswith(new)}
        answers = {form: self.lemmas_of(form) for form in known}
        answers |= {f"{form}s": lemmas for form, lemmas in answers.items() if self.is_bare_possessive(f"{form}s")}
        if self.part == "v":
            answers = {
                form: [lemma for lemma in found if not _misspelt(form, lemma)] for form, found in answers.items()
            }
        return {form: lemmas for form, lemmas in answers.items() if lemmas}


def _misspelt(form: str, lemma: str) -> bool:
    return form == f"{lemma}es" and lemma[-1] not in "sxzho"


class _Synset(NamedTuple):
    words: list[bytes]
    lex_ids: list[int]
    lexname: int
    instance: bool
    verbs: tuple[bytes, ...]
    hypernyms: tuple[bytes, ...]
    """Offsets, those of an instance too."""


def senses(part: str, read: Callable[[str], bytes]) -> Senses:
    """All senses of a part of speech ("n", "v"); `read` returns a file by name."""
    synsets, offsets, names = _named(part, read)
    counts = _counts(read("cntlist.rev"), _SENSE_TYPE[part])
    of = {}
    for lemma, listed in offsets.items():
        of[lemma.decode()] = tuple(_sense(lemma, names, offset, synsets[offset], counts) for offset in listed)
    irregular = {}
    for line in read(f"{PARTS[part]}.exc").decode().splitlines():
        form, *lemmas = line.split()
        irregular[form] = lemmas
    return Senses(part, of, irregular)


def hypernyms(read: Callable[[str], bytes]) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """(name of each noun synset by its offset, names of its direct hypernyms by its name)."""
    synsets, _, names = _named("n", read)
    above = {names[offset]: tuple(names[other] for other in synset.hypernyms) for offset, synset in synsets.items()}
    return {offset.decode(): name for offset, name in names.items()}, above


def _named(
    part: str, read: Callable[[str], bytes]
) -> tuple[dict[bytes, _Synset], dict[bytes, list[bytes]], dict[bytes, str]]:
    """(synsets by offset, offsets of each lemma, nltk's name by offset)."""
    synsets = dict(_synsets(read(f"data.{PARTS[part]}")))
    offsets = dict(_index(read(f"index.{PARTS[part]}")))
    place = {(lemma, offset): n + 1 for lemma, listed in offsets.items() for n, offset in enumerate(listed)}
    names = {}
    for offset, synset in synsets.items():
        first = synset.words[0].lower()
        names[offset] = f"{first.decode()}.{part}.{place[first, offset]:02d}"
    return synsets, offsets, names


def other_counts(read: Callable[[str], bytes]) -> dict[str, int]:
    """Lemma -> count of its most frequent sense as an adjective or adverb, if tagged."""
    found: dict[str, int] = {}
    for kind in (b"3", b"4", b"5"):
        for (lemma, _, _), count in _counts(read("cntlist.rev"), kind).items():
            found[lemma.decode()] = max(count, found.get(lemma.decode(), 0))
    return found


def _sense(
    lemma: bytes, names: dict[bytes, str], offset: bytes, synset: _Synset, counts: dict[tuple[bytes, int, int], int]
) -> Sense:
    same = [index for index, word in enumerate(synset.words) if word.lower() == lemma]
    count = max(counts.get((lemma, synset.lexname, synset.lex_ids[index]), 0) for index in same)
    small = any(synset.words[index] == lemma for index in same)
    named = synset.instance and not small
    return Sense(names[offset], _file(synset), count, small, named, offset, synset.verbs)


def _file(synset: _Synset) -> str:
    """Lexicographer file. `noun.Tops` has the roots of the others: animal.n.01 counts as noun.animal."""
    name = LEXNAMES[synset.lexname]
    roots = (f"noun.{word.decode()}" for word in synset.words if name == "noun.Tops")
    return next((root for root in roots if root in LEXNAMES), name)


def _synsets(data: bytes) -> list[tuple[bytes, _Synset]]:
    found = []
    for line in data.splitlines():
        fields = line.partition(b"|")[0].split()
        stop = 4 + 2 * int(fields[3], 16)
        lex_ids = [int(value, 16) for value in fields[5:stop:2]]
        pointers = fields[stop:]
        verbs = dict.fromkeys(
            pointers[at + 1] for at, sign in enumerate(pointers) if sign == b"+" and pointers[at + 2] == b"v"
        )
        above = tuple(pointers[at + 1] for at, sign in enumerate(pointers) if sign in (b"@", b"@i"))
        words, instance = fields[4:stop:2], b"@i" in pointers
        found.append((fields[0], _Synset(words, lex_ids, int(fields[1]), instance, tuple(verbs), above)))
    return found


def _index(data: bytes) -> list[tuple[bytes, list[bytes]]]:
    """(lemma, offsets of its synsets, the last fields of a line)."""
    rows = [line.split() for line in data.splitlines()]
    return [(fields[0], fields[-int(fields[2]) :]) for fields in rows]


def _counts(data: bytes, kind: bytes) -> dict[tuple[bytes, int, int], int]:
    """(lemma, lexicographer file, lex_id) -> count in tagged texts, summed over the heads of satellites."""
    found: dict[tuple[bytes, int, int], int] = {}
    for line in data.splitlines():
        key, _, count = line.split()
        lemma, _, sense = key.partition(b"%")
        if sense.startswith(kind):
            _, file, lex_id, _, _ = sense.split(b":")
            place = lemma, int(file), int(lex_id)
            found[place] = found.get(place, 0) + int(count)
    return found
