"""Hypernyms of WordNet's nouns: the kinds that a thing belongs to, up to entity.n.01."""

from __future__ import annotations

from functools import lru_cache

from curate.kernels.wordnet import database
from curate.kernels.wordnet.senses import hypernyms


class Taxonomy:
    """Names are nltk's (`lemon.n.01`). An unknown name has no hypernyms."""

    def __init__(self, by_offset: dict[str, str], above: dict[str, tuple[str, ...]]) -> None:
        self.by_offset = by_offset
        """Offset in data.noun, the digits of ImageNet's WordNet id -> name."""
        self._above = above

    def above(self, name: str) -> tuple[str, ...]:
        """Its direct hypernyms."""
        return self._above.get(name, ())

    def kinds(self, name: str) -> list[str]:
        """The synset and all of its hypernyms, the nearest first."""
        found = dict.fromkeys([name])
        for one in (queue := [name]):
            new = [other for other in self.above(one) if other not in found]
            found.update(dict.fromkeys(new))
            queue += new
        return list(found)

    def path(self, name: str) -> list[str]:
        """From the root to the synset, each by its first hypernym."""
        found = [name]
        while (above := self.above(found[-1])) and above[0] not in found:
            found.append(above[0])
        return found[::-1]


def taxonomy() -> Taxonomy:
    """That of the installed WordNet, read once. Raises InputError, with the remedy."""
    return _read(database.identity())


@lru_cache(maxsize=1)
def _read(identity: str) -> Taxonomy:
    with database.well_formed():
        return Taxonomy(*hypernyms(database.read))
