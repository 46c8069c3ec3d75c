"""Draws the text of an image, by weight, among the texts that the recipe names and the sample has.

A text is a member of the tar (`txt`) or a field of the sample's JSON (`json.title`; `json.meta.title` for nested
fields). If a field has a list of texts, one is drawn. Missing, empty and invalid texts are never drawn.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.core.errors import Reject
from distill.samples.batches.draws import TEXT, Draws, choose
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import Mixture

Candidates = tuple[tuple[float, tuple[str, ...]], ...]
"""(weight, texts) for each text field that the sample has."""

_FAR_WORKERS = 16
"""Threads if each text takes a request or two to an object store."""
_LOG = logging.getLogger("distill")
_LOW = np.uint64(0xFFFFFFFF)


class Texts:
    """Texts of the samples of a mixture. Thread-safe."""

    def __init__(self, mixture: Mixture, members: MemberReader, draws: Draws) -> None:
        self._choices = [tuple(recipe.texts.items()) for recipe in mixture.recipes]
        self._mixture, self._members, self._draws = mixture, members, draws
        self._warned = False

    def has_choices(self, row: int) -> bool:
        """Whether the recipe of the row's source names texts."""
        return bool(self._choices[self._mixture.locate(row)[0]])

    def candidates(self, row: int) -> Candidates:
        """All texts of a sample. Raises Reject if its tar is missing or truncated."""
        document: Any = None
        found = []
        for name, weight in self._choices[self._mixture.locate(row)[0]]:
            member, _, field = name.partition(".")
            if member != "json":
                texts = _texts(_decoded(self._members.member(row, name)))
            else:
                document = _parsed(self._members.member(row, "json")) if document is None else document
                texts = _texts(_field(document, field))
            if texts:
                found.append((weight, texts))
        return tuple(found)

    def all_texts(self, row: int) -> list[str]:
        """All texts of a sample; empty if they cannot be read, which is logged once."""
        try:
            return [text for _, texts in self.candidates(row) for text in texts]
        except Reject:
            return []
        except OSError as error:
            if not self._warned:
                self._warned = True
                _LOG.warning("row %d: cannot read its texts (%s); such rows count as having no text", row, error)
            return []

    def read_all(self, rows: NDArray[np.int64], *, workers: int) -> list[str]:
        """All texts of some samples, without those that cannot be read."""
        far = not all(source.storage.local for source in self._mixture.sources)
        with self._members.reading(rows), ThreadPoolExecutor(_FAR_WORKERS if far else workers) as pool:
            return [text for found in pool.map(self.all_texts, rows.tolist()) for text in found]

    def draw(self, row: int, epoch: int, candidates: Candidates) -> str | None:
        """One of a sample's candidates, by hash(seed, key, copy, epoch); None if it has none."""
        return choose_text(candidates, self._draws.ranks(TEXT, row, epoch)[0])


def choose_text(candidates: Candidates, rank: np.uint64) -> str | None:
    """The text for a uniform 64-bit number: the upper half chooses the field, the lower half one of its texts."""
    if not candidates:
        return None
    upper, lower = (np.array([half << np.uint64(32)]) for half in (rank >> np.uint64(32), rank & _LOW))
    texts = candidates[int(choose(upper, [weight for weight, _ in candidates])[0])][1]
    return texts[int(choose(lower, [1.0] * len(texts))[0])]


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
