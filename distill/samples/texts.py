"""Draws the text of an image, by weight, among the texts that the recipe names and the sample has; reads its columns.

A text is a member of the tar (`txt`), a field of the sample's JSON (`json.title`; `json.meta.title` for nested fields),
or a kind of `caption.mix`: `short` stands for `json.texts.short` if the dataset has no members of that name. If a field
has a list of texts, one is drawn. Missing, empty and invalid texts are never drawn.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import InputError, Reject, did_you_mean
from curate.kernels.sentences import split_sentences
from distill.samples.batches.draws import SECOND_SENTENCE, SECOND_TEXT, SENTENCE, TEXT, Draws, choose
from distill.samples.classes import labels_of
from distill.samples.sources.dataset import Dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture

Found = dict[str, tuple[str, ...]]
"""Texts of a sample, by the names in its source's recipe; without names of which it has no text."""
Candidates = tuple[tuple[float, tuple[str, ...]], ...]
"""(weight, texts) for each name."""

_KINDS = "texts"
"""Field of the JSON that holds the texts of `caption.mix` by kind."""
_FAR_WORKERS = 16
"""Threads if each text takes a request or two to an object store."""
_SEARCHED = 64
"""Samples that are searched for the texts that a recipe names."""
_SALTS = ((TEXT, SENTENCE), (SECOND_TEXT, SECOND_SENTENCE))
"""Salts that draw the first and the second text of a sample, and a sentence in each."""
_LOG = logging.getLogger("distill")
T = TypeVar("T")
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


class Texts:
    """Texts of the samples of a mixture. Thread-safe."""

    def __init__(self, mixture: Mixture, members: MemberReader, draws: Draws) -> None:
        self._places = [
            {name: _place(name, source) for name in recipe.texts}
            for source, recipe in zip(mixture.sources, mixture.recipes, strict=True)
        ]
        self._mixture, self._members, self._draws = mixture, members, draws
        self._warned = False

    def has_choices(self, row: int) -> bool:
        """Whether the recipe of the row's source names texts."""
        return bool(self._places[self._mixture.locate(row)[0]])

    def read(self, row: int) -> Found:
        """All texts of a sample. Raises Reject if its tar is missing or truncated."""
        document: Any = None
        found = {}
        for name, (member, field) in self._places[self._mixture.locate(row)[0]].items():
            if not field:
                texts = _texts(_decoded(self._members.member(row, member)))
            else:
                document = _parsed(self._members.member(row, member)) if document is None else document
                texts = _texts(_field(document, field))
            if texts:
                found[name] = texts
        return found

    def columns(self, row: int, names: Collection[str]) -> dict[str, Any]:
        """Columns of a sample, without those that it lacks: texts of members, values of its JSON. Raises Reject as
        `read` does."""
        source, document, found = self._mixture.sources[self._mixture.locate(row)[0]], None, dict[str, Any]()
        for name in names:
            member, field = _place_of_column(name, source)
            if not field:
                value = _decoded(self._members.member(row, member))
            else:
                document = _parsed(self._members.member(row, member)) if document is None else document
                value = _field(document, field)
            if value is not None:
                found[name] = value
        return found

    def all_texts(self, row: int) -> list[str]:
        """All texts of a sample; empty if they cannot be read, which is logged once."""
        try:
            return [text for texts in self.read(row).values() for text in texts]
        except Reject:
            return []
        except OSError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("row %d: cannot read its texts (%s); such rows count as having no text", row, error)
            return []

    def read_all(self, rows: NDArray[np.int64], *, workers: int) -> list[str]:
        """All texts of some samples, without those that cannot be read."""
        return [text for found in self.each(self.all_texts, rows, workers=workers) for text in found]

    def each(self, read: Callable[[int], T], rows: NDArray[np.int64], *, workers: int) -> list[T]:
        """What a function reads of each of some samples."""
        far = not all(source.storage.local for source in self._mixture.sources)
        with self._members.reading(rows), ThreadPoolExecutor(_FAR_WORKERS if far else workers) as pool:
            return list(pool.map(read, rows.tolist()))

    def label_counts(self, rows: NDArray[np.int64], column: str, *, workers: int) -> Counter[str]:
        """How many of some samples have each label in a column, without those that cannot be read."""

        def labels(row: int) -> set[str]:
            try:
                return set(labels_of(self.columns(row, [column]).get(column)))
            except (Reject, OSError):
                return set()

        return Counter(label for found in self.each(labels, rows, workers=workers) for label in found)

    def draw(self, row: int, epoch: int | None, found: Found) -> tuple[str, ...]:
        """The text of a sample in an epoch of its source, or two for a `text_pair`, by hash(seed, key, copy, epoch).

        Empty if the sample has none. Without an epoch: the texts of epoch 0, never a single sentence.
        """
        recipe, drawn = self._mixture.recipes[self._mixture.locate(row)[0]], list[str]()
        for name, (text_salt, sentence_salt) in zip(recipe.text_pair or (None,), _SALTS, strict=False):
            names = [name] if name in found else list(found)
            candidates = tuple((recipe.texts[one], found[one]) for one in names)
            text = choose_text(candidates, self._draws.ranks(text_salt, row, epoch or 0)[0])
            if text is None:
                return ()
            if recipe.single_sentence and epoch is not None:
                text = choose_sentence(text, self._draws.ranks(sentence_salt, row, epoch)[0], recipe.single_sentence)
            drawn.append(text)
        return tuple(drawn)


def choose_text(candidates: Candidates, rank: np.uint64) -> str | None:
    """The text for a uniform 64-bit number: the upper half chooses the field, the lower half one of its texts."""
    if not candidates:
        return None
    upper, lower = _halves(rank)
    texts = candidates[int(choose(upper, [weight for weight, _ in candidates])[0])][1]
    return texts[int(choose(lower, [1.0] * len(texts))[0])]


def choose_sentence(text: str, rank: np.uint64, share: float) -> str:
    """With probability `share`, one of the text's sentences, otherwise the text. rank: a uniform 64-bit number, whose
    upper half decides, and whose lower half chooses the sentence."""
    upper, lower = _halves(rank)
    if not choose(upper, [1.0 - share, share])[0]:
        return text
    sentences = split_sentences(text)
    return sentences[int(choose(lower, [1.0] * len(sentences))[0])]


def _halves(rank: np.uint64) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return np.array([rank >> _HALF << _HALF]), np.array([(rank & _LOW) << _HALF])


def missing_texts(mixture: Mixture) -> list[str]:
    """A line for each text of a source's recipe that is missing in all samples of a sample from the source's first
    tar."""
    lines = []
    for number, (source, recipe) in enumerate(zip(mixture.sources, mixture.recipes, strict=True)):
        if not recipe.texts:
            continue
        alone = Mixture([source], [recipe])
        members = MemberReader(alone)
        texts = Texts(alone, members, Draws(alone, 0))
        rows = _first_rows(source)
        names, kinds, searched = set[str](), set[str](), 0
        with members.reading(rows):
            for row in rows.tolist():
                try:
                    names |= texts.read(row).keys()
                    kinds |= _known(members, row)
                except (Reject, OSError):  # reading the sample in training reports it
                    continue
                searched += 1
        for name in recipe.texts if searched else ():
            if name not in names:
                known = sorted(kinds | names)
                lines.append(
                    f"data.sources.{number}.texts: {name!r} is in none of {searched} samples of {source.url}; "
                    + did_you_mean(name, known, f"they have {', '.join(known) or 'no texts'}")
                )
    return lines


def _place(name: str, source: Dataset) -> tuple[str, str]:
    """(member, field of its JSON) of a text; an empty field for the whole member."""
    member, _, field = name.partition(".")
    if member == "json":
        return member, field
    if "." in name or name == "txt" or source.index.has(f"{name}_offset"):
        return name, ""
    return "json", f"{_KINDS}.{name}"


def _place_of_column(name: str, source: Dataset) -> tuple[str, str]:
    """(member, field of its JSON) of a column."""
    if name == "txt" or source.index.has(f"{name}_offset"):
        return name, ""
    return "json", name.removeprefix("json.")


def check_columns(mixture: Mixture, names: Collection[str]) -> None:
    """InputError for a column that none of some samples of the first tar of any source has."""
    missing, known, searched = set(names), set[str](), 0
    for source, recipe in zip(mixture.sources, mixture.recipes, strict=True):
        alone = Mixture([source], [recipe])
        members = MemberReader(alone)
        texts, rows = Texts(alone, members, Draws(alone, 0)), _first_rows(source)
        with members.reading(rows):
            for row in rows.tolist() if missing else ():
                try:
                    missing -= texts.columns(row, names).keys()
                    document = _parsed(members.member(row, "json"))
                except (Reject, OSError):  # reading the sample in training reports it
                    continue
                searched += 1
                found = document.items() if isinstance(document, dict) else ()
                known |= {name for name, value in found if value is not None}
        known |= {name.removesuffix("_offset") for name in source.columns if name.endswith("_offset")} - {"text"}
    if missing and searched:
        names = sorted(known)
        raise InputError(
            f"data.sources: no column {min(missing)!r} in {searched} samples of {mixture.url}; "
            + did_you_mean(min(missing), names, f"they have {', '.join(names) or 'no columns'}")
        )


def _first_rows(source: Dataset) -> NDArray[np.int64]:
    """Some rows of the first tar, evenly spaced."""
    shards = source.index.numbers("shard")
    return np.unique(np.linspace(0, np.searchsorted(shards, shards[0], side="right") - 1, _SEARCHED).astype(np.int64))


def _known(members: MemberReader, row: int) -> set[str]:
    """Names of texts that a sample has: `txt`, and kinds."""
    found = _field(_parsed(members.member(row, "json")), _KINDS)
    kinds = {kind for kind, value in found.items() if _texts(value)} if isinstance(found, dict) else set()
    return kinds | ({"txt"} if _texts(_decoded(members.member(row, "txt"))) else set())


def _decoded(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _parsed(data: bytes | None) -> Any:
    try:
        return {} if data is None else json.loads(data)
    except (ValueError, RecursionError):
        return {}


def _field(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _texts(value: Any) -> tuple[str, ...]:
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    return tuple(item.strip() for item in items if isinstance(item, str) and item.strip())
