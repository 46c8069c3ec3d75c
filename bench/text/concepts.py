"""WordNet's synsets in alt texts: `text.concepts` against nltk's own morphy and lookup, answers compared on all texts.

python -m bench.text.concepts [ALTERED]

The peer walks each text from left to right and asks `wn.synsets` for the longest run of words that is a noun or a verb,
trying no more words than any lemma has that begins with the same one; it takes the first synset, by the same filter of
lexicographer files, names and stop words. Both keep nouns and verbs (`ambiguous: both`): nltk does not choose between
them, so that the choice of the stage's default, `thing`, is not compared.
ALTERED: number of altered texts for the stage alone (default: 200,000; 0: none).
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.kit.measure import line, seconds
from bench.kit.texts import alt_texts, altered
from curate.core.contracts import Batch
from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import Senses, _misspelt, senses
from curate.text.phrases import normalised, normalised_all
from curate.text.wordnet import synsets
from curate.text.wordnet.concepts import VISUAL_NOUNS, VISUAL_VERBS, Concepts
from curate.text.wordnet.synsets import Rules, Synsets
from tests.text.wordnet.wordnets import for_nltk

NOUNS = tuple(f"noun.{name}" for name in VISUAL_NOUNS)
VERBS = tuple(f"verb.{name}" for name in VISUAL_VERBS)
RULES = Rules(NOUNS, VERBS, ambiguous="both")
Match = tuple[str, str | None, str | None]  # form, noun synset, verb synset
EXAMPLES = 6


class Peer:
    """Lookups in nltk's WordNet, word by word."""

    def __init__(self) -> None:
        import nltk
        from nltk.corpus.reader.wordnet import WordNetCorpusReader

        self._root = tempfile.TemporaryDirectory()  # nltk opens its files on demand
        nltk.data.path.insert(0, self._root.name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.wn: Any = WordNetCorpusReader(str(for_nltk(database.place(), Path(self._root.name))), None)
        names = {*self.wn.all_lemma_names("n"), *self.wn.all_lemma_names("v")}
        names |= self.wn._exception_map["n"].keys() | self.wn._exception_map["v"].keys()
        self.reach: dict[str, int] = defaultdict(lambda: 1)
        """First word -> most words of a lemma that begins with it."""
        for words in (name.split() for name in normalised_all(sorted(names))):
            if words:
                self.reach[words[0]] = max(self.reach[words[0]], len(words))

    def matches(self, text: str) -> list[Match]:
        words, start, found = normalised(text).split(), 0, []
        while start < len(words):
            taken = 1
            for count in range(min(self.reach[words[start]], len(words) - start), 0, -1):
                form = "_".join(words[start : start + count])
                noun, verb = self.wn.synsets(form, "n"), self.wn.synsets(form, "v")
                if (noun or verb) and synsets.is_form(form.replace("_", " ")):
                    found.append((form.replace("_", " "), self.name(form, noun, NOUNS), self.name(form, verb, VERBS)))
                    taken = count
                    break
            start += taken
        return found

    def name(self, form: str, found: list[Any], files: tuple[str, ...]) -> str | None:
        if not found or found[0].lexname() not in files:
            return None
        spelt = {lemma.name() for lemma in found[0].lemmas()}
        small = any(lemma in spelt for lemma in self.wn._morphy(form, found[0].pos()))
        return str(found[0].name()) if small or not found[0].instance_hypernyms() else None


def ours(made: Synsets, texts: list[str]) -> list[list[Match]]:
    rows, found = made._phrases.find(texts)
    out: list[list[Match]] = [[] for _ in texts]
    for row, index in zip(rows.tolist(), made._used[found].tolist(), strict=True):
        noun, verb = int(made._noun[index]), int(made._verb[index])
        name = made.nouns[noun] if noun >= 0 else None, made.verbs[verb] if verb >= 0 else None
        out[row].append((made._forms[index], *name))
    return out


# --- differences ------------------------------------------------------------------------------------------------------


class Differences:
    """Differences to nltk, by kind."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.known: list[Senses] = [senses(part, database.read) for part in "nv"]
        spelt = [name for known in self.known for name in known.forms() if not name.replace("_", "").isalnum()]
        self.variants = set(normalised_all(spelt))
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, mine: list[Match], theirs: list[Match]) -> None:
        left, right = with_synset(mine), with_synset(theirs)
        for form in dict.fromkeys(match[0] for match in left + right):
            own, other = ([match[1:] for match in found if match[0] == form] for found in (left, right))
            if own != other:
                kind = self.kind(form, mine, theirs)
                self.kinds[kind] += 1
                self.examples[kind][f"{form}: {brief(own)}, nltk {brief(other)}"] += 1

    def kind(self, form: str, mine: list[Match], theirs: list[Match]) -> str:
        """The kind of a difference, by the form and by longer forms that only one side found."""
        name = form.replace(" ", "_")
        if self.known[0].is_bare_possessive(name.split("_")[-1]):
            return "possessive of an irregular plural without its apostrophe"
        if any(_misspelt(name, lemma) for lemma in self.lemmas("v", name)):
            return "an -es that English does not spell"
        for other in {match[0] for match in mine} ^ {match[0] for match in theirs}:
            if other != form and f" {form} " in f" {other} ":
                return "part of a longer form that only one side has"
        if form in self.variants:
            return "WordNet spells it with a hyphen, a full stop or an apostrophe"
        for part, known in zip("nv", self.known, strict=True):
            lemmas = self.lemmas(part, name)
            first = synsets.senses_in_order(known, name, lemmas)[0] if lemmas else None
            if first and first.synset != known.of[lemmas[0]][0].synset:
                own = first in known.of[lemmas[0]]
                return "names come last" if own else "inflection of a far more frequent lemma"
        return "other"

    def lemmas(self, part: str, name: str) -> list[str]:
        return list(self.peer.wn._morphy(name, part))


def with_synset(found: list[Match]) -> list[Match]:
    """Matches with a synset."""
    return [match for match in found if match[1:] != (None, None)]


def brief(found: list[Any]) -> str:
    return " ".join(name or "" for name in found[0]).strip() if found else "nothing"


def compare(made: Synsets, peer: Peer, texts: list[str]) -> None:
    differences = Differences(peer)
    same = total = 0
    for mine, text in zip(ours(made, texts), texts, strict=True):
        theirs = peer.matches(text)
        total += len(with_synset(theirs))
        same += with_synset(mine) == with_synset(theirs)
        if with_synset(mine) != with_synset(theirs):
            differences.add(mine, theirs)
    line("texts with the same answer as nltk", f"{same:,}", f"of {len(texts):,}; nltk finds {total:,} matches in all")
    for kind, count in differences.kinds.most_common():
        line(f"  {kind}", f"{count:,}")
        for example, times in differences.examples[kind].most_common(EXAMPLES):
            print(f"      {times:>4} x {example}")


# --- figures ----------------------------------------------------------------------------------------------------------


def resident() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


def build() -> Synsets:
    began = time.perf_counter()
    compiled = synsets.compiled(database.read)
    line("compile the table (once per machine)", f"{time.perf_counter() - began:.1f} s", f"{len(compiled):,} forms")
    del compiled
    synsets.table()
    pa.default_memory_pool().release_unused()
    before, began = resident(), time.perf_counter()
    made = Synsets(RULES)
    line("load the table, build the automaton", f"{time.perf_counter() - began:.2f} s")
    line("memory of both", f"{resident() - before:.0f} MiB", f"{len(made._used):,} phrases in the automaton")
    return made


def speed(texts: list[str], peer: Peer | None) -> None:
    """The whole stage: matches, synsets, lists of names."""
    stage = Concepts(ambiguous="both")
    stage.setup({})
    batches = [pa.table({"text": texts[i : i + stage.batch_rows]}) for i in range(0, len(texts), stage.batch_rows)]
    took = seconds(lambda: [stage.process(Batch(table)) for table in batches])
    rate = len(texts) / took
    line(f"text.concepts, {len(texts):,} texts, one core", f"{rate:,.0f}/s", f"{took / len(texts) * 1e6:.1f} µs a text")
    if peer:
        peers = seconds(lambda: [peer.matches(text) for text in texts], 1)
        note = f"ours is {peers / took:.0f} x as fast"
        line("nltk's morphy and lookup, synsets already read once", f"{len(texts) / peers:,.0f}/s", note)


def main() -> None:
    texts = list(alt_texts())
    if not texts:
        return
    print(f"WordNet {database.identity()} in {database.place()}")
    made = build()
    peer = Peer()
    compare(made, peer, texts)
    speed(texts, peer)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    if count:
        speed(altered(count), None)


if __name__ == "__main__":
    main()
