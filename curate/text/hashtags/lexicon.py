"""WordNet's lexicon for the words of tags: known words, their frequencies and their synsets."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import SUFFIXES
from curate.text.phrases import normalised_all
from curate.text.stopwords import STOP_WORDS
from curate.text.wordnet import synsets

Kind = Literal["noun", "action"]
_PART = {"noun": "n", "action": "v"}
_PARTS = ("", "n", "v")
_LEAST_LETTERS = 3
"""Shorter words would fit into any tag, except stop words (`of`, `in`)."""
_FUNCTION_WORDS = "the of and in at on to for from with by my"
"""Missing from WordNet; we give them the weight of its commonest words."""


@dataclass(frozen=True)
class Reading:
    kind: Kind
    synset: str


@dataclass(frozen=True)
class Lexicon:
    nouns: Mapping[str, str]
    """Form (normalised) -> synset, of single words and phrases."""
    verbs: Mapping[str, str]
    part: Mapping[str, str]
    """Form -> n, v, or the empty string for an adjective or adverb, by `synsets.as_thing`."""
    weights: Mapping[str, float]
    """Single word -> frequency."""
    lemmas_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Synset -> its lemmas, normalised, in WordNet's order."""
    verbs_named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Verb lemma -> the synsets that it names."""
    deeds: Mapping[str, str] = field(default_factory=dict)
    """Form -> the verb's synset that its first noun sense is derived from (`hug`: hug.v.01)."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Synset -> its lexicographer file; "" for a named entity (Paris)."""

    def knows(self, phrase: str) -> bool:
        return phrase in self.part

    def reading(self, phrase: str) -> Reading | None:
        """The reading of a word or phrase as a whole; None if it is neither noun nor verb, or mainly an adjective. If
        it is both noun and verb, `synsets.as_thing` decides, because people tag things."""
        phrase = self._spelling(phrase)
        part = self.part.get(phrase)
        if part == "n":
            return Reading("noun", self.nouns[phrase])
        return Reading("action", self.verbs[phrase]) if part == "v" else None

    def _spelling(self, phrase: str) -> str:
        """`color` for `colour` and `colours`: the more frequent of two lemmas of a synset that are one letter apart.

        WordNet's tagged texts are American, so that its counts for British spellings are too low.
        """
        for base in self.lemmas_of.get(self.nouns.get(phrase, ""), ()):
            if inflects(phrase, base, "noun"):
                for lemma in self.lemmas_of[self.nouns[phrase]]:
                    more = self.weights.get(lemma, 0) > self.weights.get(base, 0)
                    if (
                        more
                        and one_edit_apart(base, lemma)
                        and base in self.lemmas_of.get(self.nouns.get(lemma, ""), ())
                    ):
                        return lemma
        return phrase

    def names(self, reading: Reading) -> list[str]:
        """Lemmas that name a synset; its own name (`form.n.03`) if there are none."""
        lemmas = self.lemmas_of.get(reading.synset, ())
        if reading.kind == "noun":
            found = [lemma for lemma in lemmas if self.nouns.get(lemma) == reading.synset]
        else:
            found = [lemma for lemma in lemmas if reading.synset in self.verbs_named.get(lemma, ())]
        return found or [reading.synset]


def inflects(form: str, lemma: str, kind: Kind) -> bool:
    """Whether a form is the lemma or one of its regular inflections; a verb's last letter may be doubled."""
    rules = SUFFIXES[_PART[kind]]
    if form == lemma or any(form.endswith(old) and form[: -len(old)] + new == lemma for old, new in rules):
        return True
    return kind == "action" and form in (f"{lemma}{lemma[-1:]}ing", f"{lemma}{lemma[-1:]}ed")


def one_edit_apart(a: str, b: str) -> bool:
    """Whether a and b differ by one letter (added, removed or replaced) or by two swapped neighbours."""
    if len(a) > len(b):
        a, b = b, a
    if a == b or len(b) - len(a) > 1:
        return False
    at = next((i for i, letter in enumerate(a) if letter != b[i]), len(a))
    if len(a) < len(b):
        return a[at:] == b[at + 1 :]
    return a[at + 1 :] == b[at + 1 :] or (a[at : at + 2] == b[at : at + 2][::-1] and a[at + 2 :] == b[at + 2 :])


def wordnet_lexicon() -> Lexicon:
    """The lexicon of all of WordNet, including names of places and people. Raises InputError if it is not available."""
    return _lexicon(database.identity())


@functools.lru_cache(maxsize=1)
@database.well_formed()
def _lexicon(_: str) -> Lexicon:
    table = synsets.table()
    forms = table.column("form").to_pylist()
    firsts = [_first_senses(forms, table.column(kind).combine_chunks()) for kind in ("noun", "verb")]
    nouns, verbs = ({form: synset for form, (_, synset, *_) in first.items()} for first in firsts)
    files = dict(_files(table))
    weights = {form: 0.3 for form in forms if form.isalpha() and len(form) > _LEAST_LETTERS}
    for lemma, count in _lemma_counts().items():
        if lemma.isalpha() and (len(lemma) >= _LEAST_LETTERS or lemma in STOP_WORDS):
            weights[lemma] = 0.5 + count
    part = dict(zip(forms, map(_PARTS.__getitem__, table.column("thing").to_pylist()), strict=True))
    deeds = {form: deed for form, deed in zip(forms, table.column("deed").to_pylist(), strict=True) if deed}
    lemmas = dict(chain(_lemmas("noun"), _lemmas("verb")))
    weights |= dict.fromkeys(_FUNCTION_WORDS.split(), 1e3)
    return Lexicon(nouns, verbs, part, weights, lemmas, _verbs_named(nouns, verbs, deeds, lemmas), deeds, files)


def _files(table: pa.Table) -> Iterator[tuple[str, str]]:
    """(synset, its lexicographer file, "" for a named entity)."""
    for kind in ("noun", "verb"):
        for label in table.column(kind).combine_chunks().values.dictionary.to_pylist():
            file, synset, *named = label.split(" ")
            yield synset, "" if named else file


def _verbs_named(
    nouns: Mapping[str, str],
    verbs: Mapping[str, str],
    deeds: Mapping[str, str],
    lemmas_of: Mapping[str, tuple[str, ...]],
) -> dict[str, frozenset[str]]:
    """Verb lemma -> the synsets that it names: its first reading, and those of its gerund and of its noun if they are
    deeds.

    So `cook` names cook.v.01 and that of `cooking`, cook.v.02, and they are one tag. `race` names that of `racing`
    only, because its first reading has another name, `rush`.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    gerunds = {form: synset for form, synset in verbs.items() if form.endswith("ing") and form in nouns}
    for form, synset in chain(gerunds.items(), deeds.items()):
        for lemma in lemmas_of.get(synset, ()):
            if inflects(form, lemma, "action"):
                found[lemma].add(synset)
    for form, synset in verbs.items():
        if form in lemmas_of.get(synset, ()) and (form not in found or synset.startswith(f"{form.replace(' ', '_')}.")):
            found[form].add(synset)
    return {lemma: frozenset(synsets) for lemma, synsets in found.items()}


def _first_senses(forms: list[str], column: pa.ListArray) -> dict[str, list[str]]:
    """Form -> (lexicographer file, synset, ...) of its first sense, for forms with a sense."""
    with_sense = np.flatnonzero(pc.list_value_length(column).to_numpy() > 0)
    labels = [label.split(" ") for label in column.values.dictionary.to_pylist()]
    codes = column.values.indices.to_numpy()[column.offsets.to_numpy()[with_sense]]
    return {forms[row]: labels[code] for row, code in zip(with_sense.tolist(), codes.tolist(), strict=True)}


def _lemma_counts() -> dict[str, int]:
    """Lemma -> its count in WordNet's tagged texts, over all senses."""
    counts = {
        line.partition(b" ")[0].decode(): 0
        for part in ("noun", "verb", "adj", "adv")
        for line in database.read(f"index.{part}").splitlines()
    }
    for line in database.read("cntlist.rev").splitlines():
        key, _, count = line.split()
        lemma = key.partition(b"%")[0].decode()
        if lemma in counts:
            counts[lemma] += int(count)
    return counts


def _lemmas(kind: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, normalised lemmas) of every synset of a part of speech, wndb(5WN)."""
    places: dict[tuple[bytes, bytes], int] = {}
    for line in database.read(f"index.{kind}").splitlines():
        fields = line.split()
        places |= {(fields[0], offset): n + 1 for n, offset in enumerate(fields[-int(fields[2]) :])}
    names, lemmas = [], []
    for line in database.read(f"data.{kind}").splitlines():
        fields = line.partition(b"|")[0].split()
        words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        first = words[0].lower()
        names.append(f"{first.decode()}.{kind[0]}.{places[first, fields[0]]:02d}")
        lemmas.append([word.decode() for word in words])
    plain = iter(normalised_all([lemma for listed in lemmas for lemma in listed]))
    for name, listed in zip(names, lemmas, strict=True):
        yield name, tuple(dict.fromkeys(next(plain) for _ in listed))
